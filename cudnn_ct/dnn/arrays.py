"""Device arrays for the operations: operands, copies and views."""

from __future__ import annotations

from ..array import DeviceArray
from ..array_creation import as_operand, empty
from ..ops._operands import stream_of
from ..ops.tensor import transform
from ..typing import ArrayLike
from .availability import run


def on_device(array: ArrayLike, name: str) -> DeviceArray:
    """Return an argument as a DeviceArray, without a copy."""
    return as_operand(array, name, stream_of(array, name, None))


def copied(array: ArrayLike, name: str) -> DeviceArray:
    """Return a copy of an array."""
    return run(transform, on_device(array, name))


def overwritten(target: ArrayLike, result: DeviceArray) -> DeviceArray:
    """Copy a result to an operand, for operations that cuDNN does not compute in place."""
    return run(transform, result, out=target)


def swapped(array: DeviceArray) -> DeviceArray:
    """Return a view with the first two axes exchanged."""
    return array.transpose(1, 0, *range(2, array.ndim))


def flipped(array: DeviceArray) -> DeviceArray:
    """Return a copy with all axes except the first two reversed, slice by slice.

    cuDNN cannot read negative strides.
    """
    for axis in range(2, array.ndim):
        n = array.shape[axis]
        if n > 1:
            before = (slice(None),) * axis
            result = empty(array.shape, array.spec.dtype, stream=stream_of(array, "kerns", None))
            for place in range(n):
                target = result[(*before, slice(n - 1 - place, n - place))]
                run(transform, array[(*before, slice(place, place + 1))], out=target)
            array = result
    return array
