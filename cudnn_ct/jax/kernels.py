"""Bodies of the handlers: cuDNN on the memory of XLA, or the reference on the CPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct
from cudnn_ct import reference

from .. import context
from ..array import DeviceArray
from ..cuda import replay as replays
from ..cuda import stream as streams
from ..cuda.allocator import LentMemory
from ..cuda.array_key import array_key
from ..dtypes import DTYPES
from ..errors import AllocationError, NotSupportedError
from ..shapes.specs import UNALIGNED, TensorSpec
from .calls import Call
from .ffi import Frame
from .networks import ON_CPU, ON_GPU

__all__ = ["NOTHING", "Learned", "code_of", "learned", "on_cpu", "on_gpu"]

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 3, 8, 12, 13  # XLA_FFI_Error_Code


def code_of(error: Exception) -> int:
    """Return XLA's code of an exception."""
    for kinds, code in (
        (NotSupportedError, UNIMPLEMENTED),
        (AllocationError, RESOURCE_EXHAUSTED),
        ((ValueError, TypeError), INVALID_ARGUMENT),
    ):
        if isinstance(error, kinds):
            return code
    return INTERNAL


# --- the GPU -----------------------------------------------------------------------------------------------


class _Ready(NamedTuple):
    """A call that was read, and the keywords of its function."""

    call: Call
    function: Any
    keywords: dict[str, Any]


@lru_cache(4096)
def _ready(text: bytes) -> _Ready:
    call = Call.read(text)
    function = ON_GPU.get(call.name) or getattr(cudnn_ct, call.row.function)
    return _Ready(call, function, call.keywords() | call.selection())


@contextmanager
def _shared() -> Iterator[None]:
    """Use the contexts that the threads of XLA share, one after another: it runs a call on any thread.

    Each thread would need a handle, plans and workspaces of its own otherwise.
    """
    with _lock:
        own, context.local.contexts = context.local.contexts, _contexts
        try:
            yield
        finally:
            context.local.contexts = own


_lock = threading.RLock()
_contexts = context.Contexts()


def _operands(call: Call, given: Iterable[Any]) -> dict[str, Any]:
    """Return operands by their names, None for those that are not given."""
    return {**dict.fromkeys(call.row.optional), **dict(zip(call.present, given, strict=True))}


class _External:
    """Owner of memory that XLA manages."""


_EXTERNAL = _External()


def on_gpu(frame: Frame) -> None:
    """Enqueue a call on XLA's stream. A workspace is the result behind those of the call."""
    address, device = frame.place()
    stream = streams.intern_stream(address, device)
    function, keywords, spare = _prepared(frame.call, frame.operands, frame.results, stream)
    previous = streams.set_device(device)
    before = streams.relax()  # XLA may capture the call, and a plan may have to be built
    try:
        with _lock:  # as in _shared and _lending, whose generators would take microseconds of each call
            own, context.local.contexts = context.local.contexts, _contexts
            try:
                where = context.of_device(device)
                where.lent = LentMemory(spare, _bytes_of_last(frame)) if spare else None
                try:
                    function(**keywords)
                finally:
                    where.lent = None
            finally:
                context.local.contexts = own
    finally:
        streams.unrelax(before)
        streams.restore_device(previous)


@lru_cache(4096)
def _prepared(
    text: bytes, operands: tuple[int, ...], results: tuple[int, ...], stream: Any
) -> tuple[Any, dict[str, Any], int]:
    """Return the function of a call, its keywords, and the address of the workspace or 0."""
    ready = _ready(text)
    call = ready.call
    arrays = [_array(*one, stream) for one in zip(call.operands, operands, strict=True)]
    outs = [_array(*one, stream) for one in zip(call.results, results, strict=False)]
    spare = results[len(outs)] if len(results) > len(outs) else 0
    return ready.function, _keywords(ready, arrays, outs, stream), spare


def _keywords(
    ready: _Ready, operands: list[DeviceArray], outs: list[DeviceArray], stream: Any
) -> dict[str, Any]:
    given = _operands(ready.call, operands)
    return {**given, **ready.keywords, "out": outs[0] if len(outs) == 1 else tuple(outs), "stream": stream}


@contextmanager
def _lending(where: context.Context, pointer: int, nbytes: int) -> Iterator[LentMemory]:
    """Let calls in a block use a workspace of XLA if it is large enough."""
    where.lent = lent = LentMemory(pointer, nbytes)
    try:
        yield lent
    finally:
        where.lent = None


def _bytes_of_last(frame: Frame) -> int:
    last = frame.raw.results.buffers[len(frame.results) - 1][0]
    return prod(last.dims[: last.rank])


def _run(ready: _Ready, operands: list[DeviceArray], outs: list[DeviceArray], stream: Any) -> None:
    ready.function(**_keywords(ready, operands, outs, stream))


def _array(spec: TensorSpec, pointer: int, stream: Any) -> DeviceArray:
    key = array_key(spec, stream.device, not pointer & UNALIGNED, False)
    return DeviceArray(key, pointer, _EXTERNAL, stream, stream, True)


class Learned(NamedTuple):
    """The workspace of a call in bytes, and whether XLA may capture it: then nothing in it allocates."""

    workspace: int
    capturable: bool


NOTHING = Learned(0, False)


@lru_cache(4096)
def learned(text: str) -> Learned:
    """Run a call on memory of its own, twice eagerly and once captured, and return what XLA has to know.

    Its plan is built, its kernels are loaded and its algorithm is measured where settings ask for it, so that
    nothing of it is left for a call that XLA captures. Operands are random, because a first result may be
    compared with another engine's.
    """
    ready = _ready(text.encode())
    try:
        with _shared():
            operands = [_example(spec) for spec in ready.call.operands]
            outs = [_empty(spec) for spec in ready.call.results]
            where = context.of_device(outs[0].device)
            with _lending(where, 0, 0):  # candidates and second opinions want more than the selected plan
                _run(ready, operands, outs, None)
            with _lending(where, 0, 0) as lent:
                _run(ready, operands, outs, None)
            room = cudnn_ct.empty((lent.wanted,), "uint8")
            with _lending(where, room.pointer, lent.wanted):
                capturable = _is_capturable(where.device, partial(_run, ready, operands, outs))
            cudnn_ct.synchronize()
    except AllocationError:
        return NOTHING
    return Learned(lent.wanted, capturable)


def _is_capturable(device: int, run: Callable[[Any], None]) -> bool:
    try:
        replays.capture(device, run)
    except Exception:  # of any kind: XLA runs the call without a capture
        return False
    return True


def _example(spec: TensorSpec) -> DeviceArray:
    """Return an array of small numbers; of ones if it has integers, such as lengths."""
    rng = np.random.default_rng(0)
    kind = DTYPES[spec.dtype].numpy
    block = rng.uniform(0.5, 1.5, 2**16) if spec.dtype.startswith(("float", "bfloat")) else np.ones(1)
    return cudnn_ct.asarray(np.resize(block.astype(kind), spec.shape), layout=_layout(spec))


def _empty(spec: TensorSpec) -> DeviceArray:
    return cudnn_ct.empty(spec.shape, spec.dtype, layout=_layout(spec))


def _layout(spec: TensorSpec) -> Any:
    return spec.layout or "nchw"


# --- the CPU -----------------------------------------------------------------------------------------------


def on_cpu(frame: Frame) -> None:
    """Compute a call by the reference."""
    call = _ready(frame.call).call
    row, keywords = call.row, call.keywords()
    function = ON_CPU.get(call.name) or getattr(reference, row.function)
    arrays = (_host(*one) for one in zip(call.operands, frame.operands, strict=True))
    given = _operands(call, arrays)
    found = function(**given, **keywords)
    fields: Sequence[Any] = (found,)
    if isinstance(found, tuple):
        fields = [getattr(found, one) for one in row.results] if hasattr(found, "_fields") else found
    for value, spec, pointer in zip(fields, call.results, frame.results, strict=False):
        _host(spec, pointer)[...] = value


def _host(spec: TensorSpec, pointer: int) -> Any:
    """Return memory of XLA as an array of NumPy."""
    row = DTYPES[spec.dtype]
    if not spec.size:
        return np.empty(spec.shape, row.numpy)
    memory: Any = (ctypes.c_uint8 * (spec.size * row.itemsize)).from_address(pointer)
    return np.ndarray(spec.shape, row.numpy, memory, 0, tuple(step * row.itemsize for step in spec.strides))
