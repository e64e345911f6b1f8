"""An array on the device."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

from .cuda import allocator, interop, lifetime
from .cuda import event as events
from .cuda import memory as memories
from .cuda import stream as streams
from .cuda.lifetime import ExportedMemory, StreamUses
from .cuda.stream import Stream, resolve_stream
from .dtypes import DTYPES, DType
from .errors import warn_caller
from .shapes.parse import as_bool
from .shapes.specs import TensorSpec, nearest_layout, packed_strides

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DeviceArray", "ResultSlot"]

ResultSlot = tuple[TensorSpec, int] | None
"""What a result is, with its bytes, gaps included; None for one that there is not."""


class DeviceArray:
    """An array in device memory: shape, dtype and strides over a buffer from the stream-ordered pool.

    Made by :func:`empty`, :func:`zeros`, :func:`full`, :func:`asarray` and by every operation. It exports
    DLPack and ``__cuda_array_interface__``, so ``torch.from_dlpack(y)`` and ``cupy.asarray(y)`` share its
    memory. It does no arithmetic.

    Attributes
    ----------
    spec : TensorSpec
        Shape, strides in elements and dtype name, as one hashable value.
    pointer : int
        Address of the first element on the device.
    home : Stream or None
        The stream on which the memory goes back to its pool; None where a foreign owner told us none.
    writer : Stream
        The stream whose work the contents depend on.
    foreign : bool
        Whether the memory belongs to another library.
    readonly : bool
        Whether its owner forbids writing.

    Examples
    --------
    >>> x = ct.asarray(np.arange(6, dtype=np.float32).reshape(1, 2, 3))
    >>> x
    DeviceArray(float32[1, 2, 3], nchw, device 0)
    >>> x.strides, x.spec.strides  # in bytes, in elements
    ((24, 12, 4), (6, 3, 1))
    >>> with x.copy() as y:  # which gives its memory back at the end
    ...     total = y.fill(1).numpy().sum()
    >>> int(total), y.closed
    (6, True)
    """

    __slots__ = (
        "__weakref__",
        "_uses",
        "device",
        "external",
        "home",
        "memory",
        "pointer",
        "readonly",
        "spec",
        "writer",
    )

    def __init__(
        self,
        spec: TensorSpec,
        pointer: int,
        memory: object,
        writer: Stream,
        home: Stream | None = None,
        *,
        foreign: bool = False,
        readonly: bool = False,
    ) -> None:
        self.spec = spec
        self.pointer = pointer
        self.memory = memory
        self.device = writer.device
        self.home = home
        self.writer = writer
        self.external = foreign
        self.readonly = readonly
        self._uses: StreamUses | None = None

    @classmethod
    def new(cls, spec: TensorSpec, nbytes: int, stream: Stream, what: str = "an array") -> DeviceArray:
        """Allocate an array of ``spec`` on ``stream``, contents undefined. Its device is current already."""
        buffer = allocator.allocate_block(nbytes, stream, what)
        return cls(spec, buffer.handle, buffer, stream, stream)

    @classmethod
    def allocate_many(
        cls, rooms: Sequence[ResultSlot], given: Sequence[DeviceArray | None], stream: Stream, what: str
    ) -> list[Any]:
        """The results of one call: those that are ``given``, and new ones for the others, as of :meth:`new`.

        What is made and small lies in one block, which goes back with the last of its arrays.
        """
        arrays: list[Any] = []
        grain, block, pointer = allocator.GRANULARITY, None, 0
        for room, own in zip(rooms, given, strict=True):
            if own is None and room is not None:
                spec, nbytes = room
                if nbytes > grain:
                    buffer = allocator.allocate_block(nbytes, stream, what)
                    own = cls(spec, buffer.handle, buffer, stream, stream)
                else:
                    if block is None:
                        block = allocator.allocate_block(len(rooms) * grain, stream, what)
                        pointer = block.handle
                    own = cls(spec, pointer, block, stream, stream)
                    pointer += grain
            arrays.append(own)
        return arrays

    @classmethod
    def from_host(cls, host: np.ndarray[Any, Any], dtype: DType, layout: str, stream: Stream) -> DeviceArray:
        """Copy a NumPy array to the device, cast to ``dtype``, in a packed layout."""
        import numpy as np

        spec = TensorSpec.packed(host.shape, dtype, layout)
        in_order = np.moveaxis(host, 1, -1) if layout == "nhwc" else host
        packed = np.ascontiguousarray(in_order, dtype.numpy)
        previous = streams.set_device(stream.device)
        try:
            result = cls.new(spec, packed.nbytes, stream)
            if packed.size:
                memories.copy_from_host(result.pointer, packed.view(np.uint8).reshape(-1), stream)
            return result
        finally:
            streams.restore_device(previous)

    def __getattr__(self, name: str) -> Any:
        if name == "pointer":  # the slot is empty: see close()
            raise ValueError(f"this DeviceArray of shape {self.shape} is closed")
        raise AttributeError(f"'DeviceArray' object has no attribute {name!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype; from ml_dtypes for bfloat16 and the eight-bit floats."""
        return DTYPES[self.spec.dtype].numpy

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in bytes, as in NumPy. ``spec.strides`` has them in elements, as cuDNN does."""
        itemsize = self.itemsize
        return tuple(s * itemsize for s in self.spec.strides)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.size

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return DTYPES[self.spec.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps between them."""
        return self.size * self.itemsize

    @property
    def layout(self) -> str | None:
        """``"nchw"`` (C order), ``"nhwc"`` (channels last), or None for a view with gaps.

        With one channel, or images of one pixel, the strides of axes of length 1 distinguish the two.
        """
        return self.spec.layout

    @property
    def closed(self) -> bool:
        """Whether the memory was given back."""
        return self.memory is None

    def close(self) -> None:
        """Give the memory back now, after the work that uses it. Closing twice is harmless."""
        if not self.closed:
            del self.pointer
            self.memory = None
            self._uses = None

    def __copy__(self) -> DeviceArray:
        return self.copy()

    def __deepcopy__(self, memo: object) -> DeviceArray:
        return self.copy()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a DeviceArray is memory of this process's device; pickle its .numpy()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        layout = self.layout or f"strides {self.spec.strides}"
        state = ", closed" if self.closed else ""
        return f"DeviceArray({self.spec.dtype}{list(self.shape)}, {layout}, device {self.device}{state})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a DeviceArray without axes")
        return self.shape[0]

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a DeviceArray does not turn into a NumPy array by itself; call .numpy()")

    def numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Copy to the host and wait for it.

        Returns
        -------
        numpy.ndarray
            Of this array's shape, dtype and order in memory.

        Raises
        ------
        ValueError
            The array is closed.
        """
        import numpy as np

        pointer, (low, high) = self.pointer, self.spec.extent
        if not self.size:
            return np.empty(self.shape, self.dtype)
        memory = np.empty((high - low) * self.itemsize, np.uint8)
        previous = streams.set_device(self.device)
        try:
            memories.copy_to_host(memory, pointer + low * self.itemsize, self.writer)
        finally:
            streams.restore_device(previous)
        view = np.ndarray(self.shape, self.dtype, memory, -low * self.itemsize, self.strides)
        return view if self.spec.dense else view.copy(order="K")

    def copy(self, *, stream: Any = None) -> DeviceArray:
        """Copy on the device, in the same memory order; a view with gaps is packed, through host memory.

        Parameters
        ----------
        stream : optional
            An address, or anything with ``__cuda_stream__``.

        Returns
        -------
        DeviceArray

        Raises
        ------
        ValueError
            The array is closed.
        AllocationError
            Device memory ran out.
        """
        run = self._own_stream(stream)
        previous = streams.set_device(self.device)
        try:
            if not self.spec.dense:
                return self.packed(nearest_layout(self.spec), run)
            result = DeviceArray.new(self.spec, self.nbytes, run, "a copy")
            self.wait_for_writer(run)
            if self.nbytes:
                memories.copy_device(result.pointer, self.pointer, self.nbytes, run)
            self.record_use(run)
            return result
        finally:
            streams.restore_device(previous)

    def packed(self, layout: str, stream: Any = None) -> DeviceArray:
        """Copy an array of any strides into a packed layout, through host memory.

        For strides that no cuDNN descriptor holds: negative, zero, or of more than eight axes.

        Parameters
        ----------
        layout : "nchw" | "nhwc"
        stream : optional
            An address, or anything with ``__cuda_stream__``, to copy on.

        Returns
        -------
        DeviceArray
            A new array.

        Raises
        ------
        ValueError
            There is no such layout, or none of that name for this number of axes; or the array is closed.

        Warns
        -----
        CudnnWarning
            Always: a copy by the library that the array comes from is quick.
        """
        run = self._own_stream(stream)
        warn_caller(
            f"{self!r} was packed through host memory, which is slow and waits for the device; "
            "a contiguous copy made by the library it comes from is quick",
        )
        return DeviceArray.from_host(self.numpy(), DTYPES[self.spec.dtype], layout, run)

    def view_as(self, spec: TensorSpec) -> DeviceArray:
        """The same memory with another shape and strides; uses of the one are uses of the other."""
        array = DeviceArray(
            spec,
            self.pointer,
            self.memory,
            self.writer,
            self.home,
            foreign=self.external,
            readonly=self.readonly,
        )
        array._uses = self._known_uses()
        return array

    def fill(self, value: Any, *, stream: Any = None) -> Self:
        """Set every element to ``value``, cast to the array's dtype.

        Parameters
        ----------
        value : number
        stream : optional
            An address, or anything with ``__cuda_stream__``.

        Returns
        -------
        DeviceArray
            The array itself.

        Raises
        ------
        TypeError
            ``value`` is no real number.
        ValueError
            It is several; or the array is closed, read-only, or has gaps,
            which :func:`cudnn_ct.fill` leaves alone.
        """
        if not self.spec.dense:
            raise ValueError(f"fill needs an array without gaps, not strides {self.spec.strides}")
        if self.readonly:
            raise ValueError(f"{self!r} is read-only: its owner forbids writing")
        item = _one_number(value, self.dtype)
        pointer, run = self.pointer, self._own_stream(stream)
        previous = streams.set_device(self.device)
        try:
            self.before_write(run)
            if self.size:
                memories.fill(pointer, item.tobytes(), self.size, run)
            self.after_write(run)
        finally:
            streams.restore_device(previous)
        return self

    def _own_stream(self, stream: Any) -> Stream:
        run = resolve_stream(stream, self.device)
        if run.device != self.device:
            raise ValueError(f"{self!r} cannot be worked on by a stream of device {run.device}")
        return run

    # --- order among streams: every operation calls these around its work on `stream` ---

    def wait_for_writer(self, stream: Stream) -> None:
        """Let ``stream`` wait for whoever wrote the contents."""
        if self.writer is not stream and self.writer != stream and not streams.is_capturing(stream):
            events.wait_stream(self.writer, stream)

    def before_write(self, stream: Stream) -> None:
        """Let ``stream`` wait for whoever wrote the contents, and for those who still read them."""
        self.wait_for_writer(stream)
        if streams.is_capturing(stream):
            return
        home = self.home  # whose reads nobody notes; where it wrote last, it was waited for just now
        if home is not None and home != self.writer:
            events.wait_stream(home, stream)
        if self._uses is not None:
            for event in list(self._uses.events.values()):
                events.wait(stream, event)

    def record_use(self, stream: Stream) -> None:
        """Note that work on ``stream`` uses the memory, which is not reused before that work is over."""
        if self.home is stream or self.home == stream:
            return
        self._known_uses().note(stream)

    def _known_uses(self) -> StreamUses:
        """The uses of the memory, which there is one record of, whichever thread asks first."""
        with lifetime.noting:
            if self._uses is None:
                self._uses = StreamUses(self.memory, self.home)
            return self._uses

    def after_write(self, stream: Stream) -> None:
        """Note that ``stream`` wrote the contents; a foreign owner's stream waits for it at once.

        The owner may write them too, unseen, so it stays the one to wait for.
        """
        self.record_use(stream)
        if not self.external or self.home is None:
            self.writer = stream
        elif self.home != stream and not streams.is_capturing(stream):
            events.wait_stream(stream, self.home)

    # --- what other libraries ask for ---

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device  # kDLCUDA

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the memory; ``stream`` is the consumer's, which waits for the contents (-1: it does not)."""
        if max_version is not None:
            max_version = _pair(max_version, "max_version")
        if dl_device is not None and _pair(dl_device, "dl_device") != self.__dlpack_device__():
            raise BufferError(f"this array is on CUDA device {self.device} and is exported only there")
        if stream == 0:
            raise ValueError("DLPack forbids stream 0 for CUDA; the legacy default stream is 1")
        if copy is not None and as_bool(copy, "copy"):
            return self.copy().__dlpack__(stream=stream, max_version=max_version)
        if self.readonly and (max_version is None or max_version < (1, 0)):  # older ones cannot mark it
            asked = "no max_version" if max_version is None else f"max_version={max_version}"
            raise BufferError(f"a read-only array needs a consumer of DLPack 1.0 or newer: got {asked}")
        pointer = self.pointer
        owner = self.memory
        if stream != -1:
            consumer = interop.consumer_stream(stream or streams.LEGACY_DEFAULT, self.device)
            self.wait_for_writer(consumer)
            owner = ExportedMemory(self.memory, self.home, consumer)
        return interop.export_dlpack(owner, pointer, self.spec, self.readonly, max_version)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.closed:
            raise AttributeError("a closed array has no memory to tell of")
        dtype = self.dtype
        if dtype.isbuiltin != 1:  # an AttributeError, so that hasattr() says no and consumers take DLPack
            raise AttributeError(f"__cuda_array_interface__ has no {self.spec.dtype}; use DLPack")
        return {
            "version": 3,
            "shape": self.shape,
            "strides": None if self.spec.strides == packed_strides(self.shape) else self.strides,
            "typestr": dtype.str,
            "data": (self.pointer, self.readonly),
            "stream": self.writer.handle,
        }


def _pair(given: Any, name: str) -> tuple[int, int]:
    try:
        one, other = (operator.index(number) for number in given)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be two integers, not {given!r}") from None
    return one, other


def _one_number(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of one element; raise for what is no real number."""
    import numpy as np

    size = 1
    try:
        item = np.asarray(value)
        size = item.size
        if size == 1 and value is not None and item.dtype.kind not in "cSUmM":
            return item.reshape(1).astype(dtype)
    except OverflowError:
        raise ValueError(f"fill takes a number that {dtype} holds") from None
    except (TypeError, ValueError):  # what NumPy makes no number of
        pass
    if size != 1:
        raise ValueError(f"fill takes one value, not {size}")
    raise TypeError(f"fill takes a real number, not {value!r}")
