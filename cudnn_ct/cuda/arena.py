"""The memory that the calls of a recording share: blocks that were dropped are reused."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

from .._handle import outlive_cycles
from .stream import Stream

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
        arena = self.arena
        arena.dropped.append((self.stream, self.size, self.handle))


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
