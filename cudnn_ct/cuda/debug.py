"""``CUDNN_CT_DEBUG_SYNC``: waiting for each operation, so that the one that failed is named.

Nothing of it is in the path of a call where the setting is off: what is watched are the functions of a
library, whose check of the status is exchanged for one that also waits.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from .._bindings.types import cudnnHandle_t
from .._config import config
from .._handle import NativeHandle
from .._lib import Library, prototypes
from ..errors import ExecutionFailedError
from . import stream as streams
from .launch_log import add_launch_history, record
from .stream import Stream

__all__ = ["record_launch", "watch"]

# What is done with a handle and enqueues nothing.
ASKED = (
    "cudnnGet",
    "cudnnDestroy",
    "cudnnSetStream",
    "cudnnQuery",
    "cudnnDropoutGetStatesSize",
    "cudnnRestoreDropoutDescriptor",
)

_watched: weakref.WeakSet[Library] = weakref.WeakSet()


def watch(library: Library) -> None:
    """Let each function of a library that enqueues work wait for it from now on."""
    if library in _watched:
        return
    _watched.add(library)
    for name, prototype in prototypes().items():
        if cudnnHandle_t in prototype.argtypes and not name.startswith(ASKED):
            function = getattr(library, name)
            if hasattr(function, "errcheck"):  # else it is missing from this cuDNN, and says so
                place = prototype.argtypes.index(cudnnHandle_t)
                function.errcheck = _waiting(library, function.errcheck, place)


def record_launch(what: str, stream: Stream, function: str | None = None) -> None:
    """Remember what was just enqueued, and wait for it; where ``config.debug_sync`` is off, do nothing.

    Raises
    ------
    ExecutionFailedError
        It failed on the device.
    """
    if not config.debug_sync:
        return
    record(what, stream)
    if streams.is_capturing(stream):
        return
    try:
        streams.synchronize(stream)
    except ExecutionFailedError as error:
        culprit = ExecutionFailedError(f"{what} failed on the device: {error}", function=function)
        raise add_launch_history(culprit, stream) from error


def _waiting(library: Library, check: Any, place: int) -> Any:
    """A check of the status that also waits; ``place`` is that of the handle among the arguments."""

    def checked(status: int, function: Any, args: tuple[Any, ...]) -> int:
        result: int = check(status, function, args)
        if config.debug_sync and (stream := _stream_of(library, args[place])):
            others = (*args[:place], *args[place + 1 :])
            record_launch(_text(function.__name__, others), stream, function.__name__)
        return result

    return checked


def _stream_of(library: Library, handle: Any) -> Stream | None:
    """The stream that a handle works on; None for one that differs between threads."""
    address = ctypes.c_void_p()
    library.cudnnGetStream(handle, ctypes.byref(address))
    if address.value == streams.PER_THREAD_DEFAULT:
        return None
    return streams.intern_stream(address.value or 0, streams.current_device())


def _text(name: str, args: tuple[Any, ...]) -> str:
    return f"{name}({', '.join(map(_argument, args))})"


def _argument(value: Any) -> str:
    if isinstance(value, int) and value >= 2**20:
        return hex(value)
    if isinstance(value, int | float | NativeHandle) or value is None:
        return repr(value)
    behind = getattr(value, "_obj", value)  # of byref
    return str(getattr(behind, "value", type(behind).__name__))
