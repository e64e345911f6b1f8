"""Arrays without memory, to record graphs on a machine without a GPU and to compute shapes of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from ._hints import methods_of
from .array import DeviceArray
from .cuda.array_key import view_key
from .cuda.stream import LEGACY_DEFAULT, Stream, check_stream
from .cuda.typed_memory import TypedMemory
from .dtypes import as_dtype
from .errors import NotInitializedError, not_on_shapes
from .errors import on_shapes as _active
from .shapes.checks import as_element
from .shapes.specs import ALIGNMENT, TensorSpec, nearest_layout
from .typing import DTypeLike, Layout, StreamLike

if TYPE_CHECKING:
    from numpy.typing import NDArray

STREAM = Stream(LEGACY_DEFAULT, 0)  # of arrays without memory
_POINTER = ALIGNMENT << 16  # an aligned address that nothing reads

_address: Any = vars(TypedMemory)["pointer"]  # the descriptor of the slot, which ShapeArray hides

# Whether the graphs of calls that run on shapes only are recorded.
_records: ContextVar[bool] = ContextVar("records_shapes", default=True)


@methods_of("DeviceArray")
class ShapeArray(DeviceArray):
    """An array with a shape, a dtype and strides, but without memory: its elements are zeros."""

    __slots__ = ()

    @classmethod
    def of(cls, spec: TensorSpec) -> Self:
        """Make an array of a spec."""
        return cls.over(spec, _POINTER, STREAM, STREAM, STREAM)

    @property
    def address(self) -> int:
        """The address that stands for memory; only definitions of operations have different ones."""
        address: int = _address.__get__(self)
        return address

    @property
    def pointer(self) -> int:  # as of closed arrays, no call may use it
        """Raise NotInitializedError: a kernel that read the address would end the CUDA context."""
        if _active.get():
            raise not_on_shapes()
        raise NotInitializedError(
            f"this DeviceArray of shape {self.shape} has no memory: it was made on shapes, in a block of "
            "record_plans; make it outside of the block"
        )

    @pointer.setter
    def pointer(self, address: int) -> None:
        _address.__set__(self, address)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        raise AttributeError(f"this DeviceArray of shape {self.shape} has no memory")

    def _viewed(self, make: Any, request: Any) -> Any:
        found = view_key(make, self.key, self.address, request)
        return found and type(self)(found[0], self.address + found[1], STREAM, STREAM, STREAM)

    def numpy(self) -> NDArray[Any]:
        """Return zeros; raise NotInitializedError after the block."""
        import numpy as np

        if not _active.get():
            return super().numpy()  # reads the pointer
        return np.zeros(self.shape, self.dtype)

    def copy(self, *, stream: StreamLike | None = None) -> DeviceArray:
        """Return a contiguous array."""
        return self.packed(nearest_layout(self.spec), stream)

    def packed(
        self, layout: Layout, stream: StreamLike | None = None, dtype: DTypeLike | None = None
    ) -> DeviceArray:
        """Return a contiguous array in a layout."""
        check_stream(stream)
        kind = as_dtype(self.spec.dtype if dtype is None else dtype)
        return ShapeArray.of(TensorSpec.packed(self.shape, kind, layout))

    def fill(self, value: float, *, stream: StreamLike | None = None) -> Self:
        """Check the arguments, and return the array."""
        check_stream(stream)
        as_element(value, self.dtype, "value")
        return self


ShapeArray.__name__ = DeviceArray.__name__  # in messages, which name the type of an argument

# Whether calls of this thread run on shapes only, and whether their graphs are planned and recorded.
active, records = _active.get, _records.get


def active_with(stream: Any) -> bool:
    """Return whether calls of this thread run on shapes only; then check ``stream=``, as other calls do."""
    if _active.get():
        check_stream(stream)
    return _active.get()


@contextmanager
def only_shapes(*, record: bool = True) -> Iterator[None]:
    """Let all arrays be made without memory, and calls return their shapes, in a block of this thread.

    Without ``record``, nothing is planned: calls check their arguments and return shapes.

    A call in the block that needs a GPU raises `errors.not_on_shapes`.
    """
    with set_active(True, record=record):
        yield


@contextmanager
def set_active(active: bool, *, record: bool = False) -> Iterator[None]:
    """Let calls in a block of this thread run on shapes only, unrecorded, or not."""
    before = _active.set(active), _records.set(record)
    try:
        yield
    finally:
        _active.reset(before[0])
        _records.reset(before[1])


def spec_of(obj: Any, name: str) -> TensorSpec:
    """Return the shape, strides and dtype of an array of any library, on any device."""
    if isinstance(obj, DeviceArray):
        return obj.spec
    try:
        shape = tuple(int(length) for length in obj.shape)
        kind = str(obj.dtype).rpartition(".")[2]  # torch.float16
    except (AttributeError, TypeError, ValueError):
        raise TypeError(
            f"{name} is not an array: got {type(obj).__name__}; ct.asarray({name}) makes one"
        ) from None
    try:
        dtype = as_dtype(kind)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    if callable(getattr(obj, "stride", None)):
        return TensorSpec(shape, tuple(obj.stride()), dtype.name)
    if (strides := getattr(obj, "strides", None)) is None:
        return TensorSpec.packed(shape, dtype)
    return TensorSpec(shape, tuple(stride // dtype.itemsize for stride in strides), dtype.name)
