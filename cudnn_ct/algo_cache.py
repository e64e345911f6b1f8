"""Which way to compute a problem: guessed, timed, named or remembered. Knows no operation.

A decision (the candidates, those that failed, and the fastest) is shared by the
threads of a process, and a timed one by processes through `autotune.store`. A plan belongs to its thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .autotune import benchmark
from .autotune.candidates import TRANSIENT, CandidateSet, load_candidates, search_settings, store_key
from .autotune.request import AlgoRequest
from .context import BoundedDict, Context
from .cuda import allocator
from .cuda import stream as streams
from .dtypes import DTYPES
from .errors import (
    AllocationError,
    BadParamError,
    CudnnError,
    ExecutionFailedError,
    NotInitializedError,
    NotSupportedError,
    warn_caller,
    without_frames,
)
from .plans.base import Candidate, Heuristic, Plan, Problem

__all__ = ["CandidateSource", "Selection", "benchmark_rows", "select"]


class CandidateSource(Protocol):
    """The ways to compute problems: where to look for candidates, and a plan for each."""

    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        """Places to look for a way, the most promising first; each gives rows, the best first."""

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return the candidates to time, in this order; rejected ones exceed the limits of the request."""

    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Where an algorithm of a name is found, and where what takes its place."""

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make a row ready to run in the context's thread."""


class Selection:
    """A problem, the decision about it, and this thread's plan for the best candidate that has not failed.

    Made by :func:`select`.
    """

    __slots__ = ("_decision", "_row", "_source", "plan", "problem")

    def __init__(
        self, problem: Problem, source: CandidateSource, decision: CandidateSet, context: Context
    ) -> None:
        self.problem = problem
        self._source = source
        self._decision = decision
        self._row: Candidate | None = None
        self.plan: Plan = self._next_plan(context)

    @property
    def candidate(self) -> Candidate | None:
        """What was chosen; None before a choice that is to be timed."""
        return self._row and self._row._replace(workspace=self.plan.workspace, problem=self.problem)

    @property
    def needs_timing(self) -> bool:
        """Whether candidates are still to be timed."""
        return self._row is None

    @property
    def fallback_reason(self) -> str:
        """Why something else runs than the algorithm that was named; empty where that runs."""
        return self._decision.fallback_reason(self._row)

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the plan; where cuDNN refuses it only now, it fails, or memory runs out, another candidate's.

        A refusal comes before any kernel starts, so the operands are as they were.
        """
        try:
            self.plan.run(context, pointers, alpha, beta)
        except (NotSupportedError, BadParamError, *TRANSIENT) as error:
            if self._row is None or (beta and isinstance(error, ExecutionFailedError)):
                raise  # what beta multiplies may be gone
            self._fall_back(context, pointers, alpha, beta, error)

    @streams.relaxed()
    def time(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Time the candidates on the operands, unless another thread just did, and select the fastest."""
        if context.capturing:
            raise NotInitializedError(
                "an algorithm is to be timed in a call that is captured: make the same call once before "
                "capturing it"
            )
        self._reset(context)
        with self._decision.lock:
            if self._decision.needs_timing:
                rows = self._source.autotune_candidates(self.problem, context, self._decision.request)
                ways = [(row, self._source.plan) for row in rows if not row.rejected]
                timed, failures = benchmark_rows(
                    self.problem, ways, context, pointers, alpha, beta, every=False
                )
                self._decision.store_timings(timed + [row for row in rows if row.rejected], failures)
                if self._decision.stale:
                    _forget(self._decision)
        self.plan = self._next_plan(context)

    def describe(self) -> str:
        """Tell what was chosen, how, and what was refused and why."""
        reason = self.fallback_reason
        lines = [self.plan.describe(), self._decision.origin(self._row)]
        return "\n".join(
            [*lines, *([f"  fallback: {reason}"] if reason else []), *self._decision.rejections()]
        )

    @streams.relaxed()  # cuDNN loads modules for a plan
    def _next_plan(self, context: Context) -> Plan:
        trouble = None
        for row in self._decision.viable(context):
            if trouble is not None and self._decision.is_substitute(row):
                raise trouble  # the algorithm that was named may be had another time
            try:
                plan = self._planned(row, context)
            except (NotSupportedError, BadParamError) as error:
                self._decision.reject(row, str(error))
            except TRANSIENT as error:
                trouble = trouble or without_frames(error)
            else:
                self._adopt(row, plan)
                return plan
        if self._decision.needs_timing:
            self._row = None
            return _PendingAutotune(self)
        if trouble is not None:
            raise trouble
        raise NotSupportedError(
            "\n".join([f"cuDNN has no way to compute this {self.problem}", *self._decision.rejections()])
        )

    def _planned(self, row: Candidate, context: Context) -> Plan:
        plan = self._source.plan(self.problem, row, context)
        limit = self._decision.request.workspace_limit
        if limit is not None and plan.workspace > limit:
            raise NotSupportedError(f"needs {plan.workspace:,} bytes of workspace; the limit is {limit:,}")
        return plan

    def _adopt(self, row: Candidate, plan: Plan) -> None:
        self._row, self.plan = row, plan
        _keep_once(self._decision.kind, row)
        reason = self.fallback_reason
        if reason and self._decision.warn_once():
            name = self._decision.request.algo
            warn_caller(f"algo={name!r} fell back to {row}: {reason}")

    def _fall_back(
        self, context: Context, pointers: Sequence[int], alpha: float, beta: float, error: CudnnError
    ) -> None:
        """Run the first other candidate that can. Memory may be free again later; other failures last."""
        assert self._row is not None
        if self._reset(context):
            self.plan = self._next_plan(context)
            self.run(context, pointers, alpha, beta)
            return
        failed = [self._reject(self._row, error)]
        room = self.plan.workspace if isinstance(error, AllocationError) else None
        for row in self._decision.viable(context):
            if any(row == other for other, _ in failed) or (room is not None and row.workspace >= room):
                continue
            try:
                plan = self._planned(row, context)
                plan.run(context, pointers, alpha, beta)
            except (NotSupportedError, BadParamError, *TRANSIENT) as another:
                if beta and isinstance(another, ExecutionFailedError):
                    raise  # as in `run`
                failed.append(self._reject(row, without_frames(another)))
                continue
            except NotInitializedError as another:
                if isinstance(error, ExecutionFailedError):  # which has perhaps ended the context
                    raise error from another
                raise
            self._record_failures(failed, row, plan)
            return
        passing = [reason for _, reason in failed if isinstance(reason, TRANSIENT)]
        if passing:  # which says nothing of the candidates
            raise passing[0]
        self.plan = self._next_plan(context)
        self.run(context, pointers, alpha, beta)

    def _reset(self, context: Context) -> bool:
        """Whether an earlier call had everything refused, which may pass: then the decision is a new one."""
        if not self._decision.exhausted:
            return False
        self._decision = _decision(self.problem, self._source, context, self._decision.request)
        return True

    def _reject(self, row: Candidate, reason: CudnnError) -> tuple[Candidate, CudnnError]:
        """A refusal holds at once, so that what was to be timed is: no guess takes the place of kept rows."""
        if not isinstance(reason, TRANSIENT):
            self._refuse(row, reason)
        return row, reason

    def _refuse(self, row: Candidate, reason: CudnnError) -> bool:
        _forget_once(self._decision.kind, row)
        return self._decision.reject(row, str(reason))

    def _record_failures(
        self, failed: list[tuple[Candidate, CudnnError]], row: Candidate, plan: Plan
    ) -> None:
        """Another candidate ran: those that failed before it are bad, but for lack of memory."""
        short = [reason for _, reason in failed if isinstance(reason, AllocationError)]
        for other, reason in failed:
            lasting = isinstance(reason, TRANSIENT) and not isinstance(reason, AllocationError)
            if lasting and self._refuse(other, reason):
                warn_caller(f"{other} failed: {reason}; {row} ran instead")
        if not short:
            self._adopt(row, plan)
        elif self._decision.warn_once():
            warn_caller(f"{short[0]}; {row} ran instead")


class _PendingAutotune:
    """Stands where a plan will be: its first run times the candidates on the operands."""

    def __init__(self, choice: Selection) -> None:
        self._choice = choice
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        self._choice.time(context, pointers, alpha, beta)
        self._choice.plan.run(context, pointers, alpha, beta)

    def describe(self) -> str:
        return "not chosen yet: the first call times the candidates"


def benchmark_rows(
    problem: Problem,
    ways: Sequence[tuple[Candidate, Callable[[Any, Candidate, Context], Plan]]],
    context: Context,
    pointers: Sequence[int],
    alpha: float,
    beta: float,
    *,
    every: bool = True,
) -> tuple[list[Candidate], list[CudnnError]]:
    """Time candidates on operands: each row with its time or with why it has none, and all failures.

    Unless ``every`` is set, candidates that earlier times prune are skipped and have neither.
    Where beta is not 0, the result goes to scratch memory, since each run would change what the next reads.
    """
    if beta:
        low, high = problem.result.extent
        size = (high - low) * DTYPES[problem.result.dtype].itemsize
        scratch = allocator.allocate(size, context.stream, "a scratch result")
        pointers = [*pointers[:-1], int(scratch.handle)]

    def run(row: Candidate, make: Callable[[Any, Candidate, Context], Plan]) -> Callable[[], None]:
        made: list[Plan] = []

        def once() -> None:
            if not made:
                made.append(make(problem, row, context))
            made[0].run(context, pointers, alpha, beta)

        return once

    kinds = [_kind(row) for row, _ in ways]
    try:
        with _ruling:  # two races at once would measure each other
            times = benchmark.benchmark([run(*way) for way in ways], context.stream, () if every else kinds)
    finally:
        context.drop_workspace()  # the largest of all would stay
    rows = [
        row._replace(rejected=str(time)) if isinstance(time, CudnnError) else row._replace(time_ms=time)
        for (row, _), time in zip(ways, times, strict=True)
    ]
    return rows, [time for time in times if isinstance(time, CudnnError)]


def _kind(row: Candidate) -> benchmark.EngineGroup:
    """Return the group of a candidate; compiled engines are a group, often good if others are not."""
    return benchmark.EngineGroup(
        "compiled" if row.compiled else row.backend, row.algorithm.partition(" knobs")[0]
    )


# --- what is remembered ------------------------------------------------------------------------------------

_decisions = BoundedDict(16_384)
_once = BoundedDict(4096)
_lock = threading.Lock()
_ruling = threading.RLock()


def select(
    problem: Problem, source: CandidateSource, context: Context, request: AlgoRequest | None = None
) -> Selection:
    """Decide how to compute ``problem`` on the context's device.

    Raises
    ------
    NotSupportedError
        No candidate is left; the message lists all of them, each with its reason.
    """
    return Selection(problem, source, _decision(problem, source, context, request or AlgoRequest()), context)


def _decision(
    problem: Problem, source: CandidateSource, context: Context, request: AlgoRequest
) -> CandidateSet:
    """Return the decision that the threads share; a new one if all candidates were rejected."""
    # Problems of two operations may be equal as tuples.
    key = (context.device, type(problem), problem, request, *search_settings())
    with _lock:
        decision = _decisions.get(key)
    if decision is None or decision.exhausted:
        fresh = _first_decision(problem, source, context, request)
        with _lock:
            kept = _decisions.get(key)
            if kept is None or kept is decision:  # else another thread was quicker
                kept = _decisions[key] = fresh
            decision = kept
    return decision


def _first_decision(
    problem: Problem, source: CandidateSource, context: Context, request: AlgoRequest
) -> CandidateSet:
    """Where a decision begins: with a row that is given, kept or on disk, or with places to look."""
    if request.row is not None:
        return CandidateSet(request, (), [request.row._replace(problem=None)])
    name = str(request.algo)
    if not (request.timed or request.once or name == "heuristic"):
        stages, instead = source.by_name(problem, name)
        return CandidateSet(request, stages, instead=() if request.strict else instead)
    stages = source.heuristics(problem)  # after a race without a winner, too
    kept, kind, how, key = None, None, "", ""
    if request.once:
        kind = (context.device, type(problem), problem.kind, request)
        with _lock:
            kept = _once.get(kind)
        how = "kept from the first problem of its kind" if kept else ""
    rows = [kept] if kept else []
    if request.timed and not kept:
        key = store_key(problem, context, request)
        rows = [row for row in load_candidates(key) if row.rejected or not request.refusal(row)]
        how = "as the cache file has it" if rows else ""
    decision = CandidateSet(request, stages, rows, how)
    decision.key, decision.kind = key, kind
    return decision


def _forget(decision: CandidateSet) -> None:
    """Let a decision not be taken by others."""
    with _lock:
        for key in [key for key, one in _decisions.items() if one is decision]:
            del _decisions[key]


def _keep_once(kind: Any, row: Candidate) -> None:
    """Keep a choice for further problems of its kind, where the policy is to choose once."""
    if kind is not None:
        with _lock:
            _once.setdefault(kind, row._replace(workspace=0, time_ms=None))


def _forget_once(kind: Any, row: Candidate) -> None:
    """Let a choice that failed not be kept for further problems of its kind."""
    if kind is not None:
        with _lock:
            if _once.get(kind) == row._replace(workspace=0, time_ms=None):
                del _once[kind]
