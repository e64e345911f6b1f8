"""Calls on tensors with more elements than cuDNN takes, in pieces along an axis that is independent.

An operation returns the axes along which its results do not depend on each other: rows of a softmax, images
of a pooling, all axes of an activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Any

from ..context import Context
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..plans.axes import MAX_CALLS
from ..plans.base import Candidate, SelectedPlan, tensors_of
from ..plans.program import ALPHA, BETA, Program, Step, Steps, run_all
from ..shapes.specs import ALIGNMENT, INT_MAX, TensorSpec

Split = dict[str, int]
"""Names of the tensors that are split, each with its axis; the other tensors belong to all pieces."""

Independent = Callable[[Any], Iterable[Split]]
"""Function of a problem that returns the ways to split it."""

Piece = tuple[Any, tuple[int, ...]]
"""The problem of a piece, and the offset of the piece in each tensor, in bytes."""


def along(problem: Any, axes: Iterable[int]) -> Iterator[Split]:
    """Yield a split along each of some axes, of the tensors that are as long there as the first tensor."""
    tensors = tensors_of(problem)
    shape = next(iter(tensors.values())).shape
    for axis in axes:
        yield {
            name: axis
            for name, spec in tensors.items()
            if len(spec.shape) == len(shape) and spec.shape[axis] == shape[axis]
        }


def every_axis(problem: Any) -> Iterator[Split]:
    """Yield the splits of an operation on each element by itself."""
    first = next(iter(tensors_of(problem).values()))
    return along(problem, range(len(first.shape)))


def pieces_of(problem: Any, independent: Independent | None) -> list[Piece]:
    """Return the pieces of a problem, the problem itself if its tensors are small or it cannot be split."""
    whole = [(problem, (0,) * len(tensors_of(problem)))]
    if independent is None or not _large(problem):
        return whole
    try:
        return list(_pieces(problem, independent))
    except NotSupportedError:
        return whole


def _large(problem: Any) -> list[str]:
    """Return the names of the tensors with more elements than cuDNN takes."""
    return [name for name, spec in tensors_of(problem).items() if spec.size > INT_MAX]


def _pieces(problem: Any, independent: Independent) -> Iterator[Piece]:
    tensors, large = tensors_of(problem), _large(problem)
    if not large:
        yield problem, (0,) * len(tensors)
        return
    # Names of the tensors that must be split: the large ones, and those that are written.
    needed = {*large, *list(tensors)[-len(problem.results) :]}
    first = next(iter(tensors))
    splits = [
        split
        for split in independent(problem)
        if needed <= split.keys() and tensors[large[0]].shape[split[large[0]]] > 1
    ]
    if not splits:
        raise NotSupportedError("no axis is independent")
    # The outermost axis in memory: then the pieces are as contiguous as the tensors.
    split = max(splits, key=lambda one: tensors[first].strides[one[first]] if first in one else 0)
    length = tensors[large[0]].shape[split[large[0]]]
    chunk = _chunk(length, max(tensors[name].size // length for name in split))
    if length // chunk > MAX_CALLS:
        raise NotSupportedError(f"more than {MAX_CALLS:,} pieces")
    for start in range(0, length, chunk):
        shorter = {
            name: _part(tensors[name], axis, min(chunk, length - start)) for name, axis in split.items()
        }
        offsets = [
            start * spec.strides[split[name]] * DTYPES[spec.dtype].itemsize if name in split else 0
            for name, spec in tensors.items()
        ]
        part = problem._replace(**shorter)
        if any(offset % ALIGNMENT for offset in offsets) and getattr(part, "aligned", False):
            part = part._replace(aligned=False)
        for inner, more in _pieces(part, independent):
            yield inner, tuple(a + b for a, b in zip(offsets, more, strict=True))


def _chunk(length: int, elements: int) -> int:
    """Return the length of equal pieces of an axis; ``elements`` is the largest number at one index of it."""
    most = max(1, INT_MAX // elements)
    if most < ALIGNMENT:
        return most
    count = -(-length // (most - most % ALIGNMENT))
    equal = -(-length // count)
    return equal + -equal % ALIGNMENT  # so that the pieces are as aligned as the tensors


def _part(spec: TensorSpec, axis: int, length: int) -> TensorSpec:
    return spec._replace(shape=(*spec.shape[:axis], length, *spec.shape[axis + 1 :]))


class InPieces(SelectedPlan):
    """The selections of pieces, with the offsets of each piece in the operands and results."""

    __slots__ = ("_about", "_pieces", "_plans")

    def __init__(self, pieces: Sequence[tuple[SelectedPlan, tuple[int, ...]]]) -> None:
        self._pieces = pieces
        self._about = f"in {len(pieces)} pieces of at most {INT_MAX:,} elements"
        self._join()

    @property
    def candidate(self) -> Candidate | None:
        return self._pieces[0][0].candidate

    @property
    def needs_timing(self) -> bool:
        return any(selected.needs_timing for selected, _ in self._pieces)

    @property
    def exploring(self) -> bool:
        return any(selected.exploring for selected, _ in self._pieces)

    @property
    def fallback_reason(self) -> str:
        return next((selected.fallback_reason for selected, _ in self._pieces), "")

    def run_first(self, context: Context, *arguments: Any, compare: bool) -> bool:  # noqa: ARG002
        """Run each piece as if for the first time, because another plan may have to run it alone."""
        pointers, *factors = arguments
        run_all(
            partial(one.run_first, context, tuple(map(add, pointers, offsets)), *factors, compare=False)
            for one, offsets in self._pieces
        )
        if any(one.plan is not plan for (one, _), plan in zip(self._pieces, self._plans, strict=True)):
            self._join()
        return False

    def describe(self) -> str:
        return f"{self._pieces[0][0].describe()}\n  {self._about}"

    def _join(self) -> None:
        """Make the program of the plans, which a replay records."""
        self._plans = [selected.plan for selected, _ in self._pieces]
        steps = [
            Step(plan, None, ALPHA, BETA, offsets)
            for plan, (_, offsets) in zip(self._plans, self._pieces, strict=True)
        ]
        self.plan = Program(Steps((), steps), about=f"{{}}; {self._about}", main=self._plans[0])
