"""Device arrays for the operations: operands, copies and views."""

from __future__ import annotations

from typing import Any

from ..array import DeviceArray
from ..array_creation import as_operand, empty
from ..ops._operands import stream_of
from ..shapes.specs import TensorSpec
from .availability import ops

__all__ = ["copied", "flipped", "on_device", "overwritten", "swapped"]


def on_device(array: Any, name: str) -> DeviceArray:
    """Return an argument as a DeviceArray, without a copy."""
    return as_operand(array, name, stream_of(array, name, None))


def copied(array: Any, name: str) -> DeviceArray:
    """Return a copy of an array."""
    copy: DeviceArray = ops().transform(on_device(array, name))
    return copy


def overwritten(target: Any, result: Any) -> Any:
    """Copy a result to an operand, for operations that cuDNN does not compute in place."""
    return ops().transform(result, out=target)


def swapped(array: DeviceArray) -> DeviceArray:
    """Return a view with the first two axes exchanged."""
    shape, strides, dtype = array.spec
    order = (1, 0, *range(2, len(shape)))
    exchanged = [tuple(values[axis] for axis in order) for values in (shape, strides)]
    return array.view_as(TensorSpec(exchanged[0], exchanged[1], dtype))


def flipped(array: DeviceArray) -> DeviceArray:
    """Return a copy with all axes except the first two reversed, slice by slice."""
    for axis in range(2, array.ndim):
        n = array.shape[axis]
        if n > 1:
            result = empty(array.shape, array.spec.dtype, stream=stream_of(array, "kerns", None))
            for place in range(n):
                ops().transform(_slice(array, axis, place), out=_slice(result, axis, n - 1 - place))
            array = result
    return array


def _slice(array: DeviceArray, axis: int, place: int) -> DeviceArray:
    """Return a view of one slice of an array; the axis remains, with length 1."""
    shape, strides, dtype = array.spec
    view = array.view_as(TensorSpec((*shape[:axis], 1, *shape[axis + 1 :]), strides, dtype))
    view.pointer += place * strides[axis] * array.itemsize
    return view
