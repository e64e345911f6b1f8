"""Tensors that are worked on element by element, of any rank and any strides: few axes, or few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from ..context import Context
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..shapes.specs import TensorSpec
from .axes import INT_MAX, canonical_strides, images
from .base import Plan
from .chain import run_all

__all__ = ["SlicedPlan", "coalesce", "is_contiguous", "pad_axes_to_4d", "tile"]

MAX_AXES = 5  # that the calls on single elements take
MAX_SLICES = 4096  # calls for one operation; each takes microseconds of the host


class Axis(NamedTuple):
    """One axis of several tensors: its length and stride in each. The first has the whole length."""

    lengths: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def reach(self) -> int:
        """The largest step over the whole axis."""
        return max(n * s for n, s in zip(self.lengths, self.strides, strict=True))


def coalesce(specs: Sequence[TensorSpec], *, in_order: bool = False) -> list[Axis]:
    """Join axes that lie side by side in all tensors, each of which has the length of the first or 1.

    Axes of length 1 in the first are left out. The others are taken in the order of its memory, or as they
    stand where they are to be counted ``in_order``.
    """
    first = specs[0]
    places = [place for place, length in enumerate(first.shape) if length != 1]
    if not in_order:
        places.sort(key=lambda place: -first.strides[place])
    axes: list[Axis] = []
    for place in places:
        inner = Axis(
            tuple(spec.shape[place] for spec in specs),
            tuple(spec.strides[place] if spec.shape[place] > 1 else 1 for spec in specs),
        )
        if axes and _side_by_side(axes[-1], inner):
            lengths = tuple(m * n for m, n in zip(axes.pop().lengths, inner.lengths, strict=True))
            inner = Axis(lengths, inner.strides)
        axes.append(inner)
    return axes


def is_contiguous(axes: Sequence[Axis], tensor: int) -> bool:
    """Whether one of the tensors has no gaps, and its axes in this order."""
    step = 1
    for axis in reversed(axes):
        if axis.lengths[tensor] > 1:
            if axis.strides[tensor] != step:
                return False
            step *= axis.lengths[tensor]
    return True


def _side_by_side(outer: Axis, inner: Axis) -> bool:
    """Whether two axes are one: in each tensor both are stepped over, one after the other, or neither is."""
    if outer.lengths[0] * inner.lengths[0] > INT_MAX:
        return False
    return all(
        m == n == 1 or (m > 1 and n > 1 and step == n * s)
        for m, step, n, s in zip(outer.lengths, outer.strides, inner.lengths, inner.strides, strict=True)
    )


def pad_axes_to_4d(axes: Sequence[Axis], specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The tensors with these axes, and others of length 1: the calls know none of fewer than four."""
    made = []
    for i, spec in enumerate(specs):
        pairs = [(axis.lengths[i], axis.strides[i]) for axis in axes]
        if len(pairs) == 3:  # as an image with one row: batch, channels and pixels keep their places
            pairs.insert(2, (1, 1))
        pairs = [(1, 1)] * (4 - len(pairs)) + pairs
        shape, strides = zip(*pairs, strict=True)
        made.append(canonical_strides(TensorSpec(shape, strides, spec.dtype), ["nchw"]))
    return made


def tile(make: Callable[..., Plan], *specs: TensorSpec) -> Plan:
    """A plan for tensors of any rank, from one that ``make`` gives for specs of four or five axes.

    Where more axes are left, or a descriptor cannot hold their steps, it runs once for each slice.

    Raises
    ------
    NotSupportedError
        That would be too many slices.
    """
    axes = coalesce(specs)
    lengths = _fitting(axes)
    if lengths == [axis.lengths[0] for axis in axes]:
        # Images keep their axes where these are no single one: cuDNN's kernels for layouts know them so.
        natural = len(axes) > 1 and 4 <= len(specs[0].shape) <= MAX_AXES
        return make(*(images(*specs) if natural else pad_axes_to_4d(axes, specs)))
    slices = prod(-(-axis.lengths[0] // length) for axis, length in zip(axes, lengths, strict=True))
    if slices > MAX_SLICES:
        raise NotSupportedError(
            f"{specs[0]} would take {slices:,} calls: a call takes {MAX_AXES} axes and at most {INT_MAX:,} "
            "elements"
        )
    plans: dict[tuple[int, ...], Plan] = {}
    pieces = []
    for ranges in product(*(_ranges(axis.lengths[0], n) for axis, n in zip(axes, lengths, strict=True))):
        sizes = tuple(size for _, size in ranges)
        if sizes not in plans:
            plans[sizes] = make(*pad_axes_to_4d(_cut(axes, sizes), specs))
        pieces.append((plans[sizes], _offsets(axes, specs, [start for start, _ in ranges])))
    return SlicedPlan(pieces)


def _fitting(axes: Sequence[Axis]) -> list[int]:
    """How much of each axis a slice takes: all of at most five axes, as far as a descriptor holds it."""
    lengths = [axis.lengths[0] for axis in axes]
    while sum(length > 1 for length in lengths) > MAX_AXES:
        lengths[min((i for i, n in enumerate(lengths) if n > 1), key=lambda i: lengths[i])] = 1
    while True:
        reaches = [n * max(axis.strides) if n > 1 else 1 for n, axis in zip(lengths, axes, strict=True)]
        elements = prod(lengths)
        if max([elements, *reaches]) <= INT_MAX:
            return lengths
        longest = max(range(len(axes)), key=lambda i: reaches[i])
        rest = elements // lengths[longest]
        room = min(INT_MAX // rest, INT_MAX // max(axes[longest].strides), lengths[longest] - 1)
        lengths[longest] = max(1, room)


def _ranges(length: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(step, length - start)) for start in range(0, length, step)]


def _cut(axes: Sequence[Axis], sizes: Sequence[int]) -> list[Axis]:
    """The axes of a slice; those of one element are left out."""
    return [
        axis._replace(lengths=tuple(size if n > 1 else 1 for n in axis.lengths))
        for axis, size in zip(axes, sizes, strict=True)
        if size > 1
    ]


def _offsets(axes: Sequence[Axis], specs: Sequence[TensorSpec], starts: Sequence[int]) -> tuple[int, ...]:
    """Where a slice begins, in bytes from the beginning of each tensor."""
    return tuple(
        DTYPES[spec.dtype].itemsize
        * sum(
            start * axis.strides[place]
            for start, axis in zip(starts, axes, strict=True)
            if axis.lengths[place] > 1
        )
        for place, spec in enumerate(specs)
    )


class SlicedPlan:
    """Other plans, one for each slice of some tensors, and where the slice begins in each."""

    __slots__ = ("_pieces", "workspace")

    def __init__(self, pieces: Sequence[tuple[Plan, tuple[int, ...]]]) -> None:
        self._pieces = pieces
        self.workspace = max(plan.workspace for plan, _ in pieces)

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue a call for each slice."""

        def piece(plan: Plan, offsets: tuple[int, ...]) -> None:
            starts = [pointer + offset for pointer, offset in zip(pointers, offsets, strict=True)]
            plan.run(context, starts, alpha, beta)

        run_all(partial(piece, *one) for one in self._pieces)

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"{self._pieces[0][0].describe()}; {len(self._pieces)} calls, one for each slice"
