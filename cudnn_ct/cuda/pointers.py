"""Addresses of device memory: the types that hold one, and the facts that the driver has about one."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import driver as cuda
from . import stream as streams

# Values of CUmemorytype and CUpointer_attribute.
HOST, DEVICE = 1, 2
_MEMORY_TYPE, _IS_MANAGED, _DEVICE_ORDINAL, _RANGE_START, _RANGE_SIZE = 2, 8, 9, 11, 12

_SMALLEST_ADDRESS = 2**32  # memory of pools of cuda.core begins little above it; a smaller int is a number


class Address(NamedTuple):
    """An address, with the bytes behind it and the object that keeps them, if its type has them."""

    value: int
    nbytes: int | None = None
    owner: object = None


class Allocation(NamedTuple):
    """The kind of memory, the device, and the range around an address, as the driver returns them."""

    kind: int
    device: int
    start: int
    nbytes: int
    managed: int


NOWHERE = Allocation(0, -1, 0, 0, 0)


def address_of(pointer: Any) -> Address:
    """Return the address in an int, ``CUdeviceptr``, ``c_void_p`` or open Buffer, or raise."""
    if type(pointer) is int:
        return Address(pointer)
    if isinstance(pointer, ctypes.c_void_p):
        return Address(pointer.value or 0)
    if _is_buffer(pointer):
        if not pointer.handle:
            raise ValueError("pointer is a closed cuda.core Buffer")
        return Address(int(pointer.handle), pointer.size, pointer)
    if _is_device_pointer(pointer):
        return Address(int(pointer))
    if hasattr(pointer, "__index__") and not isinstance(pointer, bool) and not getattr(pointer, "shape", ()):
        return Address(int(pointer))
    raise TypeError(
        "pointer must be an int, a CUdeviceptr, a ctypes.c_void_p or a cuda.core Buffer: got "
        f"{type(pointer).__name__}; ct.asarray takes arrays"
    )


def refuse_address(obj: Any) -> None:
    """Raise TypeError for memory without a shape and a dtype, which would become numbers as an array."""
    if type(obj) is int:
        if _SMALLEST_ADDRESS <= obj < 2**64:
            raise TypeError(
                f"{obj:#x} looks like an address: use ct.from_pointer(pointer, shape, dtype) for the memory, "
                "or pass np.int64(value) for the number"
            )
    elif _is_buffer(obj) or _is_device_pointer(obj) or isinstance(obj, ctypes.c_void_p):
        raise TypeError(
            f"{type(obj).__module__.partition('._')[0]}.{type(obj).__name__} is memory without a shape and a "
            "dtype: use ct.from_pointer(pointer, shape, dtype)"
        )


def _is_buffer(obj: Any) -> bool:
    core = sys.modules.get("cuda.core")
    return core is not None and isinstance(obj, getattr(core, "Buffer", ()))


def _is_device_pointer(obj: Any) -> bool:
    return type(obj).__name__ == "CUdeviceptr"


# --- the driver --------------------------------------------------------------------------------------------


class _Query(threading.local):
    """Answers and arguments of the driver's call, which a thread uses again: making them takes longer."""

    def __init__(self) -> None:
        numbers = (_MEMORY_TYPE, _DEVICE_ORDINAL, _RANGE_START, _RANGE_SIZE, _IS_MANAGED)
        answers = (ctypes.c_uint64 * len(numbers))()
        first = ctypes.addressof(answers)
        places = (ctypes.c_void_p * len(numbers))(*(first + 8 * place for place in range(len(numbers))))
        attributes = (ctypes.c_uint * len(numbers))(*numbers)
        count, address = ctypes.c_uint(len(numbers)), ctypes.c_uint64()
        self.state: tuple[Any, ...] = answers, address, (count, attributes, places, address)


_query = _Query()


def allocation_at(address: int, device: int) -> Sequence[int]:
    """Return the values of the :class:`Allocation` that the driver has at an address; kind 0 is none."""
    answers, asked, arguments = _query.state
    asked.value = address  # some versions of the driver fail for unknown ones
    ask = cuda.native("cuPointerGetAttributes")
    if ask(*arguments) or not answers[0]:  # in most threads a device is current, and any will do
        with streams.on_device(device):
            if ask(*arguments):
                return NOWHERE
    found: Sequence[int] = answers[:]
    return found
