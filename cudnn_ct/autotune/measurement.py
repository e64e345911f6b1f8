"""Times the candidates of a problem on the operands of a call, and compares their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from ..context import Context
from ..errors import AllocationError, CudnnError
from ..graph.plan_store import timing
from ..plans.base import Candidate, Plan, Problem
from . import agreement, benchmark

__all__ = ["benchmark_rows", "benchmarking"]

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
) -> tuple[list[Candidate], list[CudnnError]]:
    """Time candidates on operands; return each with its time or its error, and all errors.

    Unless ``every`` is set, candidates that earlier times prune are skipped and have neither. Results go to
    temporary memory, because each run would change the operands of the next one with beta, and are compared:
    a candidate whose result differs is rejected.
    """
    compared = len(rows) > 1 and agreement.comparable(problem)
    scratch: agreement.ScratchResults | None = None
    if compared or beta:
        try:
            scratch = agreement.ScratchResults(problem, pointers, context.stream)
        except AllocationError:
            if beta:
                raise  # without beta, results are not compared
    engines = [_kind(row) for row in rows]

    def measured(scratch: agreement.ScratchResults | None) -> list[benchmark.Time | None]:
        memory = pointers if scratch is None else scratch.pointers
        runs = [_run(make, problem, row, context, memory, alpha, beta) for row in rows]
        times = benchmark.benchmark(runs, context.stream, () if every else engines)
        return times if scratch is None or not compared else _compared(scratch, rows, runs, engines, times)

    try:
        with benchmarking, timing():
            times = measured(scratch)
            if scratch is not None and not beta and any(isinstance(one, AllocationError) for one in times):
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
    make: Callable[[Any, Candidate, Context], Plan],
    problem: Problem,
    row: Candidate,
    context: Context,
    pointers: Sequence[int],
    alpha: float,
    beta: float,
) -> Callable[[], None]:
    """Return a function that runs a candidate, whose plan its first call makes."""
    plan = cache(partial(make, problem, row, context))
    return lambda: plan().run(context, pointers, alpha, beta)


def _compared(
    scratch: agreement.ScratchResults,
    rows: Sequence[Candidate],
    runs: Sequence[Callable[[], None]],
    engines: Sequence[benchmark.EngineGroup],
    times: list[benchmark.Time | None],
) -> list[benchmark.Time | None]:
    """Return the times, with errors for the candidates whose results differ."""
    timed = {i: runs[i] for i, time in enumerate(times) if isinstance(time, float)}
    errors = agreement.outliers(scratch, timed, [str(row) for row in rows], engines)
    return [errors.get(i, time) for i, time in enumerate(times)]


def _kind(row: Candidate) -> benchmark.EngineGroup:
    """Return the group of a candidate; compiled engines are a group, often good if others are not."""
    return benchmark.EngineGroup(
        "compiled" if row.compiled else row.backend, row.algorithm.partition(" knobs")[0]
    )
