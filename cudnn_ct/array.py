"""Arrays in device memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ._hints import with_hints
from .cuda import allocator
from .cuda import memory as memories
from .cuda import stream as streams
from .cuda.array_key import ArrayKey
from .cuda.recording import GRANULARITY
from .cuda.stream import Stream, resolve_stream
from .cuda.typed_memory import TypedMemory
from .dtypes import DTYPES, DType, as_dtype
from .errors import NotSupportedError
from .shapes.checks import FLOATS, as_bool, as_choice, as_element
from .shapes.specs import LAYOUTS, TensorSpec, nearest_layout
from .shapes.views import reshape_view
from .typing import DTypeLike, Layout, StreamLike

if TYPE_CHECKING:
    from numpy.typing import NDArray


ResultSlot = tuple[int, ArrayKey]
"""The bytes of a result, with gaps between elements, and its key."""


@with_hints
class DeviceArray(TypedMemory):
    """An array in device memory: shape, dtype and strides over a buffer from the stream-ordered pool.

    It exports DLPack and ``__cuda_array_interface__``, so ``torch.from_dlpack(y)`` and ``cupy.asarray(y)``
    share its memory. It does no arithmetic and compares no elements: ``bool(x)`` raises, and so does ``==``
    with another array or a number. Arrays are hashed by identity.

    ``x[...]`` (with ints, slices, ``...`` and None), ``reshape``, ``transpose`` and ``T`` return views as in
    NumPy. A view shares the memory, keeps it allocated, and is ordered after writes to other views of it on
    any stream. Operations copy an operand with negative strides on the device, and reject it as ``out=``.

    Methods with ``stream`` work on that stream: an address, or anything with ``__cuda_stream__``. They raise
    ValueError if the array is closed, and AllocationError if device memory ran out.

    Prepared calls are found by the attributes below, which must not be assigned to.

    Attributes
    ----------
    pointer : int
        Address of the first element on the device.
    home : Stream or None
        The stream on which the memory goes back to its pool; None if a foreign owner did not name one.
    writer : Stream
        The stream whose work the contents depend on.
    external : bool
        Whether the memory belongs to another library.

    Examples
    --------
    >>> x = ct.asarray(np.arange(6, dtype=np.float32).reshape(1, 2, 3))
    >>> x
    DeviceArray(float32[1, 2, 3], nchw, device 0)
    >>> x.strides, x.spec.strides  # in bytes, in elements
    ((24, 12, 4), (6, 3, 1))
    >>> x[0, :, 1:].numpy()
    array([[1., 2.],
           [4., 5.]], dtype=float32)
    >>> with x.copy() as y:  # its memory is freed at the end
    ...     total = y.fill(1).numpy().sum()
    >>> int(total), y.closed
    (6, True)
    """

    __slots__ = ()

    @classmethod
    def new(cls, spec: TensorSpec, nbytes: int, stream: Stream, what: str = "an array") -> DeviceArray:
        """Allocate an array on ``stream``, whose device is current; its contents are undefined."""
        buffer = allocator.allocate_block(nbytes, stream, what)
        return cls.over(spec, buffer.handle, buffer, stream, stream)

    @classmethod
    def allocate_many(
        cls, rooms: Sequence[ResultSlot], given: Sequence[DeviceArray | None], stream: Stream, what: str
    ) -> list[DeviceArray]:
        """Return the results of one call: each in ``given``, and new arrays for None, as :meth:`new` does.

        New results of at most 512 bytes share one block, because an allocation takes longer than all else.
        """
        arrays: list[DeviceArray] = []
        grain, block, pointer = GRANULARITY, None, 0
        for room, own in zip(rooms, given, strict=True):
            if own is None:
                nbytes, key = room
                if nbytes > grain:
                    buffer = allocator.allocate_block(nbytes, stream, what)
                    own = cls(key, buffer.handle, buffer, stream, stream)
                else:
                    if block is None:
                        block = allocator.allocate_block(len(rooms) * grain, stream, what)
                        pointer = block.handle
                    own = cls(key, pointer, block, stream, stream)
                    pointer += grain
            arrays.append(own)
        return arrays

    @classmethod
    def from_host(cls, host: NDArray[Any], dtype: DType, layout: Layout, stream: Stream) -> DeviceArray:
        """Copy a NumPy array to the device, cast to ``dtype``, in a packed layout."""
        import numpy as np

        memories.refuse_captured("from", stream)
        spec = TensorSpec.packed(host.shape, dtype, layout)
        in_order = np.moveaxis(host, 1, -1) if layout == "nhwc" else host
        packed = np.ascontiguousarray(in_order, dtype.numpy)
        with streams.on_device(stream.device):
            result = cls.new(spec, packed.nbytes, stream)
            if packed.size:
                memories.copy_from_host(result.pointer, packed.view(np.uint8).reshape(-1), stream)
            return result

    def __deepcopy__(self, memo: object) -> DeviceArray:
        return self.copy()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a DeviceArray cannot be pickled: it is device memory; pickle its .numpy()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        layout = self.layout or f"strides {self.spec.strides}"
        state = ", closed" if self.closed else ""
        return f"DeviceArray({self.spec.dtype}{list(self.shape)}, {layout}, device {self.device}{state})"

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError("a DeviceArray does not support item assignment; write ct.transform(y, out=x[:1])")

    def __array__(self, *_: object, **__: object) -> object:
        raise TypeError("a DeviceArray is not converted to a NumPy array implicitly; call .numpy()")

    def __bool__(self) -> bool:
        if self.size > 1:
            raise ValueError(
                f"the truth value of {self!r} is ambiguous: test `is None`, or call .numpy() and then any() "
                "or all()"
            )
        raise TypeError("a DeviceArray has no truth value, which would wait for the device: call .numpy()")

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` is this object, for containers; elements are not compared."""
        if other is self:
            return True
        arrays = ("__array__", "__dlpack__", "__cuda_array_interface__")
        if isinstance(other, Number) or any(hasattr(other, name) for name in arrays):
            raise TypeError(
                "a DeviceArray does not compare elements: compare .numpy() of both, or objects with `is`"
            )
        return NotImplemented

    __hash__ = object.__hash__  # by identity

    def numpy(self) -> NDArray[Any]:
        """Copy to the host and wait for it; the result has this array's order in memory."""
        import numpy as np

        pointer, (low, high) = self.pointer, self.spec.extent
        if not self.size:
            return np.empty(self.shape, self.dtype)
        memory = np.empty((high - low) * self.itemsize, np.uint8)
        with streams.on_device(self.device):
            memories.copy_to_host(memory, pointer + low * self.itemsize, self.writer)
        view = np.ndarray(self.shape, self.dtype, memory, -low * self.itemsize, self.strides)
        return view if self.spec.is_dense else view.copy(order="K")

    def copy(self, *, stream: StreamLike | None = None) -> DeviceArray:
        """Copy on the device, in the same order in memory; a view with gaps becomes contiguous."""
        run = self._own_stream(stream)
        if not self.spec.is_dense:
            return self.packed(nearest_layout(self.spec), run)
        with streams.on_device(self.device):
            result = DeviceArray.new(self.spec, self.nbytes, run, "a copy")
            self.wait_for_writer(run)
            if self.nbytes:
                memories.copy_device(result.pointer, self.pointer, self.nbytes, run)
            self.record_use(run)
            return result

    __copy__ = copy

    def astype(self, dtype: DTypeLike, *, copy: bool = True, stream: StreamLike | None = None) -> DeviceArray:
        """Copy, and convert to anything :func:`cudnn_ct.dtypes.as_dtype` takes, else raise TypeError.

        float16, bfloat16, float32 and, if cuDNN has an engine for it, float64 are converted on the device.
        Other conversions go through host memory. If ``copy`` is False, an array that has the dtype already is
        returned itself.

        Examples
        --------
        >>> ct.asarray([1.5, 2], "float32").astype("float16").numpy()
        array([1.5, 2. ], dtype=float16)
        """
        kind = as_dtype(dtype)
        if kind.name != self.spec.dtype:
            return self.packed(nearest_layout(self.spec), stream, kind.name)
        return self.copy(stream=stream) if as_bool(copy, "copy") else self

    def packed(
        self, layout: Layout, stream: StreamLike | None = None, dtype: DTypeLike | None = None
    ) -> DeviceArray:
        """Copy into a contiguous layout, and convert to ``dtype`` if it is given."""
        kind, run = as_dtype(self.spec.dtype if dtype is None else dtype), self._own_stream(stream)
        layout = as_choice(layout, LAYOUTS, "layout")
        target = TensorSpec.packed(self.shape, kind, layout)
        try:
            return self._packed_on_device(target, run)
        except NotSupportedError:
            return DeviceArray.from_host(self.numpy(), kind, layout, run)

    def _packed_on_device(self, target: TensorSpec, stream: Stream) -> DeviceArray:
        """Copy into the strides and the dtype of ``target``; NotSupportedError if cuDNN cannot convert."""
        # The operation is in a layer above this module, so it is looked up when it is called.
        transform: Callable[..., DeviceArray] = sys.modules[__package__].transform
        if self.spec.dtype in FLOATS and target.dtype in FLOATS:
            return transform(self, strides=target.strides, dtype=target.dtype, stream=stream)
        if self.spec.dtype != target.dtype:
            raise NotSupportedError(f"cuDNN does not convert {self.spec.dtype} to {target.dtype}")
        copy = self.view_as(_as_bytes(self.spec))
        return transform(copy, strides=_as_bytes(target).strides, stream=stream).view_as(target)

    def reshape(self, *shape: int | Sequence[int], stream: StreamLike | None = None) -> DeviceArray:
        """Return the elements, in C order, with another shape: a view, or a copy if no strides describe it.

        One length may be -1: it follows from the size. Raises TypeError or ValueError for a shape that does
        not have as many elements.

        Examples
        --------
        >>> ct.zeros((2, 3, 4)).reshape(6, -1).shape
        (6, 4)
        """
        many = len(shape) == 1 and (type(shape[0]) is tuple or isinstance(shape[0], Sequence))
        lengths: Any = shape[0] if many else shape
        view: DeviceArray | None = self._viewed(reshape_view, lengths)
        return self.packed("nchw", stream).reshape(lengths) if view is None else view

    def fill(self, value: float, *, stream: StreamLike | None = None) -> Self:
        """Set every element to a number, cast to the array's dtype, and return the array.

        Raises TypeError if ``value`` is not a real number, and ValueError if it has several elements, or the
        array is read-only or not contiguous: use :func:`cudnn_ct.fill` for a view with gaps.
        """
        if not self.spec.is_dense:
            raise ValueError(
                f"fill needs a contiguous array: got shape {self.shape} with strides {self.spec.strides}; "
                "use ct.fill for a view with gaps"
            )
        if self.readonly:
            raise ValueError(f"{self!r} is read-only: its owner forbids writing")
        item = as_element(value, self.dtype, "value")
        pointer, run = self.pointer, self._own_stream(stream)
        with streams.on_device(self.device):
            self.before_write(run)
            if self.size:
                memories.fill(pointer, item.tobytes(), self.size, run)
            self.after_write(run)
        return self

    def _own_stream(self, stream: Any) -> Stream:
        run = resolve_stream(stream, self.device)
        if run.device != self.device:
            raise ValueError(f"stream is on another device: got {run.device}, expected {self.device}")
        return run


def _as_bytes(spec: TensorSpec) -> TensorSpec:
    """Return the spec of the bytes of each element, as int8: copies of them are exact for every dtype."""
    itemsize = DTYPES[spec.dtype].itemsize
    strides = tuple(stride * itemsize for stride in spec.strides)
    return TensorSpec((*spec.shape, itemsize), (*strides, 1), "int8")
