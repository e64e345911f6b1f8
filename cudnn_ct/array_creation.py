"""Creates arrays on the device, and imports arrays of other libraries."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Any, Never

from . import array_shapes
from ._hints import UNSET, corrected, known_keywords
from .array import DeviceArray
from .cuda import foreign, interop
from .cuda import stream as streams
from .cuda.interop import refuse_address
from .cuda.stream import Stream, resolve_stream
from .dtypes import DTYPES, DType, as_dtype
from .errors import NotInitializedError
from .shapes.checks import as_choice
from .shapes.specs import LAYOUTS, TensorSpec, nearest_layout
from .typing import DTypeLike, Layout, Shape, StreamLike

# Kinds of NumPy dtypes that are not real numbers, although a cast would convert a text or a date.
NO_NUMBERS = "cSUOmM"


@known_keywords
def empty(
    shape: Shape,
    dtype: DTypeLike = "float32",
    *more: Never,
    layout: Layout = "nchw",
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Allocate an array on the current device; its contents are undefined.

    Parameters
    ----------
    shape : tuple of int, or int
    dtype : anything :func:`cudnn_ct.dtypes.as_dtype` takes
    layout : {"nchw", "nhwc"}
        C order, or channels last in memory (1 to 3 spatial axes). The shape is (N, C, ...) either way.
    stream : optional
        The stream to allocate on: an address or anything with ``__cuda_stream__``.

    Returns
    -------
    DeviceArray

    Raises
    ------
    AllocationError
        Device memory ran out (also a MemoryError).
    NotInitializedError
        No driver or no device exists.

    Examples
    --------
    >>> ct.empty((8, 3, 32, 32), "float16", layout="nhwc")
    DeviceArray(float16[8, 3, 32, 32], nhwc, device 0)
    """
    if more or unknown or shape is UNSET:
        return corrected(empty, locals())
    lengths: Any = shape
    if not isinstance(shape, tuple | list):
        with suppress(TypeError):  # it may be an array of lengths
            lengths = (operator.index(lengths),)
    spec = TensorSpec.packed(lengths, dtype, layout)
    if array_shapes.active_with(stream):
        return array_shapes.ShapeArray.of(spec)
    run = resolve_stream(stream)
    with streams.on_device(run.device):
        return DeviceArray.new(spec, spec.size * DTYPES[spec.dtype].itemsize, run)


@known_keywords
def full(
    shape: Shape,
    value: float,
    dtype: DTypeLike = "float32",
    *more: Never,
    layout: Layout = "nchw",
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Allocate an array on the current device with every element ``value``.

    Parameters
    ----------
    shape, dtype, layout, stream
        As in :func:`empty`.
    value : number
        Cast to ``dtype``.

    Returns
    -------
    DeviceArray

    Raises
    ------
    AllocationError, NotInitializedError
        As in :func:`empty`.

    Examples
    --------
    >>> ct.full((2,), 7).numpy()
    array([7., 7.], dtype=float32)
    """
    if more or unknown or shape is UNSET or value is UNSET:
        return corrected(full, locals())
    array = empty(shape, dtype, layout=layout, stream=stream)
    return array.fill(value, stream=array.home)


@known_keywords
def zeros(
    shape: Shape,
    dtype: DTypeLike = "float32",
    *more: Never,
    layout: Layout = "nchw",
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Allocate an array of zeros on the current device.

    Parameters
    ----------
    shape, dtype, layout, stream
        As in :func:`empty`.

    Returns
    -------
    DeviceArray

    Raises
    ------
    AllocationError, NotInitializedError
        As in :func:`empty`.

    Examples
    --------
    >>> ct.zeros((3,), "int32").numpy()
    array([0, 0, 0], dtype=int32)
    """
    if more or unknown or shape is UNSET:
        return corrected(zeros, locals())
    return full(shape, 0, dtype, layout=layout, stream=stream)


@known_keywords
def asarray(
    obj: object,
    dtype: DTypeLike | None = None,
    *more: Never,
    layout: Layout | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Convert anything array-like to a :class:`DeviceArray`.

    GPU arrays of other libraries with DLPack or ``__cuda_array_interface__`` are used in place, without a
    copy; torch copies a tensor whose negative bit is set (``z.conj().imag``). Anything else is converted by
    NumPy and copied to the current device.

    Parameters
    ----------
    obj : array of any library, DeviceArray, number or nested sequence of numbers
        A DeviceArray is returned itself.
    dtype : anything :func:`cudnn_ct.dtypes.as_dtype` takes, optional
        By default that of ``obj``; float64 for Python floats, as in NumPy. Device arrays of another dtype are
        converted as by :meth:`DeviceArray.astype`.
    layout : {"nchw", "nhwc"}, optional
        The order in memory; the shape is (N, C, ...) either way. By default that of a device array, or the
        nearest to it; C order for anything else.
    stream : optional
        The stream to copy on, and to order after the work of another library: an address or anything with
        ``__cuda_stream__``.

    Returns
    -------
    DeviceArray
        ``obj`` itself, its memory, or a copy.

    Raises
    ------
    TypeError
        ``obj`` is an address or memory without a dtype, which :func:`from_pointer` takes; or cuDNN does not
        have the dtype; or ``obj`` has complex numbers, strings, dates or objects; or it is a
        tensor of torch that requires grad.
    ValueError
        ``layout`` does not exist for this number of axes; or the memory of ``obj`` is at address 0.
    AllocationError, NotInitializedError
        As in :func:`empty`; NotInitializedError also for a tensor with the negative bit, in a capture.

    Examples
    --------
    >>> ct.asarray(np.ones((1, 3, 2, 2), np.float32), layout="nhwc")
    DeviceArray(float32[1, 3, 2, 2], nhwc, device 0)
    """
    if more or unknown or obj is UNSET:
        return corrected(asarray, locals())
    refuse_address(obj)
    kind = None if dtype is None else as_dtype(dtype)
    name = None if layout is None else as_choice(layout, LAYOUTS, "layout")
    if array_shapes.active_with(stream):
        return _shape_of(obj, kind, name)
    if not isinstance(obj, DeviceArray) and interop.in_host_memory(obj):
        return _from_host(obj, kind, name, stream)
    device = obj.device if isinstance(obj, DeviceArray) else interop.device_of(obj)
    if stream is None and streams.in_use.get() is None:
        stream = foreign.current_stream((obj,))
    run = resolve_stream(stream, device)
    array = obj if isinstance(obj, DeviceArray) else _imported(obj, run, kept=True)
    if array is None:
        return _from_host(obj, kind, name, run)
    if (kind is None or kind.name == array.spec.dtype) and (name is None or name in array.spec.layouts):
        if name in (None, array.layout):
            return array
        return array.view_as(TensorSpec.packed(array.shape, array.spec.dtype, name))
    return array.packed(name or nearest_layout(array.spec), run, kind and kind.name)


def _shape_of(obj: Any, kind: DType | None, layout: Layout | None) -> DeviceArray:
    """Return the array that :func:`asarray` returns, without memory."""
    spec = array_shapes.spec_of(obj if hasattr(obj, "shape") else _as_host_array(obj), "obj")
    if kind in (None, as_dtype(spec.dtype)) and (layout is None or layout in spec.layouts):
        return array_shapes.ShapeArray.of(spec)
    target = TensorSpec.packed(spec.shape, kind or spec.dtype, layout or nearest_layout(spec))
    return array_shapes.ShapeArray.of(target)


def as_operand(obj: Any, name: str, stream: Stream, *, written: bool = False) -> DeviceArray:
    """Return an operand as a DeviceArray, without copying from the host; raise if it cannot be used here."""
    if not isinstance(obj, DeviceArray) and array_shapes.active():
        return array_shapes.ShapeArray.of(array_shapes.spec_of(obj, name))
    array = obj if isinstance(obj, DeviceArray) else _imported(obj, stream, kept=written)
    if array is None:
        raise not_on_device(obj, name)
    if array.key.device != stream.device:
        raise ValueError(f"{name} is on another device: got {array.device}, expected {stream.device}")
    if written and array.key.readonly:
        raise ValueError(f"{name} is read-only: its owner forbids writing")
    if written and array.external and array is not obj and _is_negated(obj):
        raise ValueError(f"{name} cannot be written: its negative bit is set; pass tensor.resolve_neg()")
    return array


def not_on_device(obj: Any, name: str) -> TypeError:
    """Return the error for an operand without device memory."""
    refuse_address(obj)
    where = " on the CPU" if hasattr(obj, "shape") and interop.in_host_memory(obj) else ""
    return TypeError(
        f"{name} must be an array on the device, not {interop.type_name(obj)}{where}; "
        f"ct.asarray({name}) makes one"
    )


def _from_host(obj: Any, dtype: DType | None, layout: Layout | None, stream: Any) -> DeviceArray:
    """Copy an object that NumPy can read to the device; check dtype and shape before using the device."""
    import numpy as np

    host = _as_host_array(obj.resolve_neg() if _is_negated(obj) else obj)
    numbers = host.dtype.kind not in NO_NUMBERS and host.dtype.type is not np.void  # of structured arrays
    kind = dtype if dtype is not None and numbers else as_dtype(host.dtype)
    TensorSpec.packed(host.shape, kind, layout or "nchw")
    return DeviceArray.from_host(host, kind, layout or "nchw", resolve_stream(stream))


def _as_host_array(obj: Any) -> Any:
    """Return what NumPy reads; name the argument if it cannot, such as lists of unequal lengths."""
    import numpy as np

    try:
        return np.asarray(obj)
    except ValueError as error:
        raise ValueError(f"obj is not an array: got {interop.type_name(obj)}; NumPy: {error}") from None


def _imported(obj: Any, stream: Stream, *, kept: bool) -> DeviceArray | None:
    """Wrap a device array of another library; return None for an object without device memory."""
    array = _read(obj, stream, kept)
    return _wrap(obj, stream) if array is None else array


def _read(obj: Any, stream: Stream, kept: bool) -> DeviceArray | None:
    """Wrap an array of a library in `foreign`, or return None; ``kept`` is set if it outlives the call."""
    library = foreign.library_of(type(obj))
    found = None if library is None else library.read(obj)
    if library is None or found is None:
        return None
    pointer, key = found
    home = library.current(key.device)
    memory = obj
    if home is not stream:
        kept = True  # the call orders the streams
    if kept:
        memory = library.owner(obj)
    return DeviceArray(key, pointer, memory, home, home, True)


def _wrap(obj: Any, stream: Stream) -> DeviceArray | None:
    """Wrap an array by DLPack or ``__cuda_array_interface__``; return None for one without device memory."""
    refuse_address(obj)
    if _is_negated(obj):  # no protocol exports the bit
        if streams.is_capturing(stream):  # a launched graph would read the copy after it was freed
            raise NotInitializedError(
                "a tensor with the negative bit set cannot be copied in a capture; pass tensor.resolve_neg()"
            )
        obj = obj.resolve_neg()
    if (foreign := interop.import_array(obj, stream)) is None:
        return None
    if not foreign.pointer and foreign.spec.size:
        raise ValueError(f"{interop.type_name(obj)} is not usable: its {foreign.spec} is at address 0")
    here = stream if stream.device == foreign.device else streams.default_stream(foreign.device)
    writer = foreign.home or here
    memory = (foreign.spec, foreign.pointer, foreign.owner, writer, foreign.home)
    return DeviceArray.over(*memory, external=True, readonly=foreign.readonly)


def _is_negated(obj: Any) -> bool:
    """Return whether a tensor of torch holds its elements with the other sign, as ``z.conj().imag`` does."""
    is_neg = getattr(obj, "is_neg", None)
    return is_neg is not None and bool(is_neg())
