"""Elementwise calls on tensors of any rank and strides: axes are merged, or the tensors tiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import prod

from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..shapes.specs import ALIGNMENT, INT_MAX, TensorSpec
from .axes import Axis, canonical_strides, coalesce, images
from .base import Plan
from .program import ALPHA, BETA, Program, Step, Steps

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
    """Return a plan for tensors of any rank; ``make`` returns a plan for specs of four or five axes."""
    # Axes with strides or numbers of elements that no descriptor holds are divided into pieces; axes that are
    # too many are divided into single indices. The plan makes a call for each piece.
    axes = coalesce(specs)
    calls = list(islice(_pieces(axes, (0,) * len(specs)), MAX_CALLS + 1))
    if len(calls) > MAX_CALLS:
        raise NotSupportedError(
            f"{specs[0]} would take more than {MAX_CALLS:,} calls: a call takes {MAX_CALL_AXES} axes "
            f"and at most {INT_MAX:,} elements"
        )
    if len(calls) == 1:
        if len(axes) > 1 and 4 <= len(specs[0].shape) <= MAX_CALL_AXES:
            # Images that cannot be merged keep their axes: cuDNN's kernels for layouts recognise them.
            return make(*images(*specs))
        return make(*pad_axes_to_4d(axes, specs))
    plans: dict[Sequence[Axis], Plan] = {}
    for piece, _ in calls:
        if piece not in plans:
            plans[piece] = make(*pad_axes_to_4d(piece, specs))
    sizes = [DTYPES[spec.dtype].itemsize for spec in specs]
    return sliced(
        [
            (plans[piece], tuple(start * size for start, size in zip(starts, sizes, strict=True)))
            for piece, starts in calls
        ]
    )


def _pieces(
    axes: Sequence[Axis], starts: tuple[int, ...]
) -> Iterator[tuple[tuple[Axis, ...], tuple[int, ...]]]:
    """Yield axes that a call supports, and the first element of each piece in each tensor."""
    wide, elements = [axis for axis in axes if axis.reach > INT_MAX], prod(axis.lengths[0] for axis in axes)
    if wide:
        axis = max(wide, key=lambda one: one.reach)
        longest = max(1, INT_MAX // max(axis.strides))
    elif elements > INT_MAX:  # of a tensor that overlaps itself
        axis = max(axes, key=lambda one: one.lengths[0])
        longest = max(1, INT_MAX // (elements // axis.lengths[0]))
    elif len(axes) > MAX_CALL_AXES:
        axis, longest = min(axes, key=lambda one: one.lengths[0]), 1
    else:
        yield tuple(axes), starts
        return
    longest -= longest % ALIGNMENT if longest > ALIGNMENT else 0  # the pieces stay aligned
    place, length = axes.index(axis), axis.lengths[0]
    for first in range(0, length, longest):
        part = Axis(tuple(min(n, longest, length - first) for n in axis.lengths), axis.strides)
        moved = tuple(
            start + (first * step if n > 1 else 0)
            for start, n, step in zip(starts, axis.lengths, axis.strides, strict=True)
        )
        parts = [part] if part.lengths[0] > 1 else []
        yield from _pieces([*axes[:place], *parts, *axes[place + 1 :]], moved)


def sliced(pieces: Sequence[tuple[Plan, tuple[int, ...]]]) -> Program:
    """Return a program of plans for the slices of tensors, each with the offsets of a slice in bytes."""
    steps = [Step(plan, None, ALPHA, BETA, offsets) for plan, offsets in pieces]
    first = pieces[0][0]
    about = f"{{}}; {len(pieces)} calls, one for each slice"
    return Program(Steps((), steps, written=1), about=about, main=first)
