"""Operands of a call: stream, copies that descriptors accept, and overlap of results with operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from .. import array_shapes
from ..array import DeviceArray
from ..array_creation import as_operand, not_on_device
from ..cuda import foreign, interop
from ..cuda import stream as streams
from ..cuda.array_key import ArrayKey
from ..cuda.foreign import Library, library_of
from ..cuda.stream import Stream, in_use
from ..dtypes import DTYPES
from ..shapes.checks import result_spec
from ..shapes.specs import TensorSpec, equivalent_strides, nearest_layout


def check_writable(out: TensorSpec | None, name: str = "out") -> None:
    """Raise if a descriptor cannot hold the strides of an output, or if its elements share memory."""
    if out is not None and not out.representable:
        raise ValueError(f"{name} has strides {out.strides}; cuDNN writes only where all are positive")
    if out is not None and out.overlaps_itself:
        raise ValueError(f"{name} overlaps itself: shape {out.shape} with strides {out.strides}")


def present(**arrays: Any) -> dict[str, Any]:
    """Return the arrays that are given, by name, without those that are None."""
    return {name: array for name, array in arrays.items() if array is not None}


def stream_of(x: Any, name: str, stream: Any, others: Sequence[Any] = ()) -> Stream:
    """Return the stream of a call on x, which must be on a device, and other arrays.

    It is the given one, that of ``ct.use``, the current stream of the first array of a library that has
    current streams, or the default stream of the device of x.
    """
    if array_shapes.active_with(stream):
        return array_shapes.STREAM
    if not isinstance(x, DeviceArray) and _is_host_array(x):  # raise before a device is needed
        raise not_on_device(x, name)
    if stream is None:
        found = streams.in_use.get()
        if found is None:
            found = foreign.current_stream([one for one in (x, *others) if type(one) is not DeviceArray])
        if found is not None:
            return found
    if isinstance(x, DeviceArray):
        device: int | None = x.device
    else:
        device = interop.device_of(x) if streams.device_count() > 1 else 0
    if stream is None:
        return streams.current_stream(device)
    return streams.as_stream(stream, streams.current_stream().device if device is None else device)


def _is_host_array(obj: Any) -> bool:
    """Return whether an object is known to be in host memory; arrays that only `foreign` can read are not."""
    plain = type(obj).__module__ in ("numpy", "builtins")
    return plain or (hasattr(obj, "__dlpack_device__") and interop.in_host_memory(obj))


def read_arrays(
    operands: Sequence[Any], outs: Sequence[Any], stream: Any
) -> tuple[Stream, list[ArrayKey | None], list[int], Sequence[Any]] | None:
    """Read arrays that need no import: those of libraries that work on the stream of the call now.

    Returns the stream, the keys of all arrays, the pointers of the operands, and the outputs as arrays of
    this package; None if an array has to be imported by :func:`import_arrays`.
    """
    where = in_use.get() if stream is None else stream
    library: Library | None = None
    keys: list[ArrayKey | None] = []
    pointers: list[int] = []
    given: list[DeviceArray | None] = []
    kind = home = None
    for array in (*operands, *outs):
        if type(array) is DeviceArray:
            if array.writer is not where or array.home is not where or (array._uses and array._uses.events):
                return None
            key, pointer = array.key, array.pointer
        elif array is None and len(keys) >= len(operands):
            keys.append(None)
            given.append(None)
            continue
        else:
            if type(array) is not kind:
                kind, home = type(array), None
                library = library_of(kind)
            found = None if library is None else library.read(array)
            if library is None or found is None:
                return None
            pointer, key = found
            if home is None:
                home = library.current(key.device)
                where = where or home
            if home is not where:
                return None
        if len(keys) >= len(operands):
            if type(array) is not DeviceArray and library is not None and home is not None:
                array = DeviceArray(key, pointer, library.owner(array), home, home, True)
            given.append(array)
        else:
            pointers.append(pointer)
        keys.append(key)
    return None if where is None else (where, keys, pointers, given)


def wrap_arrays(
    arrays: Sequence[Any], keys: Sequence[ArrayKey | None], pointers: Sequence[int], stream: Stream
) -> tuple[DeviceArray, ...]:
    """Return arrays of this package over operands that :func:`read_arrays` has read."""
    return tuple(
        array if type(array) is DeviceArray else DeviceArray(key, pointer, array, stream, stream, True)
        for array, key, pointer in zip(arrays, keys, pointers, strict=False)
        if key is not None
    )


def read_or_import(
    operands: tuple[Any, ...],
    outs: tuple[Any, ...],
    names: Sequence[str],
    written: Sequence[str],
    stream: Any,
) -> tuple[tuple[DeviceArray, ...], tuple[DeviceArray | None, ...], Stream]:
    """Return the arrays of a call of a plan, imported from other libraries, and its stream."""
    written_to = [out for out in outs if out is not None]
    if all(type(array) is DeviceArray for array in (*operands, *written_to)):
        device = operands[0].device
        where = in_use.get() if stream is None else streams.as_stream(stream, device)
        return operands, outs, where or streams.default_stream(device)
    found = read_arrays(operands, outs, stream)
    if found is None:
        return import_arrays(operands, outs, names, written, stream)
    where, keys, pointers, given = found
    return wrap_arrays(operands, keys, pointers, where), tuple(given), where


def import_arrays(
    operands: Sequence[Any], outs: Sequence[Any], names: Sequence[str], written: Sequence[str], stream: Any
) -> tuple[tuple[Any, ...], tuple[Any, ...], Stream]:
    """Import arrays of other libraries; return all arrays, and the stream, ordered after their work."""
    first, *others = (*operands, *outs)
    where = stream_of(first, (*names, *written)[0], stream, others)
    with streams.on_device(where.device):
        arrays = [as_operand(array, name, where) for array, name in zip(operands, names, strict=True)]
        given = [
            None if out is None and operands else as_operand(out, name, where, written=True)
            for out, name in zip(outs, written, strict=False)
        ]
    return tuple(arrays), tuple(given), where


def unexpanded(spec: TensorSpec) -> TensorSpec:
    """Return a spec with length 1 along each axis with a stride of 0; libraries give it to empty arrays."""
    if not spec.size:
        return spec
    pairs = [(1, 1) if step == 0 and n > 1 else (n, step) for n, step in zip(*spec[:2], strict=True)]
    return spec._replace(shape=tuple(n for n, _ in pairs), strides=tuple(step for _, step in pairs))


def representable(spec: TensorSpec) -> TensorSpec:
    """Return the spec, or the spec of a packed copy if a descriptor cannot hold its strides."""
    return spec if spec.representable else TensorSpec.packed(spec.shape, spec.dtype, nearest_layout(spec))


def results_of_calls(
    outs: Sequence[Any], expected: dict[str, TensorSpec], operands: Sequence[DeviceArray], stream: Stream
) -> list[DeviceArray | None]:
    """Import and check the results that are given to an operation of several calls, before any is written.

    The results have the names, shapes and dtypes of ``expected``. Each call checks its own operands alone.
    """
    given: list[DeviceArray | None] = []
    for out, (name, spec) in zip(outs, expected.items(), strict=True):
        array = None if out is None else as_operand(out, name, stream, written=True)
        if array is not None:
            check_writable(array.spec, name)
            result_spec(spec.shape, spec, out=array.spec, name=name)
        given.append(array)
    if array_shapes.active():  # arrays without memory have one address
        return given
    spans = [(0, 0) if array is None else byte_extent(array.spec) for array in (*operands, *given)]
    refuse_overlap(operands, given, spans)
    return given


def refuse_overlap(
    inputs: Sequence[DeviceArray | None],
    results: Sequence[DeviceArray | None],
    spans: Sequence[tuple[int, int]],
    *,
    in_place: bool = False,
) -> None:
    """Raise if a result shares memory with another operand; ``spans`` are byte extents of all arrays."""
    arrays = (*inputs, *results)
    for place in range(len(inputs), len(arrays)):
        result, (low, high) = arrays[place], spans[place]
        if result is None:
            continue
        first, last = result.pointer + low, result.pointer + high
        for array, (low, high) in zip(arrays[:place], spans, strict=False):
            if array is None:
                continue
            start = array.pointer
            if in_place and start == result.pointer and _same_elements(array.spec, result.spec):
                continue
            near = start + low < last and first < start + high
            if near and share_elements(array.spec, result.spec, result.pointer - start):
                raise ValueError(
                    f"out overlaps {array!r} in memory; cuDNN would read what it has already written"
                )


def _same_elements(one: TensorSpec, two: TensorSpec) -> bool:
    alike = one.shape == two.shape and one.dtype == two.dtype
    return alike and equivalent_strides(one.shape, one.strides, two.strides)


def byte_extent(spec: TensorSpec) -> tuple[int, int]:
    """Return the range of bytes in use, relative to the pointer of an array."""
    low, high = spec.extent
    itemsize = DTYPES[spec.dtype].itemsize
    return low * itemsize, high * itemsize


@lru_cache(256)
def share_elements(one: TensorSpec, two: TensorSpec, distance: int) -> bool:
    """Return whether tensors share an element: channel slices do not, although their ranges overlap."""
    import numpy as np

    views = []  # over invented addresses, ``distance`` bytes apart; their elements must not be read
    for spec, address in ((one, 2**62), (two, 2**62 + distance)):
        itemsize = DTYPES[spec.dtype].itemsize
        strides = tuple([stride * itemsize for stride in spec.strides])
        interface = {"version": 3, "shape": spec.shape, "strides": strides}
        interface |= {"typestr": f"|V{itemsize}", "data": (address, True)}
        views.append(np.asarray(SimpleNamespace(__array_interface__=interface)))
    try:
        return np.shares_memory(views[0], views[1], max_work=10_000_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
