"""The recording of a function as a CUDA graph by this thread: its memory, and the arrays that it uses."""

from __future__ import annotations

import threading
from typing import Any

from ..errors import NotInitializedError
from .arena import Arena
from .stream import Stream, is_capturing


class _Thread(threading.local):
    """The recording of this thread."""

    recording: Recording | None = None


_thread = _Thread()


class Recording:
    """A recording in progress, entered by ``with``.

    ``stream`` is captured, and no other work uses it. ``arena`` has the memory that calls allocate. ``kept``
    are objects that must live as long as the graph, by identity. ``read`` and ``written`` are the arrays from
    outside of the recording that its calls use, by identity; ``written`` has the last writer of each, too.
    ``error`` is the first error of a call that no graph can repeat, also if the function caught it.
    """

    def __init__(self, stream: Stream, arena: Arena) -> None:
        self.stream = stream
        self.arena = arena
        self.kept: dict[int, object] = {}
        self.read: dict[int, Any] = {}
        self.written: dict[int, tuple[Any, Stream]] = {}
        self.error: Exception | None = None

    def __enter__(self) -> Recording:
        _thread.recording = self
        return self

    def __exit__(self, *exc: object) -> None:
        _thread.recording = None
        # Recorded work has not run. Views of one array share the writer, which the first of them still had.
        for array, writer in reversed(self.written.values()):
            array.set_writer(writer)

    def owns(self, array: Any) -> bool:
        """Return whether the memory of an array was allocated for the graph, on whichever stream."""
        return array.home == self.stream or getattr(array.memory, "arena", None) is self.arena

    def fail(self, message: str) -> Exception:
        """Return an error, and note it if it is the first one."""
        error = NotInitializedError(message)
        self.error = self.error or error
        return error


def current() -> Recording | None:
    """Return the recording of this thread, or None."""
    return _thread.recording


def refuse(doing: str) -> None:
    """Raise if this thread records a function, because a graph cannot repeat ``doing``."""
    recording = current()
    if recording is not None:
        raise recording.fail(f"{doing} cannot be recorded in a CUDA graph")


def refuse_device(device: int) -> None:
    """Raise if this thread records a function on another device."""
    recording = current()
    if recording is not None and device != recording.stream.device:
        refuse(f"a change to device {device}")


def refuse_unrecorded(stream: Stream) -> None:
    """Raise if this thread records a function, of which a call on ``stream`` would be no part."""
    recording = current()
    if recording is not None and stream != recording.stream and not is_capturing(stream):
        raise recording.fail(
            f"a call on {stream} cannot be recorded in a CUDA graph: order the stream after the current one "
            "by an event, and the current one after it"
        )


def keep(thing: object) -> None:
    """Keep an object as long as the graph that this thread records."""
    recording = current()
    if recording is not None:
        recording.kept[id(thing)] = thing


def note_read(array: Any) -> None:
    """Note that recorded work reads an array from outside of the recording."""
    recording = current()
    if recording is not None and not recording.owns(array):
        recording.read[id(array)] = array


def note_written(array: Any) -> None:
    """Note that recorded work writes an array from outside of the recording."""
    recording = current()
    if recording is not None and not recording.owns(array):
        recording.written.setdefault(id(array), (array, array.writer))
