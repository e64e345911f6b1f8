"""Layouts, views and alignment of operands in memory, which all tiers share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.specs import packed_strides

Place = Callable[[np.ndarray], Any]
"""Puts a NumPy array into device memory with the strides it has, as another library would."""

VIEWS = ("packed", "every_other_image", "padded_rows", "transposed")
"""Views of an operand: contiguous; every second image of a batch; rows with a gap behind them; the last two
axes exchanged."""

SCALES = (1, 0, -2, 0.5)


def lay_out(values: np.ndarray, layout: str, view: str) -> np.ndarray:
    """Copy ``values`` into fresh memory of :func:`poison` with the strides of a layout and a view.

    That memory, one contiguous axis, is the ``.base`` of the array.
    """
    shape = values.shape
    strides = strides_in(shape, layout, view)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if values.size else 1
    memory = np.full(span, poison(values.dtype)).astype(values.dtype)
    array: np.ndarray = np.ndarray(
        shape, values.dtype, buffer=memory, strides=tuple(s * values.itemsize for s in strides)
    )
    array[...] = values
    return array


def poison(dtype: np.dtype[Any]) -> float:
    """Return a value that shows in a result that reads it: NaN, or a number for integers."""
    return 77 if dtype.kind in "iu" else np.nan


def strides_in(shape: tuple[int, ...], layout: str, view: str) -> tuple[int, ...]:
    """Return the strides in elements of a ``view`` (of :data:`VIEWS`) of memory packed in ``layout``."""
    if view == "every_other_image":
        packed = packed_strides(shape, layout)
        return (2 * packed[0], *packed[1:])
    if view == "padded_rows":
        return packed_strides((*shape[:-1], shape[-1] + 3), layout)
    if view == "transposed":
        packed = packed_strides((*shape[:-2], shape[-1], shape[-2]), layout)
        return (*packed[:-2], packed[-1], packed[-2])
    return packed_strides(shape, layout)


# --- memory ------------------------------------------------------------------------------------------------


def shifted(array: np.ndarray, offset: int) -> np.ndarray:
    """Copy an array to host memory in which it starts ``offset`` elements later, with the same strides.

    The memory around the elements is :func:`poison`; it is the ``.base`` of the copy.
    """
    base = array if array.base is None else array.base
    room = np.full(offset, poison(array.dtype)).astype(array.dtype)
    memory = np.concatenate([room, base.ravel(order="K").view(array.dtype)])
    start = offset * array.itemsize + array.ctypes.data - base.ctypes.data
    return np.ndarray(array.shape, array.dtype, memory, start, array.strides)


def own(array: np.ndarray) -> ct.DeviceArray:
    """Copy a NumPy array with the memory around it to the device: a DeviceArray with the same strides."""
    memory = array if array.base is None else array.base
    flat = ct.asarray(memory.ravel(order="K"))
    strides = tuple(s // array.itemsize for s in array.strides)
    spec = ct.TensorSpec(array.shape, strides, as_dtype(array.dtype).name)
    low, high = spec.extent
    offset = array.ctypes.data - memory.ctypes.data
    assert offset + low * array.itemsize >= 0
    assert offset + high * array.itemsize <= flat.nbytes
    return ct.DeviceArray.over(spec, flat.pointer + offset, flat, flat.writer, flat.home)


def placing(place: Place, *offsets: int) -> Place:
    """Return a function that places arrays with these offsets, one after another, and begins again."""
    turn = cycle(offsets)
    return lambda array: place(shifted(array, next(turn)))


def in_memory_of(result: Any, given: Any) -> bool:
    """Return whether a result is a DeviceArray of the memory of an array of any library."""
    return type(result) is ct.DeviceArray and result.pointer == ct.asarray(given).pointer
