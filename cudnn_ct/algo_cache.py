"""Select an implementation of a problem: by heuristics, by benchmark, by name, or as remembered.

A decision (the candidates of a problem, those that failed, and the fastest) is shared by the threads of a
process, and a timed one by processes through `autotune.store`. A plan belongs to its thread. Operations pass
their problems and candidates.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from . import errors
from ._algorithm_names import POLICIES
from ._caches import BoundedDict
from ._config import config
from .autotune import candidates as stored
from .autotune.benchmark import comparable
from .autotune.candidates import TRANSIENT, CandidateSet
from .autotune.measurement import benchmark_rows, benchmarking, compile_rows, to_time
from .context import Context
from .cuda import stream as streams
from .errors import BadParamError, CudnnError, NotSupportedError, warn_caller, without_frames
from .graph import recording
from .graph.candidates import keeping
from .graph.offline import ShapesOnly, target_of
from .graph.operations import Graph, why_static
from .plans.base import AlgoRequest, Candidate, Heuristic, NotChosen, Plan, Problem, SelectedPlan, unsupported


class CandidateSource(ABC):
    """The implementations of an operation: sources of candidates, and a plan for each candidate.

    First results are compared with a second opinion only if the candidates are ``comparable``: engines of the
    graph that ``graph_of`` returns.
    """

    comparable = False

    @abstractmethod
    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        """Return sources of candidates, the most promising first; each returns rows, the best first."""

    @abstractmethod
    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return the candidates to time, in this order; rejected ones exceed the limits of the request."""

    @abstractmethod
    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the sources for the algorithm of a name, and the sources for its replacement."""

    @abstractmethod
    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make a candidate ready to run in the context's thread."""

    def graph_of(self, problem: Any) -> Graph | None:  # noqa: ARG002
        """Return the graph that engines compute for a problem, to explain its rejection; None without one."""
        return None

    def on_shapes(self, problem: Any, named: str) -> list[Candidate]:  # noqa: ARG002
        """Return what calls on shapes plan, in the order of a first call; any engine without a ``named`` one.

        The plan of another backend has no graph, or needs what only a context has.
        """
        return [Candidate("graph", named, "any", 0, True)]

    def only_graphs(self, problem: Any, context: Any) -> bool:  # noqa: ARG002
        """Return whether all candidates are engines of the graph, with the same workspace and determinism."""
        return False

    def with_dynamic_shapes(self) -> Self:
        """Return the source that plans dynamic graphs where it can; the same source if it never can."""
        return self


class Selection(SelectedPlan):
    """A problem, its decision, and this thread's plan for the best candidate that has not failed."""

    __slots__ = ("_certificate", "_decision", "_dynamic", "_graph", "_row", "_shared", "_source", "problem")

    def __init__(
        self, problem: Problem, source: CandidateSource, context: Context, request: AlgoRequest, dynamic: bool
    ) -> None:
        self.problem = problem
        self._source, self._dynamic = source, dynamic  # whether a call asks for a dynamic graph
        self._shared = partial(_decision, problem, source, request=request)
        self._decision = self._shared(context)
        self._row: Candidate | None = None
        self._certificate = ""  # how the first result was compared, for `describe`
        chosen = request.algo in ("heuristic", "online") and getattr(problem, "unproven", False)
        asked = config.certify == "all" or (config.certify == "new" and chosen)
        # The graph of a problem whose first results are compared, or None.
        self._graph: Any = source.graph_of(problem) if asked and source.comparable else None
        super().__init__(self._next_plan(context))

    @property
    def candidate(self) -> Candidate | None:
        return self._row and self._row._replace(workspace=self.plan.workspace, problem=self.problem)

    @property
    def needs_timing(self) -> bool:
        return self._row is None

    @property
    def exploring(self) -> bool:
        state = self._decision.exploration
        return state is not None and (not state.settled or self._decision.has_better(self._row))

    @property
    def fallback_reason(self) -> str:
        return self._decision.fallback_reason(self._row)

    def run_first(self, context: Context, *arguments: Any, compare: bool) -> bool:
        """Time the candidates, or compare the result with a second opinion if it has to be, and run."""
        # The comparison writes to temporary memory, so that the run is the only one that the arrays see. A
        # capture forbids it: then, the next run compares.
        engine = self._row is None or self._row.backend == "graph"
        compare = compare and engine and self._graph is not None
        exploring = self._decision.exploration is not None and self.exploring
        if self._row is None:
            self.time(context, *arguments)
        elif compare and not self._certificate:
            from .certify.opinions import Opinions  # only for graphs that are compared

            given = Opinions(
                self.problem,
                self._graph,
                plan_of=lambda row: self._planned(row, context),
                others=lambda: self._decision.viable(context, []),
                reject=self._decision.reject,
            )
            found = given.compare(self._row, self.plan, context, arguments[0])
            if found.winner is not None:
                self._row, self.plan = found.winner
            self._certificate = "" if context.capturing else found.note
        elif exploring:
            self._explore(context, *arguments)
            return False
        super().run_first(context, *arguments, compare=compare)
        return not exploring and (not compare or bool(self._certificate))

    def _explore(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the fastest candidate so far, and try another one for later calls."""
        if self._decision.has_better(self._row):
            self.plan = self._next_plan(context)
        super().run_first(context, pointers, alpha, beta, compare=False)
        decision, row, state = self._decision, self._row, self._decision.exploration
        if state is None or row is None or context.capturing:
            return
        with state.turn(decision.lock) as mine:
            if mine:
                find = partial(self._source.autotune_candidates, self.problem, context, decision.request)
                # The plan that ran is timed itself: another one of the same engine would be compiled again.
                timed = partial(
                    benchmark_rows, self.problem, context=context,
                    make=lambda _, *one: self.plan if one[0].key == row.key else self._planned(*one),
                    pointers=pointers, alpha=alpha, beta=beta, every=False, after=True,
                )  # fmt: skip
                state.step(decision.first or row, lambda: decision.not_failed(find()), timed)
                decision.take(state)
        self._row = decision.latest(row)

    def run_other(self, error: CudnnError, context: Context, *arguments: Any) -> bool:
        """Run the first other candidate that works, if cuDNN rejects the plan, it fails, or memory runs out.

        cuDNN rejects a call before any kernel starts, so the operands are unchanged. A rejection holds at
        once. A transient failure rejects a candidate only after another one has worked, and a lack of memory
        never does: memory may be free again later.
        """
        if self._row is None:  # the timing of an earlier call failed
            return self.run_first(context, *arguments, compare=False)
        if not isinstance(error, (NotSupportedError, BadParamError, *TRANSIENT)):
            return False
        beta = arguments[-1]
        if beta and isinstance(error, errors.ExecutionFailedError):
            return False  # a kernel may have overwritten the result, which beta multiplies
        known, self._decision = self._decision, self._shared(context)
        if known is self._decision:
            if not isinstance(error, TRANSIENT):
                self._decision.reject(self._row, str(error))
            failed: list[tuple[Candidate, CudnnError]] = [(self._row, error)]
            room = self.plan.workspace if isinstance(error, errors.AllocationError) else None
            for row in self._decision.viable(context, []):
                if any(row == other for other, _ in failed) or (room is not None and row.workspace >= room):
                    continue
                try:
                    plan = self._planned(row, context)
                    plan.run(context, *arguments)
                except (NotSupportedError, BadParamError) as another:
                    self._decision.reject(row, str(another))
                    failed.append((row, without_frames(another)))
                except TRANSIENT as another:
                    if beta and isinstance(another, errors.ExecutionFailedError):
                        raise  # as above
                    failed.append((row, without_frames(another)))
                except errors.NotInitializedError as another:
                    if isinstance(error, errors.ExecutionFailedError):  # it may have destroyed the context
                        raise error from another
                    raise
                else:
                    self._replace_failed(failed, row, plan)
                    return True
            if transient := next((reason for _, reason in failed if isinstance(reason, TRANSIENT)), None):
                raise transient
        self.plan = self._next_plan(context)
        return self.run_first(context, *arguments, compare=False)

    @streams.relaxed()
    def time(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Time the candidates on the operands, unless another thread just did, and select the fastest."""
        if context.capturing:
            raise errors.NotInitializedError(
                "an algorithm is to be timed in a call that is captured: make the same call once before "
                "capturing it"
            )
        self._decision = self._shared(context)
        with keeping():
            # In this order, as a benchmark may call another operation.
            with benchmarking, self._decision.lock:
                if self._decision.needs_timing:
                    self._time(context, pointers, alpha, beta)
            self.plan = self._next_plan(context)

    def _time(self, context: Context, *arguments: Any) -> None:
        rows = self._source.autotune_candidates(self.problem, context, self._decision.request)
        usable = to_time(rows)
        compile_rows(self.problem, usable, self._source.plan, context)
        plan = partial(self._planned, to_time=True)
        timed, failures = benchmark_rows(
            self.problem, usable, lambda _, *one: plan(*one), context, *arguments, every=False
        )
        self._decision.store_timings(timed + [row for row in rows if row not in usable], failures)

    def describe(self) -> str:
        reason = self.fallback_reason
        lines = [self.plan.describe(), self._decision.origin(self._row)]
        lines += [f"  fallback: {reason}"] if reason else []
        lines += [f"  {self._certificate}"] if self._certificate else []
        graph = self._source.graph_of(self.problem) if self._dynamic else None
        lines += [f"  not dynamic: {static}"] if graph and (static := why_static(graph)) else []
        return "\n  rejected: ".join(["\n".join(lines), *self._decision.rejections()])

    @streams.relaxed()  # cuDNN loads modules for a plan
    def _next_plan(self, context: Context) -> Plan:
        failures: list[CudnnError] = []
        for row in self._decision.viable(context, failures):
            if self._rejected_by_certificate(row, context):
                continue
            try:
                plan = self._planned(row, context)
            except (NotSupportedError, BadParamError) as error:
                self._decision.reject(row, str(error))
            except TRANSIENT as error:
                failures.append(without_frames(error))
            else:
                self._adopt(row, plan)
                if self._decision.request.algo == "heuristic" and not failures:
                    stored.store_choice(self.problem, context, self._decision.request, row)
                return plan
        if self._decision.needs_timing:
            self._row = None
            return _NOT_TIMED
        raise unsupported(self.problem, self._decision.rejections(), self._explained(context))

    def _rejected_by_certificate(self, row: Candidate, context: Context) -> bool:
        """Reject a candidate that is known to compute wrong results for such graphs; return whether it is."""
        if self._graph is None or row.backend != "graph":
            return False
        from .certify.opinions import known_wrong  # only for graphs that are compared

        wrong = known_wrong(self._graph, row, context)
        return bool(wrong) and self._decision.reject(row, wrong)

    def _explained(self, context: Context) -> Any:
        """Return why each engine rejects the graph of the problem; None if it has none, or an engine fits."""
        from .legal.rules import why_not_asked

        graph = self._source.graph_of(self.problem)
        if graph is None or why_not_asked(self.problem, target_of(context)):
            return None
        from .graph.explain import explanation_of_rejection  # only after a failure

        return explanation_of_rejection(graph, context, self.problem)

    def _planned(self, row: Candidate, context: Context, *, to_time: bool = False) -> Plan:
        """Return the plan of a candidate; raise NotSupportedError if it exceeds a limit, as copies may."""
        recording.begin_choice()
        plan = self._source.plan(self.problem, row, context)
        exceeded = self._decision.request.rejection(row._replace(workspace=plan.workspace))
        wanted = self._decision.request.deterministic and not to_time
        if wanted and row.backend in MEASURED and not exceeded:
            from .certify.certificates import why_varying  # only for calls that ask for it

            engine = row.algorithm if row.backend == "graph" else f"{row.backend} {row.algorithm}"
            exceeded = why_varying(self.problem, engine, plan, context)
        if exceeded:
            raise NotSupportedError(exceeded)
        return plan

    def _adopt(self, row: Candidate, plan: Plan) -> None:
        self._row, self.plan = row, plan
        if (reason := self.fallback_reason) and self._decision.warn_once():
            warn_caller(f"algo={self._decision.request.algo!r} fell back to {row}: {reason}")

    def _replace_failed(self, failed: list[tuple[Candidate, CudnnError]], row: Candidate, plan: Plan) -> None:
        """Reject the candidates that failed before another one worked, and adopt that one."""
        short = next((reason for _, reason in failed if isinstance(reason, errors.AllocationError)), None)
        for other, reason in failed:
            lasting = isinstance(reason, TRANSIENT) and not isinstance(reason, errors.AllocationError)
            if lasting and self._decision.reject(other, str(reason)):
                warn_caller(f"{other} failed: {reason}; {row} ran instead")
        if not short:
            self._adopt(row, plan)
        elif self._decision.warn_once():
            warn_caller(f"{short}; {row} ran instead")


MEASURED = ("graph", "product", "cublaslt")  # backends whose bits are measured
# The plan of a selection before its first run, which times the candidates.
_NOT_TIMED = NotChosen("the first call times the candidates")


# --- what is remembered ------------------------------------------------------------------------------------

_decisions = BoundedDict(16_384)
_lock = threading.RLock()  # reentrant, because a finalizer or a signal handler may call an operation


def select(
    problem: Problem,
    source: CandidateSource,
    context: Context | ShapesOnly,
    request: AlgoRequest | None = None,
) -> SelectedPlan:
    """Select how to compute ``problem``; raise NotSupportedError with all reasons if no candidate is left."""
    request = request or AlgoRequest()
    if request.algo == "online" and not comparable(problem):
        request = request._replace(algo="heuristic")
    asked = request.dynamic_shapes
    if asked:
        dynamic = source.with_dynamic_shapes()
        request = request._replace(dynamic_shapes=dynamic is not source)
        source = dynamic
    if not isinstance(context, ShapesOnly):
        return Selection(problem, source, context, request, asked)
    # Without a GPU, the graph is recorded. The first engine is the heuristic choice if all candidates are
    # engines of the graph.
    named = str(request.algo) if request.algo and request.algo not in POLICIES else ""
    shapes: Any = ShapesOnly(replaceable=bool(named) and not request.strict)
    replaced = shapes.replaceable or not named
    rows = [row for row in source.on_shapes(problem, named) if replaced or row.backend == "graph"]
    recording.begin_choice()
    plan = recording.record_first(partial(source.plan, problem, row, shapes) for row in rows)
    if request.algo == "heuristic" and source.only_graphs(problem, shapes):
        recording.note_choice(*stored.choice_of(problem, request))
    return SelectedPlan(plan)


def _decision(
    problem: Problem, source: CandidateSource, context: Context, request: AlgoRequest
) -> CandidateSet:
    """Return the decision that the threads share; a new one if all candidates were rejected."""
    key = (context.device, type(problem), problem, request)  # problems of two operations may be equal tuples
    with _lock:
        known: CandidateSet | None = _decisions.get(key)
    if known is not None and not known.exhausted:
        return known
    fresh = _first_decision(problem, source, context, request)
    with _lock:
        if _decisions.get(key) in (None, known):  # else another thread was faster
            _decisions[key] = fresh
        shared: CandidateSet = _decisions[key]
    return shared


def _first_decision(
    problem: Problem, source: CandidateSource, context: Context, request: AlgoRequest
) -> CandidateSet:
    """Return a new decision: with the row of the request, remembered rows, or sources of candidates."""
    if request.row is not None:
        return CandidateSet(request, (), [request.row._replace(problem=None)])
    name = str(request.algo)
    if name not in POLICIES:
        sources, instead = source.by_name(problem, name)
        return CandidateSet(request, sources, instead=() if request.strict else instead)
    rows: list[Candidate] = []
    key = ""
    if name == "heuristic":
        row = stored.heuristic_choice(problem, context, request)
        rows = [] if row is None or row.rejected or request.rejection(row) else [row]
        return CandidateSet(request, source.heuristics(problem), rows, "as it was stored" if rows else "")
    if request.timed or name == "online":
        key = stored.store_key(problem, context, request)
        rows = [row for row in stored.load_candidates(key) if row.rejected or not request.rejection(row)]
    # The sources also serve after a benchmark in which no candidate worked.
    how = "as the cache file has it" if rows else ""
    return CandidateSet(request, source.heuristics(problem), rows, how, key=key)
