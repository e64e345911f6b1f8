"""Tensors of any rank written with the few axes that a legacy call knows."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import NotSupportedError
from ..problem.specs import LAYOUTS, TensorSpec
from .native import settled, two_axes

__all__ = ["folded", "images"]

LARGEST = 2**31 - 1  # what a descriptor holds


def folded(specs: Sequence[TensorSpec], groups: Sequence[Sequence[int]]) -> list[TensorSpec]:
    """Write each group of axes as one axis, in all specs alike; four axes at least.

    Elements of a group may be visited in any order, as long as it is the same in all tensors.

    Raises
    ------
    NotSupportedError
        The strides of some tensor do not allow it: a copy without gaps will.
    """
    merged = [_merged(specs, group) for group in groups]
    axes: list[list[tuple[int, int]]] = [list(tensor) for tensor in zip(*merged, strict=True)]
    made = []
    for spec, pairs in zip(specs, axes, strict=True):
        pairs += [(1, 1)] * (4 - len(pairs))
        shape, strides = zip(*pairs, strict=True)
        made.append(settled(TensorSpec(shape, strides, spec.dtype), ["nchw"]))
    return made


def _merged(specs: Sequence[TensorSpec], group: Sequence[int]) -> list[tuple[int, int]]:
    """Length and stride of one axis for a group of them, for each tensor."""
    axes = [axis for axis in group if specs[0].shape[axis] != 1]
    axes.sort(key=lambda axis: -specs[0].strides[axis])
    result = []
    for spec in specs:
        length, stride = 1, 1
        for axis in reversed(axes):
            if length == 1:
                stride = spec.strides[axis]
            elif spec.strides[axis] != length * stride:
                raise NotSupportedError(f"axes {list(group)} of {spec} do not lie side by side in memory")
            length *= spec.shape[axis]
        if length > LARGEST:
            raise NotSupportedError(f"{spec} has {length:,} elements; one axis has at most {LARGEST:,}")
        result.append((length, stride))
    return result


def images(*specs: TensorSpec) -> list[TensorSpec]:
    """Specs of images as the legacy calls take them: two spatial axes at least, axes of length 1 alike."""
    common = [layout for layout in LAYOUTS if all(layout in spec.layouts for spec in specs)]
    return [two_axes(settled(spec, common)) for spec in specs]
