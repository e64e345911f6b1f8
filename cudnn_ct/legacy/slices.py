"""Tensors that are worked on element by element, of any rank and any strides: few axes, or few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from ..context import Context
from ..dtypes import DTYPES
from ..errors import BadParamError, ExecutionFailedError, NotSupportedError
from ..problem import Plan, TensorSpec
from .fold import LARGEST, images
from .native import settled

__all__ = ["SlicedPlan", "joined", "sliced", "with_four"]

MOST_AXES = 5  # that the calls on single elements take
MOST_SLICES = 4096  # calls for one operation; each takes microseconds of the host


class Axis(NamedTuple):
    """One axis of several tensors: its length and stride in each. The first has the whole length."""

    lengths: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def reach(self) -> int:
        """The largest step over the whole axis."""
        return max(n * s for n, s in zip(self.lengths, self.strides, strict=True))


def joined(specs: Sequence[TensorSpec], *, in_order: bool = False) -> list[Axis]:
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


def _side_by_side(outer: Axis, inner: Axis) -> bool:
    """Whether two axes are one: in each tensor both are stepped over, one after the other, or neither is."""
    if outer.lengths[0] * inner.lengths[0] > LARGEST:
        return False
    return all(
        m == n == 1 or (m > 1 and n > 1 and step == n * s)
        for m, step, n, s in zip(outer.lengths, outer.strides, inner.lengths, inner.strides, strict=True)
    )


def with_four(axes: Sequence[Axis], specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The tensors with these axes, and others of length 1: the calls know none of fewer than four."""
    made = []
    for i, spec in enumerate(specs):
        pairs = [(axis.lengths[i], axis.strides[i]) for axis in axes]
        if len(pairs) == 3:  # as an image with one row: batch, channels and pixels keep their places
            pairs.insert(2, (1, 1))
        pairs = [(1, 1)] * (4 - len(pairs)) + pairs
        shape, strides = zip(*pairs, strict=True)
        made.append(settled(TensorSpec(shape, strides, spec.dtype), ["nchw"]))
    return made


def sliced(make: Callable[..., Plan], *specs: TensorSpec) -> Plan:
    """A plan for tensors of any rank, from one that ``make`` gives for specs of four or five axes.

    Where more axes are left, or a descriptor cannot hold their steps, it runs once for each slice.

    Raises
    ------
    NotSupportedError
        That would be too many slices.
    """
    axes, outer = joined(specs), []
    while len(axes) > MOST_AXES:
        outer.append(axes.pop(min(range(len(axes)), key=lambda i: axes[i].lengths[0])))
    while axes and (max(axis.reach for axis in axes) > LARGEST or _elements(axes) > LARGEST):
        outer.append(axes.pop(max(range(len(axes)), key=lambda i: axes[i].reach)))
    if not outer:
        # Images keep their axes where these are no single one: cuDNN's kernels for layouts know them so.
        natural = len(axes) > 1 and 4 <= len(specs[0].shape) <= MOST_AXES
        return make(*(images(*specs) if natural else with_four(axes, specs)))
    slices = prod(axis.lengths[0] for axis in outer)
    if slices > MOST_SLICES:
        raise NotSupportedError(
            f"{specs[0]} would take {slices:,} calls: a call takes {MOST_AXES} axes and at most {LARGEST:,} "
            "elements"
        )
    return SlicedPlan(make(*with_four(axes, specs)), _offsets(outer, specs))


def _elements(axes: Sequence[Axis]) -> int:
    return prod(axis.lengths[0] for axis in axes)


def _offsets(outer: Sequence[Axis], specs: Sequence[TensorSpec]) -> list[tuple[int, ...]]:
    """Where each slice begins, in bytes from the beginning of each tensor."""
    offsets = []
    for index in product(*(range(axis.lengths[0]) for axis in outer)):
        at = [0] * len(specs)
        for i, axis in zip(index, outer, strict=True):
            for place, spec in enumerate(specs):
                if axis.lengths[place] > 1:
                    at[place] += i * axis.strides[place] * DTYPES[spec.dtype].itemsize
        offsets.append(tuple(at))
    return offsets


class SlicedPlan:
    """Another plan, run once for each slice of its tensors."""

    __slots__ = ("_inner", "_offsets", "workspace")

    def __init__(self, inner: Plan, offsets: Sequence[tuple[int, ...]]) -> None:
        self._inner = inner
        self._offsets = offsets
        self.workspace = inner.workspace

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue a call for each slice.

        Raises
        ------
        ExecutionFailedError
            A slice was refused after others were written: no other way may begin again with those.
        """
        for i, offsets in enumerate(self._offsets):
            starts = [pointer + offset for pointer, offset in zip(pointers, offsets, strict=True)]
            try:
                self._inner.run(context, starts, alpha, beta)
            except (NotSupportedError, BadParamError) as error:
                if not i:
                    raise
                raise ExecutionFailedError(
                    f"slice {i} of {len(self._offsets)}: {error}",
                    status=error.status,
                    function=error.function,
                    detail=error.detail,
                ) from error

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"{self._inner.describe()}; {len(self._offsets)} calls, one for each slice"
