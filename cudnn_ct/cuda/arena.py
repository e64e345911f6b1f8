"""Memory of a CUDA graph: allocated while the graph is recorded, and freed after its last launch."""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Callable
from functools import partial
from typing import Any

from .._handle import outlive_cycles
from . import memory as memories
from . import stream as streams
from .allocator import GRANULARITY
from .lifetime import ExportedMemory, defer
from .stream import Stream


class _Pointers:
    """Device memory that is freed on ``stream`` with the last reference to this."""

    __slots__ = ("nbytes", "pointers", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.pointers: list[int] = []
        self.nbytes = 0
        outlive_cycles(self)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():
            return
        for pointer in self.pointers:
            if not memories._freed(pointer, self.stream):
                defer(partial(memories._freed, pointer, self.stream))


class GraphMemory:
    """The memory of one graph, and the streams that the graph was launched on.

    It is freed after the last launch on each of them. Arrays in this memory reference it. It is allocated and
    freed on a stream of this package that nothing captures.
    """

    __slots__ = ("launched_on", "owned")

    def __init__(self, device: int) -> None:
        self.owned = _Pointers(streams.own_stream(device))
        self.launched_on: dict[Stream, None] = {}
        outlive_cycles(self)

    def allocate(self, nbytes: int, what: str) -> int:
        """Allocate memory, also during a capture, and return its address."""
        owned = self.owned
        pointer = memories._allocated(nbytes, owned.stream, what)
        owned.pointers.append(pointer)
        owned.nbytes += nbytes
        return pointer

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            for stream in self.launched_on:
                ExportedMemory(self.owned, self.owned.stream, stream)


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
        arena = self.arena
        arena.dropped.append((self.stream, self.size, self.handle))


class Arena:
    """Allocator for the calls of one recording.

    Memory that was dropped is reused on its stream only: a graph keeps the order of work on a stream.
    ``memory`` owns all of it, so an array that outlives the recording keeps its memory.
    """

    def __init__(self, device: int) -> None:
        self.memory = GraphMemory(device)
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
            pointer = self.memory.allocate(size, what)
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
