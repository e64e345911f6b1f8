"""Timing of alternating contenders: GPU time by events around loops of calls, and host time."""

from __future__ import annotations

import fcntl
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .figures import Limit, quotient
from .results import Record, explain

LOOP = 1500  # target duration of a loop of calls in microseconds
CALLS = (5, 500)  # minimum and maximum number of calls in a loop
LOOPS = 7
LONG, LOOPS_OF_LONG = 25_000, 3  # loops longer than LONG microseconds are repeated less often
AGAIN = 5  # number of repeated measurements of a row above its limit

_lock: list[Path] = []  # the file that is locked during measurements, if there is one

Call = Callable[[int], Any]  # takes the index of a set of operands


def use_lock(path: Path | None) -> None:
    """Let measurements lock a file, which other processes lock during theirs; None for no lock."""
    _lock[:] = [] if path is None else [path]


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process measures, and keep them waiting within the block."""
    with ExitStack() as stack:
        for path in _lock:
            file = stack.enter_context(path.open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)  # closing the file unlocks it
        yield


class Contender(NamedTuple):
    """Call to time. ``benchmark`` is PyTorch's flag, or None if it has no effect."""

    call: Call
    benchmark: bool | None = None


def race(
    record: Record,
    contenders: dict[str, Contender],
    count: int,
    *,
    first: Sequence[str] = (),
    limit: Limit | None = None,
) -> Record:
    """Time the contenders alternately, and store the times in the record.

    ``count`` is the number of sets of operands. The contenders run in the order of ``contenders``, except
    that ``first`` is the order of their first calls. A contender that fails is dropped, and the record has
    the reason. A row that exceeds ``limit`` is measured again.
    """
    turn = itertools.cycle(range(count))
    for name in sorted(contenders, key=first.index) if first else list(contenders):
        cost = attempt(record, contenders, name, first_call)
        record["first_ms"] |= {} if cost is None else {name: cost}
    with alone():
        return _measured(record, contenders, count, turn, limit)


def _measured(
    record: Record, contenders: dict[str, Contender], count: int, turn: Iterator[int], limit: Limit | None
) -> Record:
    # Run one loop of every contender, so that all memory is allocated before the measurement.
    tried = [attempt(record, contenders, name, loop, turn, max(3, count)) for name in list(contenders)]
    fastest = min((estimate for estimate in tried if estimate), default=None)
    if fastest is None:
        return record
    calls = min(max(round(LOOP / fastest), CALLS[0]), CALLS[1])
    loops = LOOPS if calls * fastest < LONG else LOOPS_OF_LONG
    record |= {"count": count, "calls": calls, "loops": loops}
    record["times"] = in_turns(record, contenders, turn, calls, loops)
    if limit is not None and limit.exceeded(record):
        two = {name: contenders[name] for name in (limit.theirs, limit.ours)}
        again = [in_turns(record, two, turn, calls, loops) for _ in range(AGAIN)]
        ratios = [quotient(times, limit.ours, limit.theirs) for times in again]
        record["remeasured"] = [one for one in ratios if one]
    return record


def in_turns(
    record: Record, contenders: dict[str, Contender], turn: Iterator[int], calls: int, loops: int
) -> dict[str, float]:
    """Return the median GPU time per call in microseconds. Each round has one loop of every contender."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(loops):
        for name in list(contenders):
            one = attempt(record, contenders, name, loop, turn, calls)
            times[name] += [] if one is None else [one]
    return {name: statistics.median(times[name]) for name in contenders}


def attempt(
    record: Record, contenders: dict[str, Contender], name: str, work: Callable[..., float], *arguments: Any
) -> float | None:
    """Run a contender with its flag. On an error, store the reason in the record and drop the contender."""
    try:
        return at_home(contenders[name], work, *arguments)
    except Exception as error:
        record["errors"][name] = explain(error)
        record["lost"] = lost_context()
        del contenders[name]
        return None


def at_home(contender: Contender, work: Callable[..., float], *arguments: Any) -> float:
    """Run ``work(call, *arguments)`` with PyTorch's flag set.

    PyTorch caches one plan per convolution and thread, regardless of the flag. Calls without benchmark
    therefore run in another thread. Otherwise they would use the plan of the calls with benchmark.
    """
    import torch

    def run() -> float:
        with torch.inference_mode():
            return work(contender.call, *arguments)

    if contender.benchmark is not None:
        torch.backends.cudnn.benchmark = contender.benchmark
    return _heuristics_thread().submit(run).result() if contender.benchmark is False else run()


@functools.cache
def _heuristics_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1)


def keeping(call: Call, count: int) -> Call:
    """Return a call that keeps each result until the next use of its operands, so that results rotate too."""
    kept: list[Any] = [None] * count

    def run(i: int) -> None:
        kept[i] = call(i)

    return run


def first_call(call: Call) -> float:
    """Return the duration of a first call in milliseconds, including all preparation."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    call(0)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def loop(call: Call, turn: Iterator[int], calls: int) -> float:
    """Return the GPU time per call of one loop in microseconds.

    An untimed call runs first. The host enqueues the timed calls while it runs, so that the GPU does not wait
    for the first of them.
    """
    start, end = _events()
    call(next(turn))
    start.record()
    for i in itertools.islice(turn, calls):
        call(i)
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end) / calls


@functools.cache
def _events() -> tuple[Any, Any]:
    import torch

    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def lost_context() -> str:
    """Return the error of a lost CUDA context, as after an illegal access, or an empty string."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception as error:
        return explain(error)
    return ""


class HostCall(NamedTuple):
    """Call to time on the host. ``sets`` returns the operands of the calls of a loop, before the loop.

    With ``until_done``, the time of a loop ends when the GPU has done its work.
    """

    call: Callable[..., Any]
    sets: Callable[[], Sequence[Sequence[Any]]]
    until_done: bool = False


def host_times(calls: dict[str, HostCall], rounds: int) -> dict[str, float]:
    """Return the median host time per call in microseconds. Each round has one loop of every contender."""
    import torch

    with torch.inference_mode():
        taken = [[host_loop(*one) for one in calls.values()] for _ in range(rounds)]
    medians = map(statistics.median, zip(*taken, strict=True))
    return dict(zip(calls, medians, strict=True))


def host_loop(
    call: Callable[..., Any], sets: Callable[[], Sequence[Sequence[Any]]], until_done: bool = False
) -> float:
    """Return the host time per call of one loop in microseconds. The GPU is idle at its start."""
    import torch

    loop = sets()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for operands in loop:
        call(*operands)
    if until_done:
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / len(loop)
