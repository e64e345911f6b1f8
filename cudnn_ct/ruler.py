"""One ruler for all ways to compute a problem: GPU time of several calls in a row, by events.

cuDNN's own searches overstate by up to a factor of two, and differently for different families. Calls in a
row are what programs do, and where a kernel is quicker than the host, they show the host's time as it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from statistics import median

from . import stream as streams
from .errors import CudnnError
from .stream import Stream

__all__ = ["race"]

SLOW = 2  # who is slower than the quickest by more than this factor is not looked at twice
CLOSE = 1.25  # who is within this factor of the quickest is looked at again
ROUNDS = 3
ROUND = 0.5  # milliseconds for each in a round
MOST = 20  # calls in a round


def race(runs: Sequence[Callable[[], object]], stream: Stream) -> list[float | CudnnError]:
    """Time each of ``runs``, which enqueue work on ``stream``: milliseconds a call, or why there are none.

    Each runs once unmeasured, to load its kernels. All are then looked at briefly, and those near the
    quickest again, in turns, so that a clock that rises or falls meets all of them alike.
    """
    times: list[float | CudnnError] = []
    best = inf
    for run in runs:
        times.append(time := _glance(run, best, stream))
        best = min(best, time) if isinstance(time, float) else best
    near = [i for i, time in enumerate(times) if isinstance(time, float) and time <= CLOSE * best]
    if len(near) > 1:
        calls = max(1, min(MOST, int(ROUND / max(best, 1e-6))))
        rounds = [[_guarded(runs[i], calls, stream) for i in near] for _ in range(ROUNDS)]
        for place, i in enumerate(near):
            times[i] = _middle([one[place] for one in rounds])
    return times


def _glance(run: Callable[[], object], best: float, stream: Stream) -> float | CudnnError:
    try:
        run()
        time = _loop(run, 1, stream)
        return time if time > SLOW * best else min(time, _loop(run, 2, stream))
    except CudnnError as error:
        return error


def _guarded(run: Callable[[], object], calls: int, stream: Stream) -> float | CudnnError:
    try:
        return _loop(run, calls, stream)
    except CudnnError as error:
        return error


def _middle(samples: Sequence[float | CudnnError]) -> float | CudnnError:
    """The median, or the first failure."""
    failures = [sample for sample in samples if not isinstance(sample, float)]
    return failures[0] if failures else median(sample for sample in samples if isinstance(sample, float))


def _loop(run: Callable[[], object], calls: int, stream: Stream) -> float:
    def work() -> None:
        for _ in range(calls):
            run()

    return streams.elapsed(stream, work) / calls
