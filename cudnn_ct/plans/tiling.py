"""Elementwise calls on tensors of any rank and strides: axes are merged, or the tensors tiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from ..context import Context
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..shapes.specs import INT_MAX, TensorSpec
from .axes import canonical_strides, images
from .base import Plan
from .chain import run_all

__all__ = ["SlicedPlan", "coalesce", "is_contiguous", "pad_axes_to_4d", "tile"]

MAX_CALL_AXES = 5  # axes of an elementwise call
MAX_SLICES = 4096  # calls for one operation; each takes microseconds of host time


class Axis(NamedTuple):
    """One axis of several tensors: its length and stride in each. The first has the full length."""

    lengths: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def reach(self) -> int:
        """The largest product of length and stride."""
        return max(n * s for n, s in zip(self.lengths, self.strides, strict=True))


def coalesce(specs: Sequence[TensorSpec], *, in_order: bool = False) -> list[Axis]:
    """Merge axes that are adjacent in all tensors, whose lengths are that of the first or 1.

    Axes of length 1 in the first tensor are omitted. The result is in the order of its memory, or with
    ``in_order`` in the order of the shape.
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
        if axes and _mergeable(axes[-1], inner):
            lengths = tuple(m * n for m, n in zip(axes.pop().lengths, inner.lengths, strict=True))
            inner = Axis(lengths, inner.strides)
        axes.append(inner)
    return axes


def is_contiguous(axes: Sequence[Axis], tensor: int) -> bool:
    """Return whether one of the tensors is contiguous with its axes in this order."""
    step = 1
    for axis in reversed(axes):
        if axis.lengths[tensor] > 1:
            if axis.strides[tensor] != step:
                return False
            step *= axis.lengths[tensor]
    return True


def _mergeable(outer: Axis, inner: Axis) -> bool:
    """Return whether two axes can be one: in each tensor they are adjacent, or both have length 1."""
    if outer.lengths[0] * inner.lengths[0] > INT_MAX:
        return False
    return all(
        m == n == 1 or (m > 1 and n > 1 and step == n * s)
        for m, step, n, s in zip(outer.lengths, outer.strides, inner.lengths, inner.strides, strict=True)
    )


def pad_axes_to_4d(axes: Sequence[Axis], specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return specs with these axes and axes of length 1: the calls need at least four."""
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
    """Return a plan for tensors of any rank; ``make`` returns a plan for specs of four or five axes.

    If too many axes are left after merging, or a descriptor cannot hold their strides, it runs once for each
    slice.

    Raises
    ------
    NotSupportedError
        There would be too many slices.
    """
    axes = coalesce(specs)
    lengths = _fitting(axes)
    if lengths == [axis.lengths[0] for axis in axes]:
        # Images that cannot be merged keep their axes: cuDNN's kernels for layouts recognise them.
        natural = len(axes) > 1 and 4 <= len(specs[0].shape) <= MAX_CALL_AXES
        return make(*(images(*specs) if natural else pad_axes_to_4d(axes, specs)))
    slices = prod(-(-axis.lengths[0] // length) for axis, length in zip(axes, lengths, strict=True))
    if slices > MAX_SLICES:
        raise NotSupportedError(
            f"{specs[0]} would take {slices:,} calls: a call takes {MAX_CALL_AXES} axes "
            f"and at most {INT_MAX:,} elements"
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
    """Return the length of a slice along each axis, so that one call takes the slice."""
    lengths = [axis.lengths[0] for axis in axes]
    while sum(length > 1 for length in lengths) > MAX_CALL_AXES:
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
    """Return the axes of a slice, without axes of length 1."""
    return [
        axis._replace(lengths=tuple(size if n > 1 else 1 for n in axis.lengths))
        for axis, size in zip(axes, sizes, strict=True)
        if size > 1
    ]


def _offsets(axes: Sequence[Axis], specs: Sequence[TensorSpec], starts: Sequence[int]) -> tuple[int, ...]:
    """Return the offset of a slice in each tensor, in bytes."""
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
    """Plans for the slices of tensors, with the offsets of each slice."""

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
        """Return a description of the plan."""
        return f"{self._pieces[0][0].describe()}; {len(self._pieces)} calls, one for each slice"
