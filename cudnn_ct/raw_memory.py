"""Arrays over memory that another program allocated, given by its address."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Never, SupportsIndex

from . import array_shapes
from ._hints import UNSET, corrected, known_keywords
from .array import DeviceArray
from .cuda.array_key import ArrayKey, array_key
from .cuda.interop import DEVICE, HOST, NOWHERE, Allocation, address_of, allocation_at
from .cuda.stream import as_device, resolve_stream
from .dtypes import DTYPES, as_dtype
from .shapes.checks import as_ints
from .shapes.specs import UNALIGNED, TensorSpec, check_shape
from .typing import DTypeLike, PointerLike, Shape, StreamLike

_UNOWNED = object()  # the owner of memory for which the caller is responsible


@known_keywords
def from_pointer(
    pointer: PointerLike,
    shape: Shape,
    dtype: DTypeLike,
    *more: Never,
    strides: Sequence[SupportsIndex] | None = None,
    owner: object = None,
    device: SupportsIndex = 0,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Return an array over device memory at an address, without a copy.

    Parameters
    ----------
    pointer : int, CUdeviceptr, ctypes.c_void_p or cuda.core Buffer
        Address of the first element, a multiple of the item size.
    shape : tuple of int, or int
    dtype : anything :func:`cudnn_ct.dtypes.as_dtype` takes
    strides : sequence of int, optional
        In elements, one for each axis. C order by default.
    owner : object, optional
        Kept until the array and all views of it are dropped and pending work that uses the memory is
        complete. A Buffer is kept without it. If nothing is given, the caller keeps the memory allocated.
    device : int
        The device of the memory.
    stream : optional
        The stream of the work that wrote the memory, and on which its owner frees it: an address or anything
        with ``__cuda_stream__``. By default the stream in use.

    Returns
    -------
    DeviceArray

    Raises
    ------
    TypeError
        ``pointer`` has another type, or cuDNN does not have the dtype.
    ValueError
        The address is null, misaligned, in host memory, on another device, or in no allocation that the
        driver has (it was freed); or the array would be larger than the Buffer or the allocation.
    NotInitializedError
        No driver or no device exists.

    Notes
    -----
    The driver is called for the attributes of the address (``cuPointerGetAttributes``). Memory pools keep
    memory that was freed, so a freed address is found only after the pool has returned it.

    Examples
    --------
    >>> memory = ct.zeros((4, 3))
    >>> ct.from_pointer(memory.pointer, (2, 2), "float32", strides=(3, 1), owner=memory)
    DeviceArray(float32[2, 2], strides (3, 1), device 0)
    """
    if more or unknown or pointer is UNSET or shape is UNSET or dtype is UNSET:
        return corrected(from_pointer, locals())
    address, nbytes, memory = (pointer, None, None) if type(pointer) is int else address_of(pointer)
    only_shapes, number = array_shapes.active_with(stream), as_device(device)
    aligned, fixed = not address & UNALIGNED, (shape, dtype, strides)
    try:
        key, low, high = _layout(fixed, number, aligned)
    except TypeError:  # a list is not hashable; any other error is raised again
        key, low, high = _layout.__wrapped__(fixed, number, aligned)
    if only_shapes:
        if low != high:
            _check_address(address, nbytes, key, low, high)
        return array_shapes.ShapeArray.of(key.spec)
    if low != high:
        found = allocation_at(address, number) if 0 < address < 2**64 else NOWHERE
        kind, place, start, length, managed = found
        inside = start <= address + low and address + high <= start + length
        if not (kind == DEVICE and place == number and inside and aligned and nbytes is None) or managed:
            _check(address, nbytes, key, low, high, Allocation(*found))
    run = resolve_stream(stream, number)
    if run.device != number:
        raise ValueError(f"stream is on another device: got {run.device}, expected {number}")
    if owner is not None:
        memory = owner if memory is None else (memory, owner)
    return DeviceArray(key, address, _UNOWNED if memory is None else memory, run, run, True)


@lru_cache(512)
def _layout(fixed: tuple[Any, ...], device: int, aligned: bool) -> tuple[ArrayKey, int, int]:
    """Return the key of an array, and the offsets in bytes of its first byte and behind its last one."""
    shape, dtype, strides = fixed
    kind = as_dtype(dtype)
    dims = check_shape(shape if hasattr(shape, "__iter__") else (shape,))
    spec = TensorSpec.packed(dims, kind)
    if strides is not None:
        steps = as_ints(strides, "strides")
        if len(steps) != len(dims):
            raise ValueError(f"strides {steps} must have one number for each axis of shape {dims}")
        spec = TensorSpec(dims, steps, kind.name)
    low, high = spec.extent
    return array_key(spec, device, aligned, False), low * kind.itemsize, high * kind.itemsize


def _check_address(value: int, nbytes: int | None, key: ArrayKey, low: int, high: int) -> None:
    """Raise ValueError if there can be no such array at an address, whatever memory is there."""
    spec, itemsize = key.spec, DTYPES[key.spec.dtype].itemsize
    if not 0 < value < 2**64:
        wrong = f"must be an address: got {value}, expected 1 to 2**64 - 1" if value else "is null"
        raise ValueError(f"pointer {wrong}; {spec} needs memory")
    if value % itemsize:
        raise ValueError(f"pointer {value:#x} is not a multiple of the {itemsize} bytes of {spec.dtype}")
    if nbytes is not None and (low < 0 or high > nbytes):
        raise ValueError(f"{spec} needs bytes {low:,} to {high:,} of the Buffer, which has {nbytes:,}")


def _check(value: int, nbytes: int | None, key: ArrayKey, low: int, high: int, found: Allocation) -> None:
    """Raise ValueError unless the memory of an array exists on the device, where the driver found it."""
    _check_address(value, nbytes, key, low, high)
    spec, device = key.spec, key.device
    if found.kind == HOST and not found.managed:
        raise ValueError(f"pointer {value:#x} is host memory; ct.asarray copies a NumPy array to the device")
    if found.kind != DEVICE and not found.managed:
        raise ValueError(
            f"pointer {value:#x} is not device memory: the driver has no allocation there; it was freed, or "
            "it is an address of the host"
        )
    if found.device != device and not found.managed:
        raise ValueError(
            f"pointer {value:#x} is on another device: got {device}, expected {found.device}; pass "
            f"device={found.device}"
        )
    end = found.start + found.nbytes
    if found.nbytes and not (found.start <= value + low and value + high <= end):
        raise ValueError(
            f"{spec} at {value:#x} needs {high - low:,} bytes from {value + low:#x}: its allocation has "
            f"{found.nbytes:,} bytes from {found.start:#x}, of which {end - value:,} are behind the pointer"
        )
