"""Tensors of any rank and strides, described by the few axes that a legacy call takes, or as tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import prod
from typing import NamedTuple

from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..shapes.specs import ALIGNMENT, INT_MAX, TensorSpec, common_layouts, packed_strides
from ..typing import Layout
from .base import Plan
from .program import ALPHA, BETA, Program, Step, Steps


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


def collapse(specs: Sequence[TensorSpec], groups: Sequence[Sequence[int]]) -> list[TensorSpec]:
    """Merge each group of axes into one axis, equally in all specs; return specs of at least four axes.

    Elements of a group may be visited in any order, as long as it is the same in all tensors. If strides do
    not allow it, NotSupportedError is raised: a contiguous copy serves.
    """
    merged = [_merged(specs, group) for group in groups]
    merged += [Axis((1,) * len(specs), (1,) * len(specs))] * (4 - len(groups))
    made = []
    for i, spec in enumerate(specs):
        shape, strides = zip(*((axis.lengths[i], axis.strides[i]) for axis in merged), strict=True)
        made.append(canonical_strides(TensorSpec(shape, strides, spec.dtype), ["nchw"]))
    return made


def _merged(specs: Sequence[TensorSpec], group: Sequence[int]) -> Axis:
    parts = [
        TensorSpec(tuple(spec.shape[i] for i in group), tuple(spec.strides[i] for i in group), spec.dtype)
        for spec in specs
    ]
    axes = coalesce(parts) or [Axis((1,) * len(specs), (1,) * len(specs))]
    if len(axes) > 1:
        raise NotSupportedError(
            f"axes {list(group)} of {', '.join(map(str, specs))} are not one axis in memory, of at most "
            f"{INT_MAX:,} elements"
        )
    return axes[0]


def images(*specs: TensorSpec) -> list[TensorSpec]:
    """Return specs of images for the legacy calls: two or more spatial axes, canonical strides."""
    common = common_layouts(*specs)
    return [pad_to_two_axes(canonical_strides(spec, common)) for spec in specs]


def canonical_strides(spec: TensorSpec, common: Sequence[Layout]) -> TensorSpec:
    """Give axes of length 1 the strides of the layout in use; cuDNN rejects other strides."""
    if 1 not in spec.shape:
        return spec
    layouts = [layout for layout in common if layout in spec.layouts] or list(spec.layouts)
    if layouts:
        return spec._replace(strides=packed_strides(spec.shape, layouts[0]))
    strides = list(spec.strides)
    for axis in range(len(strides) - 1, -1, -1):
        if spec.shape[axis] == 1:
            last = axis == len(strides) - 1
            strides[axis] = 1 if last else strides[axis + 1] * spec.shape[axis + 1]
    return spec._replace(strides=tuple(strides))


def pad_to_two_axes(spec: TensorSpec) -> TensorSpec:
    """Describe one spatial axis as two, the first of length 1: legacy calls need two or three."""
    if len(spec.shape) != 3:
        return spec
    (n, c, length), (step_n, step_c, step) = spec.shape, spec.strides
    return TensorSpec((n, c, 1, length), (step_n, step_c, step, step), spec.dtype)


# --- tiles -------------------------------------------------------------------------------------------------

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
