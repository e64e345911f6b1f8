"""Benchmarks candidate algorithms with CUDA events, with warm and cold L2 cache, and compares their results.

cuDNN's own searches overstate times by up to a factor of two, and differently for each kind of algorithm.
Calls in a row are what programs issue: where a kernel is faster than the host, they include the host's time.
But such calls find their operands in the L2 cache, which other work would have evicted. So a call is also
timed after the cache was overwritten, and the longer of the two times counts. Calls that repeat are launched
as CUDA graphs, and are timed so: an engine took 0.59 ms launched by the host, and 0.07 as a graph.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import inf, nextafter, prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cuda import allocator, memory
from ..cuda import event as events
from ..cuda import stream as streams
from ..cuda.stream import Stream
from ..dtypes import GRAPH_DTYPES
from ..errors import AllocationError, CudnnError, NotSupportedError, without_frames
from ..plans.base import Problem, difference, tensors_of, tolerance_of
from ..shapes.specs import TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

HOST_JITTER_MS = 1  # milliseconds that a descheduled host thread may add to a sample
SHORT_MS = 1  # milliseconds of a run that the host may determine
SLOW = 2  # candidates slower than the best by this factor are measured only once
MANIFOLD = ("graph", "unfused")  # backends whose engines have many variants, which load kernels of their own:
VARIANTS_WITHIN = 1.3  # they are tried while the best one of the engine is within this factor of the best
BRIEF_MS = 0.05  # milliseconds of a best run below which few variants are tried: they gain little
BRIEF_TRIALS = 3  # variants of an engine then
FAR_BEHIND = 10  # a group whose first is slower than the best by this factor is far behind
FAR_BEHIND_LIMIT = 4  # after so many of these in a row, new groups of the backend are skipped
REMEASURE_WITHIN = 1.25  # candidates within this factor of the best are measured again
KEEP_WITHIN = 1.1  # and those within this one after a round are in the next round
ROUNDS = 3
ROUND = 0.5  # milliseconds of calls in a row for each candidate in a round
MAX_CALLS = 20  # calls in a row in a round
COLD_SAMPLES = 3  # calls with a cold cache in a round
L2_FLUSH_FACTOR = 2  # times the cache's size is written to evict its contents
MAX_MEMORY_SHARE = 16  # the flush may take 1 / 16 of the free memory: candidates need the rest

Run = Callable[[], object]
Time = float | CudnnError


class EngineGroup(NamedTuple):
    """The backend of candidates, and the name of the engine that they are variants of."""

    backend: str
    name: str


def benchmark(
    runs: Sequence[Run],
    stream: Stream,
    kinds: Sequence[EngineGroup] = (),
    admit: Callable[[int, float], object] | None = None,
    captured: Callable[[Run], Run] | None = None,
) -> list[Time | None]:
    """Measure ``runs``, which enqueue work on ``stream``; return milliseconds per call, or the error.

    Each runs once unmeasured, to load its kernels. All are measured briefly, and those near the best again,
    in interleaved rounds, so that a change of the GPU clock affects all of them equally.

    With ``kinds``, the group of each run, a run is skipped and has None if its group is slow, or if it is in
    a new group and several groups of its backend in a row were far behind. ``admit`` is called with the place
    of each run and the best time so far; a CudnnError that it raises is the result of the run. ``captured``
    returns what is measured in the place of a short run.
    """
    clock, pruner, best = _GpuTimer(stream), _Pruner(), inf
    times: list[Time | None] = [None] * len(runs)
    samples: dict[int, _Samples] = {}
    for i, run in enumerate(runs):
        if kinds and not pruner.keeps(kinds[i], best):
            continue
        try:
            if admit is not None:
                admit(i, best)
            samples[i] = _quick_measure(run, best, clock, captured)
        except CudnnError as error:
            times[i] = without_frames(error)
            continue
        times[i] = time = samples[i].minimum
        if kinds:
            pruner.note(kinds[i], time, best)
        best = min(best, time)
    near = {i: one for i, one in samples.items() if one.minimum <= REMEASURE_WITHIN * best}
    if len(near) > 1:
        ranked = _remeasure(near, best, clock)
        slowest = max((time for time in ranked.values() if isinstance(time, float)), default=0.0)
        # Keep already rejected candidates behind the winner, even if the GPU clock dropped meanwhile.
        for i, known in enumerate(times):
            if known is not None:
                times[i] = ranked[i] if i in ranked else _clamp_behind(known, slowest)
    return times


def _clamp_behind(time: Time, slowest: float) -> Time:
    """Return a time that is longer than ``slowest``; an error as it is."""
    return max(time, nextafter(slowest, inf)) if isinstance(time, float) else time


class _GpuTimer:
    """Measures runs on a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._size = L2_FLUSH_FACTOR * streams.cache_size(stream.device)
        self._scratch: Any = None
        try:
            if self._size * MAX_MEMORY_SHARE <= memory.memory_info(stream.device)[0]:
                self._scratch = allocator.allocate(self._size, stream, "flushing the L2 cache")
        except AllocationError:
            pass  # all are measured with a warm cache only

    def loop(self, run: Run, calls: int) -> float:
        """Return the milliseconds per call, of several in a row."""

        def work() -> None:
            for _ in range(calls):
                run()

        return events.elapsed(self._stream, work) / calls

    def cold(self, run: Run) -> float:
        """Return the milliseconds of one call with a cold cache; 0 if the cache cannot be flushed."""
        # The host enqueues the call while the device still flushes the cache, so this is device time alone.
        if self._scratch is None:
            return 0.0
        memory.fill(int(self._scratch.handle), b"\0\0\0\0", self._size // 4, self._stream)
        return events.elapsed(self._stream, run)

    def first(self, run: Run) -> float:
        """Return an upper bound of the device time of the first run, with host time subtracted."""
        # The host loads kernels in a first run. Its clock starts before the device's, so that a wait for
        # another Python thread in between is not counted.
        begin, host = perf_counter(), 0.0

        def work() -> None:
            nonlocal host
            run()
            host = perf_counter() - begin

        return events.elapsed(self._stream, work) - host * 1000


class _Samples:
    """A run, and its measured times."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.loops: list[float] = []
        self.colds: list[float] = []

    @property
    def minimum(self) -> float:
        """The shortest time: disturbances only make a sample longer."""
        return max(min(self.loops), min(self.colds, default=0.0))

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return max(statistics.median(self.loops[-ROUNDS:]), statistics.median(self.colds or [0.0]))


class _Pruner:
    """Decides which groups of candidates are measured, from the times of measured ones."""

    def __init__(self) -> None:
        self._best: dict[EngineGroup, float] = {}
        self._trials = Counter[EngineGroup]()
        self._in_a_row = Counter[str]()  # groups far behind, of each backend

    def keeps(self, kind: EngineGroup, best: float) -> bool:
        if kind not in self._best:
            return self._in_a_row[kind.backend] < FAR_BEHIND_LIMIT
        if kind.backend not in MANIFOLD:
            return not _far_behind(self._best[kind], best)
        few = best >= BRIEF_MS or self._trials[kind] < BRIEF_TRIALS
        return few and self._best[kind] <= VARIANTS_WITHIN * best

    def note(self, kind: EngineGroup, time: float, best: float) -> None:
        if _far_behind(time, best):
            self._in_a_row[kind.backend] += kind not in self._best
        else:
            self._in_a_row[kind.backend] = 0
        self._best[kind] = min(self._best.get(kind, inf), time)
        self._trials[kind] += 1


def _far_behind(time: float, best: float) -> bool:
    return time > FAR_BEHIND * best + HOST_JITTER_MS


def _quick_measure(
    run: Run, best: float, clock: _GpuTimer, captured: Callable[[Run], Run] | None
) -> _Samples:
    """Measure a run until it is clearly slower than ``best``."""
    # A descheduled host thread can inflate one sample. Before a run is rejected on a single sample that
    # contradicts its other samples, it is measured again.
    samples = _Samples(run)
    first = clock.first(run)
    if first > SLOW * best + HOST_JITTER_MS:
        samples.loops.append(first)
        return samples
    if captured and first < SHORT_MS:
        samples.run = run = captured(run)
    samples.loops.append(clock.loop(run, 1))
    if samples.minimum > SLOW * max(best, first):
        samples.loops.append(clock.loop(run, 1))
    if samples.minimum > SLOW * best:
        return samples
    samples.colds.append(clock.cold(run))
    samples.loops.append(clock.loop(run, 2))
    if samples.colds[0] > min(REMEASURE_WITHIN * best, SLOW * min(samples.loops)):
        samples.colds.append(clock.cold(run))
    return samples


def _remeasure(near: dict[int, _Samples], best: float, clock: _GpuTimer) -> dict[int, Time]:
    """Measure candidates that are close in rounds; one that falls behind is not in the next round."""
    # It keeps a time longer than those of the candidates in the last round.
    calls = max(1, min(MAX_CALLS, int(ROUND / max(best, 1e-6))))
    times: dict[int, Time] = {}
    for _ in range(ROUNDS):
        for i, samples in list(near.items()):
            try:
                samples.loops.append(clock.loop(samples.run, calls))
                samples.colds += (clock.cold(samples.run) for _ in range(min(calls, COLD_SAMPLES)))
                times[i] = samples.median
            except CudnnError as error:
                times[i] = without_frames(error)
                del near[i]
        best = min((samples.minimum for samples in near.values()), default=inf)
        near = {i: samples for i, samples in near.items() if samples.minimum <= KEEP_WITHIN * best}
    slowest = max((samples.median for samples in near.values()), default=0.0)
    return {i: time if i in near else _clamp_behind(time, slowest) for i, time in times.items()}


# --- agreement of results ----------------------------------------------------------------------------------
# cuDNN has engines that are wrong for some problems, in each version other ones. Before facts name them, a
# comparison finds those that differ from the other engines, so that they are not selected.


SAMPLES = 16  # parts of a large result that are compared, evenly spaced
SAMPLE = 2**16  # bytes of each part
BRIEF = {"samples": 32, "sample": 2**13}  # those for each candidate of a benchmark: in more places, but quick


class DifferentResultError(NotSupportedError):
    """The result of a candidate differs from that of other engines."""


class ScratchResults:
    """Scratch memory for the results of candidates: their runs must not change the operands of the next one.

    ``pointers`` are the pointers of a run whose results are in temporary memory. Of each result,
    up to ``samples`` parts of ``sample`` bytes are compared.
    """

    def __init__(
        self,
        problem: Any,
        pointers: Sequence[int],
        stream: Stream,
        *,
        samples: int = SAMPLES,
        sample: int = SAMPLE,
    ) -> None:
        specs: tuple[TensorSpec, ...] = problem.results
        self.specs = specs
        self._samples = samples, sample
        self.tolerance = tolerance_of(_tensors(problem))
        self._stream = stream
        self._memory = [_Scratch.of(spec, stream) for spec in specs]
        self.pointers = [*pointers[: len(pointers) - len(specs)], *(one.pointer for one in self._memory)]

    def computed_by(self, run: Callable[[], object]) -> list[Bytes]:
        """Run a candidate on prepared memory, and return the bytes of its results, or of samples."""
        for one in self._memory:
            one.prepare(self._stream)
        run()
        return [one.content(self._stream, *self._samples) for one in self._memory]


def _tensors(problem: Any) -> Iterator[TensorSpec]:
    """Return the tensors of a problem, of the convolution in it, and the intermediates of a graph."""
    yield from problem.results
    for one in (problem, getattr(problem, "core", problem)):
        yield from tensors_of(one).values()
    yield from (value.spec for value in getattr(problem, "values", ()))


class _Scratch(NamedTuple):
    """Memory for a tensor. ``pointer`` is the address of its first element, ``start`` its lowest address."""

    buffer: Any
    pointer: int
    start: int
    nbytes: int
    pattern: bytes

    @classmethod
    def of(cls, spec: TensorSpec, stream: Stream) -> _Scratch:
        """Allocate memory for a tensor."""
        # Its bytes before each run are those of ordinary numbers, for elements that a candidate does not
        # write or adds to. Gaps between elements are 0, which leaves the largest magnitude as it is.
        (low, high), itemsize = spec.extent, GRAPH_DTYPES[spec.dtype].itemsize
        nbytes = (high - low) * itemsize or (high - low + 1) // 2  # two elements of 4 bits share a byte
        buffer = allocator.allocate(nbytes, stream, "a scratch result")
        start = int(buffer.handle)
        pattern = b"\x3f" if prod(spec.shape) == high - low else b"\0"
        return cls(buffer, start - low * itemsize, start, nbytes, pattern)

    def prepare(self, stream: Stream) -> None:
        memory.fill(self.start, self.pattern, self.nbytes, stream)

    def content(self, stream: Stream, samples: int, sample: int) -> Bytes:
        """Return the bytes of the tensor, or evenly spaced samples of a large one."""
        import numpy as np

        whole = self.nbytes <= samples * sample
        found = np.empty(self.nbytes if whole else samples * sample, np.uint8)
        parts = [found] if whole else np.split(found, samples)
        space = 0 if whole else (self.nbytes - sample) // (samples - 1) // 16 * 16  # whole elements
        for i, part in enumerate(parts):
            memory.copy_to_host(part, self.start + i * space, stream)
        return found


def comparable(problem: Problem) -> bool:
    """Return whether the candidates of a problem must agree: its results are known, and not random."""
    return bool(getattr(problem, "results", ())) and not getattr(problem, "random", False)


def outliers(
    scratch: ScratchResults,
    runs: Mapping[int, Callable[[], object]],
    names: Sequence[str],
    engines: Sequence[Hashable],
) -> dict[int, CudnnError]:
    """Run candidates, given by their places; return the errors of those that fail or have other results."""
    # The right results are those of most engines, whose variants count once; of the first one, if in doubt.
    errors: dict[int, CudnnError] = {}
    groups: list[tuple[str, list[Bytes]]] = []  # the name and the results of the first candidate of each
    group_of: dict[int, int] = {}
    for place, run in runs.items():
        try:
            results = scratch.computed_by(run)
        except CudnnError as error:
            errors[place] = without_frames(error)
            continue
        agreeing = (
            group
            for group, (_, known) in enumerate(groups)
            if not difference(scratch.specs, results, known, scratch.tolerance)
        )
        group_of[place] = next(agreeing, len(groups))
        if group_of[place] == len(groups):
            groups.append((names[place], results))
    votes = [set[Hashable]() for _ in groups]
    for place, group in group_of.items():
        votes[group].add(engines[place])
    right = max(range(len(groups)), key=lambda group: len(votes[group]), default=0)
    for place, group in group_of.items():
        if group != right:
            (name, expected), (_, results) = groups[right], groups[group]
            found = difference(scratch.specs, results, expected, scratch.tolerance)
            errors[place] = DifferentResultError(f"its result differs from that of {name}: {found}")
    return errors
