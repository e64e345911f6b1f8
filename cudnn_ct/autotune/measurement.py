"""Times the candidates of a problem on the operands of a call, all at once or one after each call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from math import inf
from typing import Any

from .._config import config
from ..context import Context
from ..cuda import graph as graphs
from ..cuda import replay as replays
from ..cuda.allocator import Workspace
from ..cuda.memory import memory_info
from ..cuda.stream import Stream
from ..errors import AllocationError, CudnnError, NotSupportedError, without_frames
from ..graph.candidates import compile_ahead
from ..graph.plan_store import timing
from ..plans.base import Candidate, Plan, Problem
from . import benchmark
from .benchmark import DifferentResultError

LARGE_WORKSPACE = 2**28  # bytes: more than the L2 cache of any GPU, so that it goes through device memory
ENOUGH = 4  # with so many candidates that need no compilation, of the others only these are compiled:
EARLY, FEW = 8, 4  # of the first eight candidates four
FASTEST_MEMORY = 1e10  # bytes in a millisecond: 10 TB/s, more than the memory of any GPU takes

benchmarking = threading.RLock()  # concurrent benchmarks would measure each other


def benchmark_rows(
    problem: Problem,
    rows: Sequence[Candidate],
    make: Callable[[Any, Candidate, Context], Plan],
    context: Context,
    pointers: Sequence[int],
    alpha: float,
    beta: float,
    *,
    every: bool = True,
    after: bool = False,
) -> tuple[list[Candidate], list[CudnnError]]:
    """Time candidates on operands; return each with its time or its error, and all errors.

    Unless ``every`` is set, candidates that earlier times prune are skipped and have neither, and those whose
    workspace leaves them no chance are rejected. Candidates whose workspace exceeds the free memory always
    are. Results go to temporary memory, because each run would change the operands of the next one with beta,
    and are compared: a candidate whose result differs is rejected. Without memory for them, candidates write
    to the results of the call, unless it has run: ``after`` it, the lack is raised.
    """
    compared = len(rows) > 1 and benchmark.comparable(problem)
    scratch: benchmark.ScratchResults | None = None
    if compared or beta:
        try:
            scratch = benchmark.ScratchResults(problem, pointers, context.stream, **benchmark.BRIEF)
        except AllocationError:
            if beta or after:
                raise  # without beta, results are not compared
    engines = [engine_of(row) for row in rows]
    repeated = config.replay and not config.debug_sync
    repeated = repeated and (context.state is None or context.state.variant is not None)

    def measured(scratch: benchmark.ScratchResults | None) -> list[benchmark.Time | None]:
        memory = pointers if scratch is None else scratch.pointers
        plans = [cache(partial(make, problem, row, context)) for row in rows]
        runs = [lambda plan=plan: plan().run(context, memory, alpha, beta) for plan in plans]

        def admit(place: int, best: float) -> None:
            limit = inf if every else best
            _check_workspace(rows[place].workspace, limit, context)
            _check_workspace(plans[place]().workspace, limit, context)  # a row may not have all of it

        groups, captured = () if every else engines, partial(_as_graph, context)
        times = benchmark.benchmark(runs, context.stream, groups, admit, captured if repeated else None)
        if scratch is None or not compared:
            return times
        timed = {i: runs[i] for i, time in enumerate(times) if isinstance(time, float)}
        errors = benchmark.outliers(scratch, timed, [str(row) for row in rows], engines)
        return [errors.get(i, time) for i, time in enumerate(times)]

    try:
        with benchmarking, timing():
            times = measured(scratch)
            short = [one for one in times if isinstance(one, AllocationError)]
            fit = all(isinstance(one, NoRoomError) for one in short)
            if not (scratch is None or beta or after or fit):
                scratch = None  # its memory may suffice for the workspaces
                times = measured(None)
    finally:
        context.drop_workspace()  # the largest of all would stay
    timed = [
        row._replace(rejected=str(time)) if isinstance(time, CudnnError) else row._replace(time_ms=time)
        for row, time in zip(rows, times, strict=True)
    ]
    return timed, [time for time in times if isinstance(time, CudnnError)]


def _as_graph(context: Context, run: benchmark.Run) -> benchmark.Run:
    """Return the launch of a run as a CUDA graph, as of calls that repeat; the run if it cannot be one."""
    used: dict[int, object] = {}

    def work(captured: Stream) -> None:
        with context.recording(captured) as kept:
            run()
            used.update(kept)

    try:
        graph = replays.capture(context.device, work)
    except Exception:  # of any kind: the run itself did not fail
        return run
    if sum(one.size for one in used.values() if isinstance(one, Workspace)) > LARGE_WORKSPACE:
        return run  # the graph would keep memory from other candidates
    launch = graphs.launcher(graph, context.stream)

    def launched(_kept: object = (graph, used)) -> None:
        graphs.check(launch(), "timing a candidate", context.stream)

    return launched


def compile_rows(
    problem: Problem,
    rows: Sequence[Candidate],
    make: Callable[[Any, Candidate, Context], Plan],
    context: Context,
) -> None:
    """Compile the engines among candidates at the same time, before they are timed.

    Engines with large workspaces are compiled when their time comes: other times may prune them.
    """
    compiled = [row for row in rows if row.compiled and not row.dynamic and row.workspace <= LARGE_WORKSPACE]
    compile_ahead([partial(make, problem, row) for row in compiled], context)


class NoRoomError(AllocationError):
    """The workspace of a candidate is larger than the free memory."""


def _check_workspace(nbytes: int, best: float, context: Context) -> None:
    """Raise if a workspace has no chance against the best time so far, or does not fit into memory."""
    # A workspace is written at least once. If that takes longer than a run of the fastest candidate so far,
    # this candidate cannot be faster.
    if nbytes <= LARGE_WORKSPACE:
        return
    if nbytes / FASTEST_MEMORY > best:
        raise NotSupportedError(
            f"needs {nbytes:,} bytes of workspace, which take longer to write than the fastest candidate so "
            f"far runs ({best:.3g} ms)"
        )
    context.drop_workspace()  # else both would be in memory
    free, total = memory_info(context.device)
    if nbytes > total:
        raise NotSupportedError(f"needs {nbytes:,} bytes of workspace; the device has {total:,}")
    if nbytes > free:
        raise NoRoomError(f"needs {nbytes:,} bytes of workspace; {free:,} are free")


def to_time(rows: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates to time in the order of their trials, given from the best guess to the worst.

    If enough of them need no compilation, few of the others are left, which take up to a second each. The
    first variant of each engine comes before the others, which are skipped if it is slow. Candidates with
    large workspaces come last, because times bound them.
    """
    usable = [row for row in rows if not row.rejected]
    if sum(not row.compiled for row in usable) >= ENOUGH:
        compiled = [row for row in usable[:EARLY] if row.compiled][:FEW]
        usable = [row for row in usable if not row.compiled or row in compiled]
    engines = [engine_of(row) for row in usable]
    variants = {place for place, engine in enumerate(engines) if engine in engines[:place]}
    order = sorted(
        range(len(usable)), key=lambda place: (usable[place].workspace > LARGE_WORKSPACE, place in variants)
    )
    return [usable[place] for place in order]


def engine_of(row: Candidate) -> benchmark.EngineGroup:
    """Return the group of a candidate; compiled engines are a group, often good if others are not."""
    engine = f"{row.backend} {row.algorithm}".partition(" knobs")[0]
    if row.backend == "cublaslt":  # variants of one library, which have one vote on results
        engine = row.backend
    return benchmark.EngineGroup("compiled" if row.compiled else row.backend, engine)


# --- tables ------------------------------------------------------------------------------------------------


class Algorithms(tuple[Candidate, ...]):
    """The candidates of a problem: usable ones first, fastest first; printed as a table.

    Returned by :func:`conv_algorithms` and :meth:`RNN.algorithms`, not constructed by users. Each row can be
    passed as ``algo=`` to the operation that it was made for.
    """

    problem: Problem

    def __new__(cls, problem: Problem, rows: list[Candidate]) -> Algorithms:
        ordered = sorted(rows, key=lambda row: row.rank)
        table = super().__new__(cls, (row._replace(problem=problem) for row in ordered))
        table.problem = problem
        return table

    def __str__(self) -> str:
        lines = [str(self.problem), f"{'us':>9}  {'workspace':>13}  algorithm"]
        for row in self:
            time = "" if row.time_ms is None else f"{row.time_ms * 1000:.1f}"
            facts = f"{row.math}{'' if row.deterministic else ', not deterministic'}"
            copies = "".join(f", {operand} copied to {layout}" for operand, layout in row.relayout)
            why = f": {row.rejected.splitlines()[0]}" if row.rejected else ""
            name = f"{row.backend} {row.algorithm} ({facts}{copies})"
            lines.append(f"{time or '-':>9}  {row.workspace:>13,}  {name}{why}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        usable = sum(not row.rejected for row in self)
        return f"<{usable} algorithms, and {len(self) - usable} rejected, for {self.problem}>"


# --- between calls -----------------------------------------------------------------------------------------

Timing = Callable[[Sequence[Candidate]], tuple[list[Candidate], list[CudnnError]]]
"""Time candidates on the operands of a call; return them with their times, and their errors."""


class Exploration:
    """The candidates of a problem that calls have tried, shared by threads. The first call only runs.

    Each candidate is timed next to the fastest one so far, whose result it must have. One with another result
    is a witness until an engine confirms the fastest one: if a later one has its result, these two are right.
    """

    def __init__(self) -> None:
        self.tried: list[Candidate] = []  # the fastest first
        self.failures: list[CudnnError] = []
        self.settled = config.online_seconds == 0
        self.complete = False  # every candidate was tried
        self._left: list[Candidate] | None = None
        self._witness: Candidate | None = None
        self._confirmed = False
        self._began = False
        self._spent = 0.0

    @contextmanager
    def turn(self, lock: Any) -> Iterator[bool]:
        """Hold the locks of a benchmark if this call may try a candidate, and another thread tries none."""
        first, self._began = not self._began, True
        with ExitStack() as held:
            mine = not (first or self.settled)
            for one in (benchmarking, lock) if mine else ():  # in this order, as in a benchmark
                mine = mine and one.acquire(blocking=False)
                if mine:
                    held.callback(one.release)
            yield mine and not self.settled

    def step(self, best: Candidate, find: Callable[[], Sequence[Candidate]], timed: Timing) -> None:
        """Try the next candidate next to the fastest one so far. ``find`` returns the candidates."""
        start = time.perf_counter()
        try:
            if self._left is None:
                self._left = [row for row in to_time(find()) if row.key != best.key]
            if self._left:
                self._try(self._left.pop(0), best, timed)
        except CudnnError as error:  # such as a lack of memory: the calls go on as they are
            self.failures.append(without_frames(error))
            self.settled = True
            return
        self._spent += time.perf_counter() - start
        self.complete = not self._left
        self.settled = self.complete or self._spent > config.online_seconds

    def _try(self, new: Candidate, best: Candidate, timed: Timing) -> None:
        witness = [self._witness] if self._witness else []
        rows, failures = timed([best, *witness, new])
        differing = {str(one) for one in failures if isinstance(one, DifferentResultError)}
        if rows[0].rejected and rows[0].rejected not in differing:  # it has just run: memory is short
            raise failures[0]
        self.failures += failures
        usable = [row for row in rows if not row.rejected and row.time_ms is not None]
        self._confirmed |= len(set(map(engine_of, usable))) > 1
        if self._confirmed:
            self._witness = None
        elif rows[-1].rejected in differing:
            self._witness = new
        fastest = min(usable, key=lambda row: row.rank, default=best)
        known = {row.key: row for row in (*self.tried, *rows)}  # the last time of each
        self.tried = sorted(known.values(), key=lambda row: (row.key != fastest.key, row.rank))
