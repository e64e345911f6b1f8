"""Compares the results of timed candidates, so that one with wrong results is not selected.

cuDNN has engines that are wrong for some problems, in each version other ones. Before the lists of known
errors (`autotune.errata`) have them, a comparison finds those that differ from the other engines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cuda import allocator, memory
from ..cuda.stream import Stream
from ..dtypes import GRAPH_DTYPES
from ..errors import CudnnError, NotSupportedError, without_frames
from ..plans.base import Problem, tensors_of
from ..plans.comparison import difference, tolerance_of
from ..shapes.specs import TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

SAMPLES = 16  # parts of a large result that are compared, evenly spaced
SAMPLE = 2**16  # bytes of each part


class DifferentResultError(NotSupportedError):
    """The result of a candidate differs from that of other engines."""


class ScratchResults:
    """Scratch memory for the results of candidates: their runs must not change the operands of the next one.

    ``pointers`` are the pointers of a run whose results are in temporary memory. Of each result,
    up to ``samples`` parts are compared.
    """

    def __init__(
        self, problem: Any, pointers: Sequence[int], stream: Stream, *, samples: int = SAMPLES
    ) -> None:
        specs: tuple[TensorSpec, ...] = problem.results
        self.specs = specs
        self._samples = samples
        self.tolerance = tolerance_of(_tensors(problem))
        self._stream = stream
        self._memory = [_Scratch.of(spec, stream) for spec in specs]
        self.pointers = [*pointers[: len(pointers) - len(specs)], *(one.pointer for one in self._memory)]

    def computed_by(self, run: Callable[[], object]) -> list[Bytes]:
        """Run a candidate on prepared memory, and return the bytes of its results, or of samples."""
        for one in self._memory:
            one.prepare(self._stream)
        run()
        return [one.content(self._stream, self._samples) for one in self._memory]


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
        """Allocate memory for a tensor.

        Its bytes before each run are those of ordinary numbers, for elements that a candidate does not write
        or adds to. Gaps between elements are 0, which leaves the largest magnitude as it is.
        """
        (low, high), itemsize = spec.extent, GRAPH_DTYPES[spec.dtype].itemsize
        nbytes = (high - low) * itemsize or (high - low + 1) // 2  # two elements of 4 bits share a byte
        buffer = allocator.allocate(nbytes, stream, "a scratch result")
        start = int(buffer.handle)
        pattern = b"\x3f" if prod(spec.shape) == high - low else b"\0"
        return cls(buffer, start - low * itemsize, start, nbytes, pattern)

    def prepare(self, stream: Stream) -> None:
        memory.fill(self.start, self.pattern, self.nbytes, stream)

    def content(self, stream: Stream, samples: int) -> Bytes:
        """Return the bytes of the tensor, or evenly spaced samples of a large one."""
        import numpy as np

        whole = self.nbytes <= samples * SAMPLE
        found = np.empty(self.nbytes if whole else samples * SAMPLE, np.uint8)
        parts = [found] if whole else np.split(found, samples)
        space = 0 if whole else (self.nbytes - SAMPLE) // (samples - 1) // 16 * 16  # whole elements
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
    """Run candidates, given by their places; return the errors of those that fail or have other results.

    The right results are those of most engines, whose variants count once; of the first one, if in doubt.
    """
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
