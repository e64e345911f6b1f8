"""One ruler for all ways to compute a problem: GPU time of several calls in a row, by events.

cuDNN's own searches overstate by up to a factor of two, and differently for different families. Calls in a
row are what programs do, and where a kernel is quicker than the host, they show the host's time as it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf, nextafter
from statistics import median
from time import perf_counter
from typing import NamedTuple

from . import stream as streams
from .errors import CudnnError
from .stream import Stream

__all__ = ["Kind", "race"]

STUMBLE = 1  # milliseconds that an accident of the host may add
SLOW = 2  # who is slower than the quickest by more than this factor is not looked at twice
HOPELESS = 10  # of a kind whose best is slower than the quickest by this factor, no other is tried
IN_A_ROW = 4  # and after so many such kinds of a family, none of it that is new
CLOSE = 1.25  # who is within this factor of the quickest is looked at again
CLOSER = 1.1  # and within this one after a round, in the next one too
ROUNDS = 3
ROUND = 0.5  # milliseconds for each in a round
MOST = 20  # calls in a round

Run = Callable[[], object]
Time = float | CudnnError


class Kind(NamedTuple):
    """What some runs are variants of."""

    family: str
    name: str


def race(runs: Sequence[Run], stream: Stream, kinds: Sequence[Kind | None] = ()) -> list[Time | None]:
    """Time each of ``runs``, which enqueue work on ``stream``: milliseconds a call, or why there are none.

    Each runs once unmeasured, to load its kernels. All are then looked at briefly, and those near the
    quickest again, in turns, so that a clock that rises or falls meets all of them alike.

    With ``kinds``, a family and a name in it for each, a run is left out, and has None, where all before it
    of its kind were hopelessly slow, or it is of a new kind and several of its family in a row were.
    """
    times: list[Time | None] = []
    best, hopes = inf, _Hopes()
    for run, kind in zip(runs, kinds or [None] * len(runs), strict=True):
        if kind and not hopes.remain(kind, best):
            times.append(None)
            continue
        time = _glance(run, best, stream)
        times.append(time)
        if isinstance(time, float):
            hopes.note(kind, time, best)
            best = min(best, time)
    near = {i: runs[i] for i, time in enumerate(times) if isinstance(time, float) and time <= CLOSE * best}
    if len(near) > 1:
        for i, ranked in _ranked(near, best, stream).items():
            times[i] = ranked
    return times


class _Hopes:
    """Which kinds are worth a run, by the times of others."""

    def __init__(self) -> None:
        self._best: dict[Kind, float] = {}
        self._in_a_row = Counter[str]()  # kinds of a family that were hopeless

    def remain(self, kind: Kind, best: float) -> bool:
        if kind in self._best:
            return not _hopeless(self._best[kind], best)
        return self._in_a_row[kind.family] < IN_A_ROW

    def note(self, kind: Kind | None, time: float, best: float) -> None:
        if kind is None:
            return
        if _hopeless(time, best):
            self._in_a_row[kind.family] += kind not in self._best
        else:
            self._in_a_row[kind.family] = 0
        self._best[kind] = min(self._best.get(kind, inf), time)


def _hopeless(time: float, best: float) -> bool:
    return time > HOPELESS * best + STUMBLE


def _glance(run: Run, best: float, stream: Stream) -> Time:
    try:
        first = _first(run, stream)
        if first > SLOW * best + STUMBLE:
            return first
        time = _loop(run, 1, stream)
        return time if time > SLOW * best else min(time, _loop(run, 2, stream))
    except CudnnError as error:
        return error


def _first(run: Run, stream: Stream) -> float:
    """What a first run took beside what the host did, such as loading kernels: no more than it takes.

    The host's clock starts before the device's, so that a wait for another thread of Python, in between, is
    not taken for the run's.
    """
    begin, host = perf_counter(), 0.0

    def work() -> None:
        nonlocal host
        run()
        host = perf_counter() - begin

    return streams.elapsed(stream, work) - host * 1000


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
        i: max(time, nextafter(slowest, inf)) if isinstance(time, float) and i not in racing else time
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
