"""The latest launches with ``config.debug_sync``, for the notes on device errors.

A kernel fails after the call that launched it has returned, and the next call that waits reports the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from .._config import config
from ..errors import CudnnError

HINT = (
    "the error may belong to work that was launched earlier: with CUDNN_CT_DEBUG_SYNC=1 each operation is "
    "waited for, and the one that failed is named"
)

BEFORE = "launched before on"

_history: deque[tuple[Hashable, str]] = deque(maxlen=32)  # streams and launches


def record(what: str, stream: Hashable) -> None:
    """Record a launch on a stream, in place of the oldest."""
    _history.append((stream, what))


def add_launch_history(error: CudnnError, stream: Hashable) -> CudnnError:
    """Add the launches before a device error as a note, or advice how to record them."""
    if not any(note.startswith((HINT, BEFORE)) for note in getattr(error, "__notes__", ())):
        error.add_note(_format(stream) if config.debug_sync else HINT)
    return error


def _format(stream: Hashable) -> str:
    launches = [what for where, what in tuple(_history) if where == stream]
    if not launches:
        return (
            f"{BEFORE} {stream}: no recorded launches. The failed work belongs to another library, or to a "
            "thread whose handle was created before CUDNN_CT_DEBUG_SYNC was set"
        )
    return "\n  ".join([f"{BEFORE} {stream}, the latest last:", *launches])
