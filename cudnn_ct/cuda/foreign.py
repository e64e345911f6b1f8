"""Arrays of other libraries: a class for each library, which no other module names.

Arrays of PyTorch and CuPy are read by their attributes, in a tenth of the time of DLPack. A class is
consulted only if the process has imported its library.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from operator import itemgetter
from typing import Any

from ..dtypes import DTYPES, as_dtype
from ..errors import INNER
from ..shapes.specs import UNALIGNED, TensorSpec
from .array_key import ArrayKey, array_key
from .stream import LASTING, LEGACY_DEFAULT, Stream, default_stream, intern_stream, known_stream

Reader = Callable[[Sequence[Any]], tuple[int, ...] | None]


class Library:
    module = ""  # the one that has the type ``array_type``
    array_type = ""
    has_streams = False  # whether it has a current stream, and functions that take an array over our memory
    readonly = False  # whether its arrays cannot be changed, although they have no flag

    def types(self) -> tuple[type, ...]:
        """Return the types of arrays that are read; those of subclasses are not: their memory may differ."""
        return ()

    def is_complete(self) -> bool:
        """Return whether the process has imported the library; another thread may be importing it."""
        return hasattr(sys.modules.get(self.module), self.array_type)

    def has(self, array: object) -> bool:
        """Return whether an object is an array of the library, or of a subclass."""
        return isinstance(array, getattr(sys.modules.get(self.module), self.array_type, ()))

    def read(self, array: Any) -> tuple[int, ArrayKey] | None:
        """Return the address and the key of an array; None for one that only DLPack describes."""
        raise NotImplementedError

    def reader(self, arrays: Sequence[Any], keys: Sequence[ArrayKey]) -> Reader | None:  # noqa: ARG002
        """Return a function that reads arrays with the attributes of these together; None if it is slower.

        It returns the address of the current stream and those of the arrays; None if an attribute differs.
        """
        return None

    def device(self, array: Any) -> int:  # noqa: ARG002
        """Return the device of an array; negative for host memory, or if it is unknown."""
        return -1

    def owner(self, array: Any) -> object:
        """Return the object that keeps the memory of an array."""
        return array

    def prepared(self, array: Any) -> Any:
        """Return an array that DLPack can export; raise TypeError if gradients are recorded."""
        return array

    def strides(self, array: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:  # noqa: ARG002
        """Return strides that the protocols do not export; None where they do."""
        return None

    def is_initialized(self) -> bool:
        """Return whether the library uses CUDA in this process."""
        return getattr(sys.modules.get(self.module), "cuda", None) is not None

    def current(self, device: int) -> Stream:
        raise NotImplementedError

    def follow(self, stream: Stream, stack: ExitStack) -> object:
        """Make a stream current until the stack is closed; return the pool of allocations until then."""
        raise NotImplementedError


class PyTorch(Library):
    module, array_type, has_streams = "torch", "Tensor", True

    def types(self) -> tuple[type, ...]:
        torch = sys.modules[self.module]
        return torch.Tensor, torch.nn.Parameter

    def read(self, array: Any) -> tuple[int, ArrayKey] | None:
        if array.is_neg() or (array.requires_grad and _records_gradients()):
            return None
        try:
            pointer, strides = array.data_ptr(), array.stride()
        except RuntimeError:  # no strides, or a transformation of functions
            return None
        key = _key_of_torch(array.shape, strides, array.dtype, array.device, not pointer & UNALIGNED)
        return None if key is None or not pointer else (pointer, key)

    def reader(self, arrays: Sequence[Any], keys: Sequence[ArrayKey]) -> Reader | None:
        fits = guard_of(arrays) if all(key.aligned for key in keys) else None
        if fits is None:
            return None
        device, records = keys[0].device, any(array.requires_grad for array in arrays)
        raw = getattr(sys.modules[self.module]._C, "_cuda_getCurrentRawStream", None)
        current = raw or (lambda device: self.current(device).handle)

        def read(arrays: Sequence[Any]) -> tuple[int, ...] | None:
            addresses = [current(device) or LEGACY_DEFAULT]
            try:
                for one in arrays:
                    if one.is_nested:  # the check does not take tensors without a shape
                        return None
                    pointer = one.data_ptr()
                    if not pointer or pointer & UNALIGNED:
                        return None
                    addresses.append(pointer)
                known = fits(*arrays) and not (records and _records_gradients())
            except Exception:  # of any kind: a number, a transformation, a class with functions of its own
                return None
            return (*addresses,) if known else None

        return read

    def device(self, array: Any) -> int:
        return int(array.get_device())

    @property
    def owner(self) -> Any:
        return sys.modules[self.module].Tensor.untyped_storage

    def prepared(self, array: Any) -> Any:
        # Torch's own exports reject all tensors that require grad, and cuda.core, which bypasses them, none.
        if not (array.requires_grad and array.is_cuda):
            return array
        if _records_gradients():
            raise TypeError(
                "tensors that require grad are not supported (no autograd): pass tensor.detach(), or call "
                "under torch.no_grad()"
            )
        return array.detach()

    def strides(self, array: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        # With one channel or images of one pixel they distinguish channels-last from contiguous tensors.
        if not 3 <= len(shape) <= 5 or (shape[1] != 1 and max(shape[2:]) != 1):
            return None
        return tuple(array.stride())

    def is_initialized(self) -> bool:
        return super().is_initialized() and bool(sys.modules[self.module].cuda.is_initialized())

    def current(self, device: int) -> Stream:
        # The address takes a twentieth of the time of the object, which is needed only to keep a stream
        # alive. The function belongs to torch's own compiler, and may be missing.
        torch = sys.modules[self.module]
        if (raw := getattr(torch._C, "_cuda_getCurrentRawStream", None)) is not None:
            if not (address := raw(device)):
                return default_stream(device)
            if (known := known_stream(address, device, self.module)) is not None:
                return known
        stream = torch.cuda.current_stream(device)
        wraps_address = getattr(stream, "stream_id", None) == stream.cuda_stream  # it may be destroyed then
        return intern_stream(stream.cuda_stream, device, None if wraps_address else stream)

    def follow(self, stream: Stream, stack: ExitStack) -> object:
        torch = sys.modules[self.module]
        external = torch.cuda.ExternalStream(stream.handle, device=torch.device("cuda", stream.device))
        stack.enter_context(torch.cuda.stream(external))
        pool: object = torch.cuda.MemPool()
        stack.enter_context(torch.cuda.use_mem_pool(pool, stream.device))
        # Torch keeps a workspace of cuBLAS for each stream, which graphs of later captures would share.
        if (clear := getattr(torch._C, "_cuda_clearCublasWorkspaces", None)) is not None:
            stack.callback(clear)
        return pool


def _records_gradients() -> bool:
    return bool(sys.modules["torch"].is_grad_enabled())


@lru_cache(4096)
def _key_of_torch(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: Any, aligned: bool
) -> ArrayKey | None:
    if device.type != "cuda":
        return None
    spec = TensorSpec(tuple(shape), strides, as_dtype(str(dtype).removeprefix("torch.")).name)
    return array_key(spec, device.index, aligned, False)


def place_of(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Return a key that most tensors with other shapes do not have, in less time than their shapes.

    Queries of attention have one size while the keys grow, so the first tensor alone is not enough.
    """
    count = len(tensors)
    return count, tensors[0].numel(), tensors[count // 2].numel()


def guard_of(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """Return a function of tensors: whether they have the attributes of these.

    The check of torch's compiler takes a tenth of the time of reading them. None without it. Tensors that are
    given more than once must be so in both. The shapes of all tensors are read before: the check does not
    take tensors without one.
    """
    places = first_places(tensors)
    own = [one for place, one in enumerate(tensors) if places[place] == place]
    shapes, strides = [list(one.shape) for one in own], [list(one.stride()) for one in own]
    try:
        guards = sys.modules["torch"]._C._dynamo.guards.TensorGuards
        made = guards(*own, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
        alone: Callable[..., bool] = made.check
        fits = alone if len(own) == len(tensors) else _repeating(alone, places)
        return fits if fits(*tensors) else None
    except Exception:  # of any kind: another version of torch
        return None


def first_places(tensors: Sequence[Any]) -> list[int]:
    """Return for each tensor the place where it is given first."""
    first: dict[int, int] = {}
    return [first.setdefault(id(one), place) for place, one in enumerate(tensors)]


def _repeating(alone: Callable[..., bool], places: Sequence[int]) -> Callable[..., bool]:
    """Return a function of tensors of which some are those at other places; ``alone`` takes the others."""
    own = [place for place, first in enumerate(places) if place == first]
    others = itemgetter(*own, own[-1])  # of one it would return no tuple
    repeated = [(place, first) for place, first in enumerate(places) if place != first]

    def fits(*tensors: Any) -> bool:
        if len(tensors) != len(places):  # `alone` sees a part of them
            return False
        for place, first in repeated:
            if tensors[place] is not tensors[first]:
                return False
        return alone(*others(tensors)[:-1])

    return fits


class CuPy(Library):
    module, array_type, has_streams = "cupy", "ndarray", True

    def types(self) -> tuple[type, ...]:
        return (sys.modules[self.module].ndarray,)

    def read(self, array: Any) -> tuple[int, ArrayKey] | None:
        memory = array.data
        if not (pointer := memory.ptr):
            return None
        aligned = not pointer & UNALIGNED
        return pointer, _key_of_cupy(array.shape, array.strides, array.dtype, memory.device_id, aligned)

    def device(self, array: Any) -> int:
        return int(array.data.device_id)

    def owner(self, array: Any) -> object:
        return array.data.mem

    def current(self, device: int) -> Stream:
        stream = sys.modules[self.module].cuda.get_current_stream(device)
        wraps_address = type(stream).__name__ == "ExternalStream"
        return intern_stream(stream.ptr, device, None if wraps_address else stream)

    def follow(self, stream: Stream, stack: ExitStack) -> object:
        cupy = sys.modules[self.module]
        with warnings.catch_warnings():  # Stream.from_external of cupy 14.0 destroys the stream that it wraps
            warnings.simplefilter("ignore", DeprecationWarning)
            stack.enter_context(cupy.cuda.ExternalStream(stream.handle, stream.device))
        pool: object = cupy.cuda.MemoryPool()
        stack.enter_context(cupy.cuda.using_allocator(pool.malloc))  # type: ignore[attr-defined]
        return pool


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


class Jax(Library):
    """Arrays of JAX, which come by DLPack."""

    module, array_type, readonly = "jax", "Array", True


LIBRARIES: tuple[Library, ...] = (PyTorch(), CuPy(), Jax())
LASTING.update(library.module for library in LIBRARIES if library.has_streams)
INNER.update(library.module for library in LIBRARIES)


# --- which library -----------------------------------------------------------------------------------------


def imported() -> Iterator[Library]:
    """Yield the libraries with streams that the process has imported."""
    for library in LIBRARIES:
        if library.has_streams and library.module in sys.modules:
            yield library


def library_of(kind: type) -> Library | None:
    """Return the library of a type of arrays; None for a type that is not read by attributes."""
    if (known := _known.get(kind)) is not None:
        return known
    for library in imported():
        try:
            types = library.types()
        except AttributeError:  # another thread is importing it
            continue
        if kind in types:
            _known[kind] = library
            return library
    return None


_known: dict[type, Library] = {}  # the types that are read


def owner_of(array: object) -> Library | None:
    """Return the library of an array, or of one of a subclass; None for other objects."""
    return next((library for library in LIBRARIES if library.has(array)), None)


def current_stream(arrays: Sequence[Any]) -> Stream | None:
    """Return the current stream of the library of the first array that is on a device and has one."""
    for array in arrays:
        library = None if array is None else owner_of(array)
        if library is not None:
            device = library.device(array)
            if device >= 0:
                return library.current(device)
    return None
