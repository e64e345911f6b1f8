"""Views: the elements of a tensor, or a part of them, with another shape and strides."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import Any

from .specs import Shape, TensorSpec, check_shape

NEW_AXIS = 0  # stands for the stride of a new axis until the strides of the other axes are known


def index_view(spec: TensorSpec, flat: Sequence[Any]) -> tuple[TensorSpec, int]:
    """Return the spec of ``x[key]``, and the offset in elements, for the :func:`flat_index` of a key.

    Raises TypeError for an entry that is not an int, a slice, ``...`` or None, and IndexError for too many
    entries or an int out of range.
    """
    shape: list[int] = []
    strides: list[int] = []
    offset = axis = 0
    for entry in _one_per_axis(iter(flat), len(spec.shape)):
        if entry is None:
            shape.append(1)
            strides.append(NEW_AXIS)
            continue
        length, stride = spec.shape[axis], spec.strides[axis]
        if isinstance(entry, slice):
            start, stop, step = entry.indices(length)
            count = len(range(start, stop, step))
            shape.append(count)
            strides.append(stride * step if count > 1 else stride)
        else:
            start = _position(entry, length, axis)
        offset += start * stride
        axis += 1
    view = TensorSpec(tuple(shape), _with_new_axes(shape, strides), spec.dtype)
    return view, offset if view.size else 0


SLICE = object()  # in a flat index: a slice, whose start, stop and step follow


def flat_index(key: Any) -> list[Any]:
    """Return the entries of an index, with four for each slice, which cannot be hashed before Python 3.12."""
    flat: list[Any] = []
    for entry in key if isinstance(key, tuple) else (key,):
        flat += (SLICE, entry.start, entry.stop, entry.step) if type(entry) is slice else (entry,)
    return flat


def _one_per_axis(flat: Iterator[Any], ndim: int) -> list[Any]:
    """Replace ``...``, and axes that are not named, by full slices."""
    entries = [slice(*islice(flat, 3)) if entry is SLICE else entry for entry in flat]
    named = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if named > ndim:
        raise IndexError(f"too many indices: got {named}, expected at most {ndim}")
    dots = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise IndexError(f"index {tuple(entries)!r} has {len(dots)} ellipses, expected at most one")
    place = dots[0] if dots else len(entries)
    entries[place : place + 1] = [slice(None)] * (ndim - named)
    return entries


def _position(entry: Any, length: int, axis: int) -> int:
    """Return an int of an index as a position from 0."""
    try:
        if isinstance(entry, bool):  # NumPy takes it for a mask
            raise TypeError
        position = operator.index(entry)
    except TypeError:
        raise TypeError(
            f"index is not supported: got {type(entry).__name__}, expected ints, slices, ... and None"
        ) from None
    if not -length <= position < length:
        raise IndexError(f"index {position} is out of range for axis {axis} of length {length}")
    return position % length


def reshape_view(spec: TensorSpec, lengths: Sequence[Any]) -> TensorSpec | None:
    """Return the spec of the elements, read in C order, with another shape; None if that needs a copy."""
    shape = resolve_shape(spec.size, lengths)
    if not spec.size:
        return TensorSpec.packed(shape, spec.dtype)
    runs: list[tuple[int, int]] = []  # length and stride of groups of axes that one stride steps through
    for length, stride in zip(spec.shape, spec.strides, strict=True):
        if runs and runs[-1][1] == length * stride:
            runs[-1] = (runs[-1][0] * length, stride)
        elif length != 1:
            runs.append((length, stride))
    strides = [NEW_AXIS] * len(shape)
    left, stride = 1, 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            continue
        if left == 1:
            left, stride = runs.pop()
        if left % shape[axis]:
            return None
        strides[axis] = stride
        left, stride = left // shape[axis], stride * shape[axis]
    return TensorSpec(shape, _with_new_axes(shape, strides), spec.dtype)


def _with_new_axes(shape: Sequence[int], strides: Sequence[int]) -> Shape:
    """Give each new axis the stride of C order, so that a new channel axis of length 1 means NCHW."""
    filled = list(strides)
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1 and strides[axis] == NEW_AXIS:
            inner = axis + 1
            filled[axis] = max(abs(filled[inner]) * shape[inner], 1) if inner < len(shape) else 1
    return tuple(filled)


def resolve_shape(size: int, shape: Sequence[Any]) -> Shape:
    """Return a shape of ``size`` elements; one length may be -1, which stands for the length that fits."""
    try:
        lengths = [operator.index(n) for n in shape]
    except TypeError:
        raise TypeError(f"shape must be integers: got {shape!r}") from None
    if lengths.count(-1) == 1:
        others = prod(n for n in lengths if n != -1)
        lengths[lengths.index(-1)] = size // others if others > 0 else 0
    if min(lengths, default=0) < 0 or prod(lengths) != size:
        raise ValueError(f"shape does not fit {size} elements: got {tuple(shape)}")
    return check_shape(lengths)


def transpose_view(spec: TensorSpec, axes: Sequence[Any]) -> TensorSpec:
    """Return the spec of the same elements with the axes in another order; reversed if ``axes`` is empty."""
    ndim = len(spec.shape)
    order = [operator.index(axis) for axis in axes] or list(range(ndim))[::-1]
    if sorted(axis + ndim if axis < 0 else axis for axis in order) != list(range(ndim)):
        raise ValueError(f"axes do not name each of the {ndim} axes once: got {tuple(axes)}")
    return TensorSpec(
        tuple(spec.shape[axis] for axis in order), tuple(spec.strides[axis] for axis in order), spec.dtype
    )
