"""What was issued on each stream lately, and what an error of the device says of it.

A kernel fails after the call that issued it has returned, and whichever call waits next is the one that
tells. What is remembered here, where ``config.debug_sync`` asks for it, says which calls those were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from .._config import config
from ..errors import CudnnError

__all__ = ["add_launch_history", "record"]

KEPT = 16  # of each stream
STREAMS = 64

HINT = (
    "work issued earlier may be what failed, and shows only now: with CUDNN_CT_DEBUG_SYNC=1 each operation "
    "is waited for, and the one that failed is named"
)

BEFORE = "issued before on"

_history: dict[Hashable, deque[str]] = {}


def record(what: str, stream: Hashable) -> None:
    """Keep what was issued on a stream, in place of the oldest."""
    ring = _history.get(stream)
    if ring is None:
        if len(_history) >= STREAMS:
            _history.pop(next(iter(_history)), None)
        ring = _history.setdefault(stream, deque(maxlen=KEPT))
    ring.append(what)


def add_launch_history(error: CudnnError, stream: Hashable) -> CudnnError:
    """Note on an error of the device what was issued before it, or how to have that remembered."""
    if not any(note.startswith((HINT, BEFORE)) for note in getattr(error, "__notes__", ())):
        error.add_note(_format(stream) if config.debug_sync else HINT)
    return error


def _format(stream: Hashable) -> str:
    ring = tuple(_history.get(stream, ()))
    if not ring:
        return (
            f"{BEFORE} {stream}: nothing that was watched. What failed is other work, or that of a thread "
            "that had computed before CUDNN_CT_DEBUG_SYNC was set"
        )
    return "\n  ".join([f"{BEFORE} {stream}, the latest last:", *ring])
