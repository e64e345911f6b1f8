"""Memory of other libraries: arrays by DLPack and ``__cuda_array_interface__``, and addresses."""

from __future__ import annotations

import ctypes
import operator
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from ..dtypes import DTYPES, as_dtype
from ..shapes.specs import TensorSpec, packed_strides
from . import driver as cuda
from . import foreign
from . import stream as streams
from .stream import LEGACY_DEFAULT, Stream, as_address, as_stream, default_stream, intern_stream

__all__ = ["device_of", "export_dlpack", "import_array", "in_host_memory"]


class ExternalArray(NamedTuple):
    """An array of another library; ``home`` is the stream of its producer, if known."""

    pointer: int
    spec: TensorSpec
    device: int
    readonly: bool
    owner: Any
    home: Stream | None


def import_array(obj: Any, stream: Stream) -> ExternalArray | None:
    """Import an array by DLPack or ``__cuda_array_interface__``, and order ``stream`` after its stream.

    A captured stream is not ordered: a graph cannot wait for work outside of it. Returns None for an object
    with neither protocol, or with data in host memory.
    """
    if not (hasattr(obj, "__dlpack__") or hasattr(obj, "__cuda_array_interface__")):
        return None
    library = foreign.owner_of(obj)
    obj = obj if library is None else library.prepared(obj)
    try:
        here = _NO_WAIT if streams.is_capturing(stream) else stream.handle
        views = _memory_view()
        view = obj if isinstance(obj, views) else views.from_any_interface(obj, here)
        dtype = view.dtype
    except Exception as error:
        if cuda.is_foreign(error) and "INVALID_VALUE" not in str(error):  # which is about the object
            raise cuda.as_cudnn_error(error, f"importing {type_name(obj)}") from error
        if in_host_memory(obj):
            return None
        raise TypeError(f"{type_name(obj)} does not export usable device memory: {error}") from error
    if not view.is_device_accessible:
        return None
    if dtype.kind == "V":  # the interface has no names for bfloat16 and float8
        dtype = getattr(obj, "dtype", dtype)
    shape = tuple(view.shape)
    strides = None if library is None else library.strides(obj, shape)
    strides = strides or _signed(view.strides, dtype.itemsize) or packed_strides(shape)
    spec = spec_of(obj, shape, strides, dtype)
    home = _producer_stream(obj, view.device_id)
    readonly = view.readonly or (library is not None and library.readonly)
    return ExternalArray(view.ptr, spec, view.device_id, readonly, view, home)


def spec_of(obj: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> TensorSpec:
    """Return the spec of an exported array; raise TypeError for a dtype that cuDNN does not have."""
    if not getattr(dtype, "isnative", True):
        raise TypeError(f"{type_name(obj)} is big-endian: only native byte order is supported")
    return TensorSpec(shape, strides, as_dtype(dtype).name)


def type_name(obj: Any) -> str:
    """Return the name of the type of an argument, for error messages."""
    return f"{type(obj).__module__}.{type(obj).__name__}".removeprefix("builtins.")


@cache
def _memory_view() -> Any:
    return cuda.core().utils.StridedMemoryView


def device_of(obj: Any) -> int | None:
    """Return the device of an array of another library, without importing it; None if it is unknown."""
    kind, device = _dlpack_device(obj) or (0, None)
    return device if kind == 2 else None  # kDLCUDA


def in_host_memory(obj: Any) -> bool:
    """Return whether an object has no device memory: NumPy arrays, CPU tensors, lists, numbers."""
    if not (hasattr(obj, "__dlpack__") or hasattr(obj, "__cuda_array_interface__")):
        return True
    device = _dlpack_device(obj)
    return device is not None and device[0] == 1  # kDLCPU


def _dlpack_device(obj: Any) -> tuple[int, int] | None:
    """Return the kind and number of an array's device; None if it has no ``__dlpack_device__``."""
    if (method := getattr(obj, "__dlpack_device__", None)) is None:
        return None
    try:
        answer = method()
    except Exception as error:
        if cuda.is_foreign(error):
            raise cuda.as_cudnn_error(error, f"reading the device of {type_name(obj)}") from error
        raise
    try:
        kind, device = answer
        return operator.index(kind), operator.index(device)
    except (TypeError, ValueError):
        raise TypeError(
            f"__dlpack_device__ of {type_name(obj)} is malformed: got {answer!r}, expected two integers"
        ) from None


def _signed(strides: tuple[int, ...] | None, itemsize: int) -> tuple[int, ...] | None:
    """Undo an unsigned division: cupy exports a stride of -60 floats as 2**62 - 60."""
    if not strides or max(strides) < 2**59:
        return strides
    span = 2**64 // itemsize
    return tuple(s - span if s >= span // 2 else s for s in strides)


def _producer_stream(obj: Any, device: int) -> Stream | None:
    """Return the stream that the producer of an external array works on now, or None if it is unknown."""
    # DLPack orders our stream after the producer, but not the reverse: memory that its owner frees must not
    # be reused on the producer's stream before our kernel is complete. Numba exports no stream for arrays
    # that it uses on the default stream.
    library = foreign.owner_of(obj)
    if library is not None and library.has_streams:
        return library.current(device)
    interface = getattr(obj, "__cuda_array_interface__", None)
    handle = interface.get("stream") if isinstance(interface, dict) else None
    if handle:
        return intern_stream(as_address(handle), device)
    return None if hasattr(obj, "__dlpack__") else default_stream(device)


def consumer_stream(stream: Any, device: int) -> Stream:
    """Return the stream of a DLPack consumer, with its object if it is the current one of a library."""
    found = as_stream(stream, device)
    if found.owner is None and found.handle != LEGACY_DEFAULT:
        for library in foreign.imported():
            if library.is_complete() and (theirs := library.current(device)) == found:
                return theirs
    return found


_NO_WAIT = -1  # DLPack's stream for a consumer that orders itself

# DLPack's type codes for dtypes that cuda.core does not export.
_DLPACK_CODES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}


def export_dlpack(
    owner: Any, pointer: int, spec: TensorSpec, readonly: bool, max_version: tuple[int, int] | None
) -> Any:
    """Create a DLPack capsule over device memory that keeps ``owner`` alive."""
    import numpy as np

    dtype = DTYPES[spec.dtype].numpy
    code = _DLPACK_CODES.get(dtype.name)
    carrier = dtype if code is None else np.dtype(f"uint{8 * dtype.itemsize}")
    buffer = cuda.core().Buffer.from_handle(pointer, spec.size * dtype.itemsize, owner=owner)
    view = _memory_view().from_buffer(buffer, spec.shape, spec.strides, dtype=carrier, is_readonly=readonly)
    capsule = view.__dlpack__(stream=-1, max_version=max_version)
    if code is not None:
        name = _capsule_name(capsule)
        # DLTensor: data 8, device 4 + 4, ndim 4, then dtype: its code, which alone changes, size and lanes. A
        # versioned tensor has 32 bytes before it.
        offset = 20 + (32 if name == b"dltensor_versioned" else 0)
        ctypes.c_uint8.from_address(_capsule_pointer(capsule, name) + offset).value = code
    return capsule


# Separate function objects: the attributes of `ctypes.pythonapi` belong to all libraries of the process.
_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


# --- addresses ---------------------------------------------------------------------------------------------

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
