"""Elementwise calls on tensors of any rank and strides: axes are merged, or the tensors tiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod

from ..context import Context
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..shapes.specs import INT_MAX, TensorSpec
from .axes import Axis, canonical_strides, coalesce, images
from .base import Plan
from .chain import run_all

__all__ = ["SlicedPlan", "pad_axes_to_4d", "tile"]

MAX_CALL_AXES = 5  # axes of an elementwise call
MAX_CALLS = 4096  # calls for one operation; each takes microseconds of host time


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

    It runs once for each index into the axes that a call cannot take: those whose strides no descriptor can
    hold, and the shortest of those that are too many.
    """
    axes = coalesce(specs)
    wide = [axis for axis in axes if axis.reach > INT_MAX]
    rest = sorted((axis for axis in axes if axis not in wide), key=lambda axis: axis.lengths[0])
    outer = wide + rest[: max(len(rest) - MAX_CALL_AXES, 0)]
    inner = [axis for axis in axes if axis not in outer]
    calls, elements = (prod(axis.lengths[0] for axis in part) for part in (outer, inner))
    if calls > MAX_CALLS or elements > INT_MAX:
        raise NotSupportedError(
            f"{specs[0]} would take {calls:,} calls: a call takes {MAX_CALL_AXES} axes "
            f"and at most {INT_MAX:,} elements"
        )
    if not outer and len(axes) > 1 and 4 <= len(specs[0].shape) <= MAX_CALL_AXES:
        # Images that cannot be merged keep their axes: cuDNN's kernels for layouts recognise them.
        return make(*images(*specs))
    plan = make(*pad_axes_to_4d(inner, specs))
    if not outer:
        return plan
    indices = product(*(range(axis.lengths[0]) for axis in outer))
    return SlicedPlan([(plan, _offsets(outer, specs, index)) for index in indices])


def _offsets(axes: Sequence[Axis], specs: Sequence[TensorSpec], index: Sequence[int]) -> tuple[int, ...]:
    """Return the offset of an index into some axes in each tensor, in bytes; axes of length 1 repeat."""
    return tuple(
        DTYPES[spec.dtype].itemsize
        * sum(i * axis.strides[at] for i, axis in zip(index, axes, strict=True) if axis.lengths[at] > 1)
        for at, spec in enumerate(specs)
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
        return f"{self._pieces[0][0].describe()}; {len(self._pieces)} calls, one for each slice"
