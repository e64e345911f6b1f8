"""Device memory of the elements of a tensor: attributes, views, order among streams, export."""

from __future__ import annotations

import copy as copying
import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, Self
from weakref import ref

from .._hints import methods_of
from ..dtypes import DTYPES
from ..shapes.checks import as_bool
from ..shapes.specs import UNALIGNED, TensorSpec, packed_strides
from ..shapes.views import flat_index, index_view, transpose_view
from ..typing import Index, Layout
from . import event as events
from . import interop, lifetime, recording
from . import stream as streams
from .array_key import ArrayKey, array_key, known_view_key, view_key
from .stream import Stream

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import CapsuleType


@methods_of("DeviceArray")
class TypedMemory:
    """Device memory with a shape, a dtype and strides: the attributes of :class:`DeviceArray`.

    An operation calls `wait_for_writer` or `before_write` for each operand before it enqueues work, and
    `record_use` or `after_write` afterwards. ``memory`` is the owner of the memory, None after ``close()``.
    """

    __slots__ = ("__weakref__", "_uses", "external", "home", "key", "memory", "pointer", "writer")

    def __init__(
        self,
        key: ArrayKey,
        pointer: int,
        memory: object,
        writer: Stream,
        home: Stream | None,
        external: bool = False,
    ) -> None:
        self.key = key
        self.pointer = pointer
        self.memory = memory
        self.home = home
        self.writer = writer
        self.external = external
        self._uses: lifetime.StreamUses | None = None

    @classmethod
    def over(
        cls,
        spec: TensorSpec,
        pointer: int,
        memory: object,
        writer: Stream,
        home: Stream | None = None,
        *,
        external: bool = False,
        readonly: bool = False,
    ) -> Self:
        """Return an array over memory that ``memory`` owns, on the device of ``writer``."""
        key = array_key(spec, writer.device, not pointer & UNALIGNED, readonly)
        return cls(key, pointer, memory, writer, home, external)

    @property
    def spec(self) -> TensorSpec:
        """Shape, strides in elements and dtype name, as one hashable value."""
        return self.key.spec

    @property
    def device(self) -> int:
        """Number of the device."""
        return self.key.device

    @property
    def readonly(self) -> bool:
        """Whether the owner of the memory forbids writing."""
        return self.key.readonly

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.key.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype; from ml_dtypes for bfloat16 and the eight-bit floats."""
        return DTYPES[self.spec.dtype].numpy

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes, as in NumPy. ``spec.strides`` has strides in elements, as in cuDNN."""
        itemsize = self.itemsize
        return tuple(s * itemsize for s in self.spec.strides)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.key.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.key.spec.size

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return DTYPES[self.key.spec.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, gaps between them not counted."""
        return self.size * self.itemsize

    @property
    def layout(self) -> Layout | None:
        """``"nchw"`` (C order), ``"nhwc"`` (channels last), or None for a view with gaps.

        With one channel, or images of one pixel, the strides of axes of length 1 distinguish the two.
        """
        return self.spec.layout

    @property
    def closed(self) -> bool:
        """Whether the array was closed."""
        return self.memory is None

    def close(self) -> None:
        """Release the memory; it is freed after pending work that uses it, and after the last view of it."""
        if not self.closed:
            self.memory = None
            self._uses = None
            kind: Any = type(self)
            self.__class__ = _closed_kind(kind)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a DeviceArray without axes has no len()")
        return self.shape[0]

    # --- views ---

    def view_as(self, spec: TensorSpec, offset: int = 0) -> Self:
        """Return a view of the memory with another spec, ``offset`` elements of this array's dtype behind."""
        return self._viewed(None, (spec, offset))

    def _viewed(self, make: Any, request: Any) -> Self:
        """Return a view with the spec and the offset that ``make`` returns, or those in the request."""
        pointer = self.pointer
        try:
            found = known_view_key(make, self.key, pointer & UNALIGNED, *request)
        except TypeError:
            found = None
        if found is None and (found := view_key(make, self.key, pointer, request)) is None:
            return None  # type: ignore[return-value]  # of a reshape
        key, offset = found
        view = type(self)(key, pointer + offset, self.memory, self.writer, self.home, self.external)
        self.share_order(view)
        return view

    def __getitem__(self, key: Index) -> Self:
        return self._viewed(index_view, flat_index(key))

    def __iter__(self) -> Iterator[Self]:
        return map(self.__getitem__, range(len(self)))

    __contains__ = None  # else Python would compare the views by identity

    def transpose(self, *axes: int | Sequence[int]) -> Self:
        """Return a view with the axes in another order, by default reversed.

        Each axis is named once, else ValueError is raised.

        Examples
        --------
        >>> ct.zeros((2, 3, 4)).transpose(0, 2, 1).shape
        (2, 4, 3)
        """
        many = len(axes) == 1 and (type(axes[0]) is tuple or isinstance(axes[0], Sequence))
        return self._viewed(transpose_view, axes[0] if many else axes)

    @property
    def T(self) -> Self:  # noqa: N802 - NumPy's name
        """A view with the axes in reverse order."""
        return self._viewed(transpose_view, ())

    # --- order among streams ---

    def wait_for_writer(self, stream: Stream) -> None:
        """Make ``stream`` wait for the last writer of the contents."""
        if self.writer is stream or self.writer == stream:
            return
        if streams.is_capturing(stream):
            recording.note_read(self)
        else:
            events.wait_stream(self.writer, stream)

    def before_write(self, stream: Stream) -> None:
        """Make ``stream`` wait for the last writer of the contents, and for work that reads them."""
        if streams.is_capturing(stream):
            recording.note_written(self)
            return
        self.wait_for_writer(stream)
        home = self.home  # reads on the home stream are not recorded
        if home is not None and home != self.writer:  # else `wait_for_writer` has waited for them
            events.wait_stream(home, stream)
        if self._uses is not None:
            for event in list(self._uses.events.values()):
                events.wait(stream, event)

    def belongs_to(self, stream: Stream) -> bool:
        """Return whether only ``stream`` has used the memory: then a write on it needs no order."""
        return self.writer is stream and self.home is stream and self._uses is None

    def record_use(self, stream: Stream) -> None:
        """Record that work on ``stream`` uses the memory, which is freed only after that work."""
        if self.home is not stream and self.home != stream:
            self._known_uses().note(stream)

    def after_write(self, stream: Stream) -> None:
        """Record that ``stream`` wrote the contents, and make a foreign owner's stream wait for it.

        A foreign owner may write too, unseen by this package, so its stream stays the last writer.
        """
        self.record_use(stream)
        if not self.external or self.home is None:
            self.set_writer(stream)
        elif self.home != stream and not streams.is_capturing(stream):
            events.wait_stream(stream, self.home)

    def set_writer(self, stream: Stream) -> None:
        """Note the last writer of the memory, for all arrays over it."""
        self.writer = stream
        if self._uses is not None and self._uses.views:
            with lifetime.noting:
                for one in self._uses.views:
                    if (view := one()) is not None:
                        view.writer = stream

    def share_order(self, view: TypedMemory) -> None:
        """Give another object over the same memory the same uses, and keep their last writers equal."""
        with lifetime.noting:  # another thread may record a write meanwhile
            uses = self._known_uses()
            if (count := len(views := uses.views)) >= uses.room:
                uses.room = 2 * count  # a finalizer or a signal handler that makes a view now only adds it
                views[:count] = [one for one in views[:count] if one() is not None]
                uses.room = 16 + 2 * len(views)
            views += (ref(view),) if views else (ref(self), ref(view))
            view._uses = uses
            view.writer = self.writer

    def _known_uses(self) -> lifetime.StreamUses:
        """Return the one record of the memory's uses, whichever thread creates it."""
        with lifetime.noting:
            if self._uses is None or self._uses.over:
                self._uses = lifetime.StreamUses(self.memory, self.home)
            return self._uses

    # --- exchange with other libraries ---

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device  # kDLCUDA

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the memory. The consumer's ``stream`` waits for the contents, unless it is -1."""
        if max_version is not None:
            max_version = _pair(max_version, "max_version")
        if dl_device is not None and _pair(dl_device, "dl_device") != self.__dlpack_device__():
            raise BufferError(
                f"dl_device must be the array's own device: got {dl_device}, expected {(2, self.device)}"
            )
        if stream == 0:
            raise ValueError("DLPack forbids stream 0 for CUDA; the legacy default stream is 1")
        if copy is not None and as_bool(copy, "copy"):
            return copying.copy(self).__dlpack__(stream=stream, max_version=max_version)
        if any(step < 0 for step, length in zip(self.spec.strides, self.shape, strict=True) if length > 1):
            raise BufferError(
                "an array with negative strides is not exported, because consumers may not check "
                "them: export a copy, as x.copy() or with copy=True"
            )
        if self.readonly and (max_version is None or max_version < (1, 0)):  # no flag for it
            asked = "no max_version" if max_version is None else f"max_version={max_version}"
            raise BufferError(f"a read-only array needs a consumer of DLPack 1.0 or newer: got {asked}")
        pointer, owner = self.pointer, self.memory
        if stream != -1:
            consumer = interop.consumer_stream(stream or streams.LEGACY_DEFAULT, self.device)
            self.wait_for_writer(consumer)
            owner = lifetime.ExportedMemory(self.memory, self.home, consumer)
        capsule: CapsuleType = interop.export_dlpack(owner, pointer, self.spec, self.readonly, max_version)
        return capsule

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        if self.closed:
            raise AttributeError(f"this DeviceArray of shape {self.shape} is closed")
        dtype = self.dtype
        if dtype.isbuiltin != 1:  # an AttributeError, so that hasattr() is False and consumers use DLPack
            raise AttributeError(f"__cuda_array_interface__ does not support {self.spec.dtype}; use DLPack")
        return {
            "version": 3,
            "shape": self.shape,
            "strides": None if self.spec.strides == packed_strides(self.shape) else self.strides,
            "typestr": dtype.str,
            "data": (self.pointer, self.readonly),
            "stream": self.writer.handle,
        }


def _raise_closed(array: TypedMemory) -> NoReturn:
    raise ValueError(f"this DeviceArray of shape {array.shape} is closed")


@lru_cache
def _closed_kind(kind: Any) -> Any:
    """Return the class of closed arrays, which have no address: a test in each call would cost time."""
    return type(kind.__name__, (kind,), {"__slots__": (), "pointer": property(_raise_closed)})


def _pair(given: Any, name: str) -> tuple[int, int]:
    try:
        one, other = (operator.index(number) for number in given)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be two integers: got {given!r}") from None
    return one, other
