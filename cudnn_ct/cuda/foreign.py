"""Arrays of other libraries that are read by their attributes: a table with a row for each library.

This takes a tenth of the time of DLPack. A row is consulted only if the process has imported its library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..dtypes import DTYPES, as_dtype
from ..shapes.specs import UNALIGNED, TensorSpec
from .interop import current_of_cupy, current_of_torch
from .stream import Stream
from .typed_memory import ArrayKey, TypedMemory, array_key

__all__ = ["LIBRARIES", "Library", "current_stream", "library_of"]


@dataclass(frozen=True, eq=False, slots=True)
class Library:
    """A library: the types of its arrays, how they are read, and its current stream.

    ``types`` takes the module; arrays of subclasses are not read, because their memory may differ. ``read``
    returns the address and the key of an array, or None for one that only DLPack describes. ``pointer``
    returns the address of an array with the ``facts`` of a key, and 0 for any other. ``device``
    returns the device of an array, negative for host memory, and ``owner`` the object that keeps the memory.
    ``stream`` takes the module and a device.
    """

    module: str
    types: Callable[[Any], tuple[type, ...]]
    read: Callable[[Any], tuple[int, ArrayKey] | None]
    facts: Callable[[ArrayKey], tuple[Any, ...]]
    pointer: Callable[[Any, tuple[Any, ...]], int]
    device: Callable[[Any], int]
    owner: Callable[[Any], object]
    stream: Callable[[Any, int], Stream]

    def current(self, device: int) -> Stream:
        """Return the current stream of the library on a device."""
        return self.stream(sys.modules[self.module], device)


def library_of(kind: type) -> Library | None:
    """Return the library of a type of arrays; None for a type that the table does not have."""
    known = _known.get(kind)
    if known is not None:
        return known
    for library in LIBRARIES:
        module = sys.modules.get(library.module)
        if module is not None and kind in _types(library, module):
            _known[kind] = library
            return library
    return None


_known: dict[type, Library] = {}  # the types of the table


def current_stream(arrays: Sequence[Any]) -> Stream | None:
    """Return the current stream of the library of the first array that is on a device and has one."""
    for array in arrays:
        if array is None or isinstance(array, TypedMemory):
            continue
        for library in LIBRARIES:
            module = sys.modules.get(library.module)
            if module is not None and isinstance(array, _types(library, module)):  # subclasses too
                device = library.device(array)
                if device >= 0:
                    return library.current(device)
    return None


def _types(library: Library, module: Any) -> tuple[type, ...]:
    """Return the array types of a library; none while another thread is importing it."""
    try:
        return library.types(module)
    except AttributeError:
        return ()


# --- PyTorch -----------------------------------------------------------------------------------------------


_DTYPES_OF_TORCH = {"float8_e4m3": "float8_e4m3fn", "float8_e8m0": "float8_e8m0fnu"}


def _read_torch(tensor: Any) -> tuple[int, ArrayKey] | None:
    if tensor.is_neg() or (tensor.requires_grad and sys.modules["torch"].is_grad_enabled()):
        return None
    try:
        pointer, strides = tensor.data_ptr(), tensor.stride()
    except RuntimeError:  # no strides, or a transformation of functions
        return None
    key = _key_of_torch(tensor.shape, strides, tensor.dtype, tensor.device, not pointer & UNALIGNED)
    return None if key is None or not pointer else (pointer, key)


@lru_cache(4096)
def _key_of_torch(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: Any, aligned: bool
) -> ArrayKey | None:
    if device.type != "cuda":
        return None
    spec = TensorSpec(tuple(shape), strides, as_dtype(str(dtype).removeprefix("torch.")).name)
    return array_key(spec, device.index, aligned, False)


def _facts_of_torch(key: ArrayKey) -> tuple[Any, ...]:
    torch, spec = sys.modules["torch"], key.spec
    dtype = getattr(torch, _DTYPES_OF_TORCH.get(spec.dtype, spec.dtype), None)
    return spec.shape, spec.strides, dtype, torch.device("cuda", key.device)


def _pointer_of_torch(tensor: Any, facts: tuple[Any, ...]) -> int:
    shape, strides, dtype, device = facts
    if tensor.shape != shape or tensor.dtype is not dtype or tensor.device != device or tensor.is_neg():
        return 0
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        return 0
    try:
        return tensor.data_ptr() if tensor.stride() == strides else 0
    except RuntimeError:  # no strides, or a transformation of functions
        return 0


# --- CuPy --------------------------------------------------------------------------------------------------


def _read_cupy(array: Any) -> tuple[int, ArrayKey] | None:
    memory = array.data
    pointer = memory.ptr
    if not pointer:
        return None
    aligned = not pointer & UNALIGNED
    return pointer, _key_of_cupy(array.shape, array.strides, array.dtype, memory.device_id, aligned)


@lru_cache(4096)
def _key_of_cupy(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: int, aligned: bool
) -> ArrayKey:
    name = as_dtype(dtype).name
    itemsize = DTYPES[name].itemsize
    if any(step % itemsize for step in strides):
        raise ValueError(
            f"strides are not supported: got {strides} bytes for {name}, expected multiples of {itemsize}"
        )
    return array_key(TensorSpec(shape, tuple(s // itemsize for s in strides), name), device, aligned, False)


def _facts_of_cupy(key: ArrayKey) -> tuple[Any, ...]:
    spec, row = key.spec, DTYPES[key.spec.dtype]
    return spec.shape, tuple(stride * row.itemsize for stride in spec.strides), row.numpy, key.device


def _pointer_of_cupy(array: Any, facts: tuple[Any, ...]) -> int:
    memory = array.data
    same = (array.shape, array.strides, array.dtype, memory.device_id) == facts
    return memory.ptr if same else 0


LIBRARIES = (
    Library(
        "torch",
        lambda torch: (torch.Tensor, torch.nn.Parameter),
        _read_torch,
        _facts_of_torch,
        _pointer_of_torch,
        lambda tensor: tensor.get_device(),
        lambda tensor: tensor.untyped_storage(),
        current_of_torch,
    ),
    Library(
        "cupy",
        lambda cupy: (cupy.ndarray,),
        _read_cupy,
        _facts_of_cupy,
        _pointer_of_cupy,
        lambda array: array.data.device_id,
        lambda array: array.data.mem,
        current_of_cupy,
    ),
)
