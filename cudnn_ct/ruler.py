"""One ruler for all ways to compute a problem: GPU time of several calls in a row, by events.

cuDNN's own searches overstate by up to a factor of two, and differently for different families. Calls in a
row are what programs do, and where a kernel is quicker than the host, they show the host's time as it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf
from statistics import median
from time import perf_counter

from . import stream as streams
from .errors import CudnnError
from .stream import Stream

__all__ = ["race"]

SLOW = 2  # who is slower than the quickest by more than this factor is not looked at twice
SURE = 1  # nor at once, where that is milliseconds more, and so no accident of the host
HOPELESS = 10  # of a kind whose best is slower than the quickest by this factor, no other is tried
IN_A_ROW = 4  # and after so many such kinds, none that is new
CLOSE = 1.25  # who is within this factor of the quickest is looked at again
CLOSER = 1.1  # and within this one after a round, in the next one too
ROUNDS = 3
ROUND = 0.5  # milliseconds for each in a round
MOST = 20  # calls in a round

Run = Callable[[], object]
Time = float | CudnnError


def race(runs: Sequence[Run], stream: Stream, kinds: Sequence[Hashable] = ()) -> list[Time | None]:
    """Time each of ``runs``, which enqueue work on ``stream``: milliseconds a call, or why there are none.

    Each runs once unmeasured, to load its kernels. All are then looked at briefly, and those near the
    quickest again, in turns, so that a clock that rises or falls meets all of them alike.

    With ``kinds``, one for each, a run is left out, and has None, where all before it of its kind were
    hopelessly slow, or it is of a new kind and several kinds in a row were.
    """
    times: list[Time | None] = []
    best, best_of, in_a_row = inf, dict[Hashable, float](), 0
    for run, kind in zip(runs, kinds or range(len(runs)), strict=True):
        known = best_of.get(kind)
        if kinds and (in_a_row >= IN_A_ROW if known is None else known > HOPELESS * best):
            times.append(None)
            continue
        time = _glance(run, best, stream)
        times.append(time)
        if isinstance(time, float):
            best, best_of[kind] = min(best, time), min(best_of.get(kind, inf), time)
            in_a_row = in_a_row + (known is None) if time > HOPELESS * best else 0
    near = {i: runs[i] for i, time in enumerate(times) if isinstance(time, float) and time <= CLOSE * best}
    if len(near) > 1:
        for i, ranked in _ranked(near, best, stream).items():
            times[i] = ranked
    return times


def _glance(run: Run, best: float, stream: Stream) -> Time:
    try:
        run()
        enqueued = perf_counter()
        streams.synchronize(stream)
        left = (perf_counter() - enqueued) * 1000
        if left > SLOW * best + SURE:
            return left
        time = _loop(run, 1, stream)
        return time if time > SLOW * best else min(time, _loop(run, 2, stream))
    except CudnnError as error:
        return error


def _ranked(runs: dict[int, Run], best: float, stream: Stream) -> dict[int, Time]:
    """The times of those that are close, by rounds; who falls behind is not in the next, and stays behind."""
    calls = max(1, min(MOST, int(ROUND / max(best, 1e-6))))
    samples: dict[int, list[Time]] = {i: [] for i in runs}
    times: dict[int, Time] = {}
    racing = list(runs)
    for _ in range(ROUNDS):
        for i in racing:
            samples[i].append(_guarded(runs[i], calls, stream))
            times[i] = _middle(samples[i])
        finished = {i: time for i in racing if isinstance(time := times[i], float)}
        racing = [i for i, time in finished.items() if time <= CLOSER * min(finished.values())]
    slowest = max((time for i in racing if isinstance(time := times[i], float)), default=0.0)
    return {
        i: max(time, slowest) if isinstance(time, float) and i not in racing else time
        for i, time in times.items()
    }


def _guarded(run: Run, calls: int, stream: Stream) -> Time:
    try:
        return _loop(run, calls, stream)
    except CudnnError as error:
        return error


def _middle(samples: Sequence[Time]) -> Time:
    """The median, or the first failure."""
    failures = [sample for sample in samples if not isinstance(sample, float)]
    return failures[0] if failures else median(sample for sample in samples if isinstance(sample, float))


def _loop(run: Run, calls: int, stream: Stream) -> float:
    def work() -> None:
        for _ in range(calls):
            run()

    return streams.elapsed(stream, work) / calls
