"""Times the candidates of a problem on the operands of a call, and compares their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import inf
from typing import Any

from ..context import Context
from ..cuda.memory import memory_info
from ..errors import AllocationError, CudnnError, NotSupportedError
from ..graph.plan_store import timing
from ..plans.base import Candidate, Plan, Problem
from . import agreement, benchmark

LARGE_WORKSPACE = 2**28  # bytes: more than the L2 cache of any GPU, so that it goes through device memory
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
    compared = len(rows) > 1 and agreement.comparable(problem)
    scratch: agreement.ScratchResults | None = None
    if compared or beta:
        try:
            scratch = agreement.ScratchResults(problem, pointers, context.stream)
        except AllocationError:
            if beta or after:
                raise  # without beta, results are not compared
    engines = [engine_of(row) for row in rows]

    def measured(scratch: agreement.ScratchResults | None) -> list[benchmark.Time | None]:
        memory = pointers if scratch is None else scratch.pointers
        plans = [cache(partial(make, problem, row, context)) for row in rows]
        runs = [_run(plan, context, memory, alpha, beta) for plan in plans]

        def admit(place: int, best: float) -> None:
            limit = inf if every else best
            _check_workspace(rows[place].workspace, limit, context)
            _check_workspace(plans[place]().workspace, limit, context)  # a row may not have all of it

        times = benchmark.benchmark(runs, context.stream, () if every else engines, admit)
        if scratch is None or not compared:
            return times
        timed = {i: runs[i] for i, time in enumerate(times) if isinstance(time, float)}
        errors = agreement.outliers(scratch, timed, [str(row) for row in rows], engines)
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


def _run(
    plan: Callable[[], Plan], context: Context, pointers: Sequence[int], alpha: float, beta: float
) -> Callable[[], None]:
    """Return a function that runs a candidate, whose plan the first call of ``plan`` makes."""
    return lambda: plan().run(context, pointers, alpha, beta)


class NoRoomError(AllocationError):
    """The workspace of a candidate is larger than the free memory."""


def _check_workspace(nbytes: int, best: float, context: Context) -> None:
    """Raise if a workspace has no chance against the best time so far, or does not fit into memory.

    A workspace is written at least once. If that takes longer than a run of the fastest candidate so far,
    this candidate cannot be faster.
    """
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


def large_workspaces_last(rows: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates in their order, those with large workspaces after the others, which bound them."""
    return sorted(rows, key=lambda row: row.workspace > LARGE_WORKSPACE)


def engine_of(row: Candidate) -> benchmark.EngineGroup:
    """Return the group of a candidate; compiled engines are a group, often good if others are not."""
    engine = f"{row.backend} {row.algorithm}".partition(" knobs")[0]
    if row.backend == "cublaslt":  # variants of one library, which have one vote on results
        engine = row.backend
    return benchmark.EngineGroup("compiled" if row.compiled else row.backend, engine)
