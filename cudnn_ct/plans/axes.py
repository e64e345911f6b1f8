"""Tensors of any rank, described by the few axes that a legacy call supports."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import NotSupportedError
from ..shapes.specs import INT_MAX, LAYOUTS, TensorSpec, packed_strides

__all__ = ["canonical_strides", "collapse", "images", "pad_to_4d", "pad_to_two_axes"]


def collapse(specs: Sequence[TensorSpec], groups: Sequence[Sequence[int]]) -> list[TensorSpec]:
    """Merge each group of axes into one axis, equally in all specs; return specs of at least four axes.

    Elements of a group may be visited in any order, as long as it is the same in all tensors.

    Raises
    ------
    NotSupportedError
        The strides of a tensor do not allow it; a contiguous copy does.
    """
    merged = [_merged(specs, group) for group in groups]
    axes: list[list[tuple[int, int]]] = [list(tensor) for tensor in zip(*merged, strict=True)]
    made = []
    for spec, pairs in zip(specs, axes, strict=True):
        pairs += [(1, 1)] * (4 - len(pairs))
        shape, strides = zip(*pairs, strict=True)
        made.append(canonical_strides(TensorSpec(shape, strides, spec.dtype), ["nchw"]))
    return made


def _merged(specs: Sequence[TensorSpec], group: Sequence[int]) -> list[tuple[int, int]]:
    """Return the length and the stride of the merged axis of a group, for each tensor."""
    axes = [axis for axis in group if specs[0].shape[axis] != 1]
    axes.sort(key=lambda axis: -specs[0].strides[axis])
    result = []
    for spec in specs:
        length, stride = 1, 1
        for axis in reversed(axes):
            if length == 1:
                stride = spec.strides[axis]
            elif spec.strides[axis] != length * stride:
                raise NotSupportedError(f"axes {list(group)} of {spec} are not adjacent in memory")
            length *= spec.shape[axis]
        if length > INT_MAX:
            raise NotSupportedError(f"{spec} has {length:,} elements; one axis has at most {INT_MAX:,}")
        result.append((length, stride))
    return result


def images(*specs: TensorSpec) -> list[TensorSpec]:
    """Return specs of images for the legacy calls: two or more spatial axes, canonical strides."""
    common = [layout for layout in LAYOUTS if all(layout in spec.layouts for spec in specs)]
    return [pad_to_two_axes(canonical_strides(spec, common)) for spec in specs]


def canonical_strides(spec: TensorSpec, common: list[str]) -> TensorSpec:
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


def pad_to_4d(spec: TensorSpec) -> TensorSpec:
    """Insert axes of length 1 at the front: ``cudnnSetTensor`` and ``cudnnScaleTensor`` need four."""
    missing = max(4 - len(spec.shape), 0)
    step = max((n * s for n, s in zip(spec.shape, spec.strides, strict=True)), default=1)
    return TensorSpec((1,) * missing + spec.shape, (step,) * missing + spec.strides, spec.dtype)
