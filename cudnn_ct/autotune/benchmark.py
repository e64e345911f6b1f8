"""One ruler for all ways to compute a problem: GPU time by events, of calls in a row and of cold ones.

cuDNN's own searches overstate by up to a factor of two, and differently for different families. Calls in a
row are what programs do, and where a kernel is quicker than the host, they show the host's time as it counts.
But they find their operands in the cache, where programs had other work since: so the same call is also timed
after the cache was filled with something else, and the longer of the two is its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf, nextafter
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from ..cuda import allocator, memory
from ..cuda import device as devices
from ..cuda import event as events
from ..cuda.stream import Stream
from ..errors import AllocationError, CudnnError, without_frames

__all__ = ["EngineGroup", "benchmark"]

HOST_JITTER_MS = 1  # milliseconds that an accident of the host may add
SLOW = 2  # who is slower than the quickest by more than this factor is not looked at twice
PRUNE_FACTOR = 10  # of a kind whose best is slower than the quickest by this factor, no other is tried
IN_A_ROW = 4  # and after so many such groups of a backend in a row, none of it that is new
REMEASURE_WITHIN = 1.25  # who is within this factor of the quickest is looked at again
KEEP_WITHIN = 1.1  # and within this one after a round, in the next one too
ROUNDS = 3
ROUND = 0.5  # milliseconds of calls in a row for each in a round
MAX_CALLS = 20  # calls in a row in a round
COLD_SAMPLES = 3  # and calls with a cold cache at most
L2_FLUSH_FACTOR = 2  # times the cache's size is written to empty it
MAX_MEMORY_SHARE = 16  # but not where that is more than such a part of the free memory: runs may need it

Run = Callable[[], object]
Time = float | CudnnError


class EngineGroup(NamedTuple):
    """What some runs are variants of."""

    backend: str
    name: str


def benchmark(
    runs: Sequence[Run], stream: Stream, kinds: Sequence[EngineGroup | None] = ()
) -> list[Time | None]:
    """Time each of ``runs``, which enqueue work on ``stream``: milliseconds a call, or why there are none.

    Each runs once unmeasured, to load its kernels. All are then looked at briefly, and those near the
    quickest again, in turns, so that a clock that rises or falls meets all of them alike.

    With ``kinds``, a backend and a name in it for each, a run is left out, and has None, where all before it
    of its kind were hopelessly slow, or it is of a new kind and several of its backend in a row were.
    """
    clock = _GpuTimer(stream)
    times: list[Time | None] = []
    looks: dict[int, _Samples] = {}
    best, hopes = inf, _Pruner()
    for i, (run, kind) in enumerate(zip(runs, kinds or [None] * len(runs), strict=True)):
        if kind and not hopes.remain(kind, best):
            times.append(None)
            continue
        try:
            looks[i] = _quick_measure(run, best, clock)
        except CudnnError as error:
            times.append(without_frames(error))
            continue
        times.append(time := looks[i].least)
        hopes.note(kind, time, best)
        best = min(best, time)
    near = {i: one for i, one in looks.items() if one.least <= REMEASURE_WITHIN * best}
    if len(near) > 1:
        ranked = _remeasure(near, best, clock)
        slowest = max((time for time in ranked.values() if isinstance(time, float)), default=0.0)
        for i, known in enumerate(times):  # who was out before the clock fell, say, stays behind
            if known is not None:
                times[i] = ranked[i] if i in ranked else _clamp_behind(known, slowest)
    return times


def _clamp_behind(time: Time, slowest: float) -> Time:
    """A time that is longer than another one."""
    return max(time, nextafter(slowest, inf)) if isinstance(time, float) else time


class _GpuTimer:
    """Times runs on a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._size = L2_FLUSH_FACTOR * devices.cache_size(stream.device)
        self._scratch: Any = None
        try:
            if self._size * MAX_MEMORY_SHARE <= memory.memory_info(stream.device)[0]:
                self._scratch = allocator.allocate(self._size, stream, "emptying the cache")
        except AllocationError:
            pass  # then all are timed with operands in the cache

    def loop(self, run: Run, calls: int) -> float:
        """Milliseconds of a call, of some in a row."""

        def work() -> None:
            for _ in range(calls):
                run()

        return events.elapsed(self._stream, work) / calls

    def cold(self, run: Run) -> float:
        """Milliseconds of one call that finds its operands in memory.

        What fills the cache takes the device so long that the host enqueues the call meanwhile: this is the
        device's time alone.
        """
        if self._scratch is None:
            return 0.0
        memory.fill(int(self._scratch.handle), b"\0\0\0\0", self._size // 4, self._stream)
        return events.elapsed(self._stream, run)

    def first(self, run: Run) -> float:
        """What a first run took beside what the host did, such as loading kernels: no more than it takes.

        The host's clock starts before the device's, so that a wait for another thread of Python, in between,
        is not taken for the run's.
        """
        begin, host = perf_counter(), 0.0

        def work() -> None:
            nonlocal host
            run()
            host = perf_counter() - begin

        return events.elapsed(self._stream, work) - host * 1000


class _Samples:
    """A run, and what it took in each look at it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.loops: list[float] = []
        self.colds: list[float] = []

    @property
    def least(self) -> float:
        """The best that it has been: what disturbs a look makes it longer."""
        return max(min(self.loops), min(self.colds, default=0.0))

    @property
    def middle(self) -> float:
        """What it mostly took, after the glance at fewer calls."""
        return max(median(self.loops[-ROUNDS:]), median(self.colds or [0.0]))


class _Pruner:
    """Which kinds are worth a run, by the times of others."""

    def __init__(self) -> None:
        self._best: dict[EngineGroup, float] = {}
        self._in_a_row = Counter[str]()  # pruned groups of a backend

    def remain(self, kind: EngineGroup, best: float) -> bool:
        if kind in self._best:
            return not _prune(self._best[kind], best)
        return self._in_a_row[kind.backend] < IN_A_ROW

    def note(self, kind: EngineGroup | None, time: float, best: float) -> None:
        if kind is None:
            return
        if _prune(time, best):
            self._in_a_row[kind.backend] += kind not in self._best
        else:
            self._in_a_row[kind.backend] = 0
        self._best[kind] = min(self._best.get(kind, inf), time)


def _prune(time: float, best: float) -> bool:
    return time > PRUNE_FACTOR * best + HOST_JITTER_MS


def _quick_measure(run: Run, best: float, clock: _GpuTimer) -> _Samples:
    """Look at a run for as long as it may be the quickest.

    The host may be away while the device waits for it, for an accident or another thread of Python. So a look
    that puts a run out, and that what else is known of it does not bear out, is taken once more.
    """
    looks = _Samples(run)
    first = clock.first(run)
    if first > SLOW * best + HOST_JITTER_MS:
        looks.loops.append(first)
        return looks
    looks.loops.append(clock.loop(run, 1))
    if looks.least > SLOW * max(best, first):
        looks.loops.append(clock.loop(run, 1))
    if looks.least > SLOW * best:
        return looks
    looks.colds.append(clock.cold(run))
    looks.loops.append(clock.loop(run, 2))
    if looks.colds[0] > min(REMEASURE_WITHIN * best, SLOW * min(looks.loops)):
        looks.colds.append(clock.cold(run))
    return looks


def _remeasure(racing: dict[int, _Samples], best: float, clock: _GpuTimer) -> dict[int, Time]:
    """The times of those that are close, by rounds; who falls behind is not in the next, and stays behind."""
    calls = max(1, min(MAX_CALLS, int(ROUND / max(best, 1e-6))))
    times: dict[int, Time] = {}
    for _ in range(ROUNDS):
        for i, looks in list(racing.items()):
            try:
                looks.loops.append(clock.loop(looks.run, calls))
                looks.colds += (clock.cold(looks.run) for _ in range(min(calls, COLD_SAMPLES)))
                times[i] = looks.middle
            except CudnnError as error:
                times[i] = without_frames(error)
                del racing[i]
        best = min((looks.least for looks in racing.values()), default=inf)
        racing = {i: looks for i, looks in racing.items() if looks.least <= KEEP_WITHIN * best}
    slowest = max((looks.middle for looks in racing.values()), default=0.0)
    return {i: time if i in racing else _clamp_behind(time, slowest) for i, time in times.items()}
