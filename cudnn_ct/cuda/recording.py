"""The recording of a function as a CUDA graph by this thread: its memory, and the arrays that it uses."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

from .._handle import outlive_cycles
from ..errors import NotInitializedError
from .stream import Stream, is_capturing

GRANULARITY = 512  # bytes; sizes are rounded up to multiples of it, as in the pool


class _Block:
    """Memory of an arena, which later allocations of the same recording reuse once it is dropped."""

    __slots__ = ("arena", "handle", "size", "stream")

    def __init__(self, arena: Arena, handle: int, size: int, stream: Stream) -> None:
        self.arena = arena
        self.handle = handle
        self.size = size
        self.stream = stream
        outlive_cycles(self)

    # Without a lock, because it may run in the middle of `allocate`: the methods of a list are atomic.
    def __del__(self) -> None:
        self.arena.dropped.append((self.stream, self.size, self.handle))


class Arena:
    """Allocator for the calls of one recording.

    Memory that was dropped is reused on its stream only: a graph keeps the order of work on a stream.
    ``new`` allocates it and references its owner, so an array that outlives the recording keeps its memory.
    """

    def __init__(self, new: Callable[[int, str], int]) -> None:
        self._new = new
        self.dropped: list[tuple[Stream, int, int]] = []
        self.blocks = 0  # that were handed out
        self._idle: dict[Stream, list[tuple[int, int]]] = {}  # sorted by size
        self._workspaces: dict[tuple[Stream, str], _Block] = {}

    def allocate(self, nbytes: int, stream: Stream, what: str) -> Any:
        """Allocate memory for work on a stream: an idle block of up to twice the size, or a new one."""
        while self.dropped:
            owner, size, pointer = self.dropped.pop()
            insort(self._idle.setdefault(owner, []), (size, pointer))
            self.blocks -= 1
        size = -(-max(nbytes, 1) // GRANULARITY) * GRANULARITY
        idle = self._idle.get(stream, [])
        place = bisect_left(idle, (size, 0))
        if place < len(idle) and idle[place][0] <= 2 * size:
            size, pointer = idle.pop(place)
        else:
            pointer = self._new(size, what)
        self.blocks += 1
        return _Block(self, pointer, size, stream)

    def workspace(self, nbytes: int, stream: Stream, what: str) -> _Block:
        """Return memory that the calls of the graph on a stream share for ``what``."""
        held = self._workspaces.get((stream, what))
        if held is None or held.size < nbytes:
            held = self._workspaces[stream, what] = self.allocate(nbytes, stream, what)
        return held

    def close(self) -> bool:
        """Drop the workspaces; return whether nothing else refers to a block of this arena."""
        self._workspaces.clear()
        return self.blocks == len(self.dropped)


class _Thread(threading.local):
    recording: Recording | None = None


_thread = _Thread()


class Recording:
    """A recording in progress, entered by ``with``."""

    def __init__(self, stream: Stream, arena: Arena) -> None:
        self.stream = stream  # which is captured, and which no other work uses
        self.arena = arena  # of the memory that calls allocate
        self.kept: dict[int, object] = {}  # what must live as long as the graph, by identity
        # The arrays from outside of the recording that its calls use, by identity, and the last writers.
        self.read: dict[int, Any] = {}
        self.written: dict[int, tuple[Any, Stream]] = {}
        # The first error of a call that no graph can repeat, also if the function caught it.
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
    if (recording := current()) is not None:
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
    if (recording := current()) is not None:
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
