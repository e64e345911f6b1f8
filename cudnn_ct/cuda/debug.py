"""``CUDNN_CT_DEBUG_SYNC``: waits for each operation, so that an error names the operation that failed."""

from __future__ import annotations

import ctypes
import weakref
from functools import partial
from typing import Any

from .._bindings.types import cudnnHandle_t
from .._config import config
from .._handle import NativeHandle
from .._lib import Library, prototypes
from ..errors import ExecutionFailedError
from . import event as events
from . import stream as streams
from .launch_log import add_launch_history, record

# Prefixes of functions that take a handle and enqueue no work.
NOT_ENQUEUING = (
    "cudnnGet",
    "cudnnDestroy",
    "cudnnSetStream",
    "cudnnQuery",
    "cudnnDropoutGetStatesSize",
    "cudnnRestoreDropoutDescriptor",
)

_watched: weakref.WeakSet[Library] = weakref.WeakSet()


def watch(library: Library) -> None:
    """Make each function of a library that enqueues work wait for it: replace its status check."""
    if library in _watched:
        return
    _watched.add(library)
    for name, prototype in prototypes().items():
        if cudnnHandle_t in prototype.argtypes and not name.startswith(NOT_ENQUEUING):
            function = getattr(library, name)
            if hasattr(function, "errcheck"):  # else the function is a stub: this cuDNN lacks it
                place = prototype.argtypes.index(cudnnHandle_t)
                function.errcheck = partial(_check, library, function.errcheck, place)


def record_launch(what: str, stream: streams.Stream, function: str | None = None) -> None:
    """With ``config.debug_sync``, record and wait for the work just enqueued; raise ExecutionFailedError."""
    if not config.debug_sync:
        return
    record(what, stream)
    if streams.is_capturing(stream):
        return
    try:
        events.synchronize(stream)
    except ExecutionFailedError as error:
        culprit = ExecutionFailedError(f"{what} failed on the device: {error}", function=function)
        raise add_launch_history(culprit, stream) from error


def _check(
    library: Library, check: Any, place: int, status: int, function: Any, args: tuple[Any, ...]
) -> int:
    """Check a status, and wait; ``place`` is the position of the handle in the arguments."""
    result: int = check(status, function, args)
    if config.debug_sync and (stream := _stream_of(library, args[place])):
        others = (*args[:place], *args[place + 1 :])
        text = f"{function.__name__}({', '.join(map(_argument, others))})"
        record_launch(text, stream, function.__name__)
    return result


def _stream_of(library: Library, handle: Any) -> streams.Stream | None:
    """Return the stream that a handle works on; None for the per-thread default stream."""
    address = ctypes.c_void_p()
    library.cudnnGetStream(handle, ctypes.byref(address))
    if address.value == streams.PER_THREAD_DEFAULT:
        return None
    return streams.intern_stream(address.value or 0, streams.current_device())


def _argument(value: Any) -> str:
    if isinstance(value, int) and value >= 2**20:
        return hex(value)
    if isinstance(value, int | float | NativeHandle) or value is None:
        return repr(value)
    behind = getattr(value, "_obj", value)  # of byref
    return str(getattr(behind, "value", type(behind).__name__))
