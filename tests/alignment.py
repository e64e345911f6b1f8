"""Operands that start any number of elements behind a 16-byte boundary."""

from __future__ import annotations

from itertools import cycle

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from tests.layers import Place
from tests.strategies import poison


def shifted(array: np.ndarray, offset: int) -> np.ndarray:
    """Copy an array to host memory in which it starts ``offset`` elements later, with the same strides.

    The memory around the elements is :func:`poison`; it is the ``.base`` of the copy.
    """
    base = array if array.base is None else array.base
    room = np.full(offset, poison(array.dtype)).astype(array.dtype)
    memory = np.concatenate([room, base.ravel(order="K")])
    start = offset * array.itemsize + array.ctypes.data - base.ctypes.data
    return np.ndarray(array.shape, array.dtype, memory, start, array.strides)


def own(array: np.ndarray) -> ct.DeviceArray:
    """Copy a NumPy array with the memory around it to the device: a DeviceArray with the same strides."""
    memory = array if array.base is None else array.base
    flat = ct.asarray(memory.ravel(order="K"))
    strides = tuple(s // array.itemsize for s in array.strides)
    spec = ct.TensorSpec(array.shape, strides, as_dtype(array.dtype).name)
    offset = array.ctypes.data - memory.ctypes.data
    return ct.DeviceArray(spec, flat.pointer + offset, flat, flat.writer, flat.home)


def placing(place: Place, *offsets: int) -> Place:
    """Return a function that places arrays with these offsets, one after another, and begins again."""
    turn = cycle(offsets)
    return lambda array: place(shifted(array, next(turn)))
