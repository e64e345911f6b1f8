"""Small blocks of device memory, kept for the next array of the same size.

Asking the driver's pool takes as long as the rest of a call. Only on the default stream: what is freed there
is used again there, so the order of the stream keeps every use apart, and nothing of it can be captured.
"""

from __future__ import annotations

from typing import Any

from .._handle import outlive_cycles
from ..errors import AllocationError
from . import lifetime
from . import memory as memories
from . import stream as streams
from .stream import Stream

__all__ = ["allocate_block", "release"]

GRANULARITY = 512  # bytes to which sizes are rounded up, as the pool itself does
MAX_BLOCK = 2**20  # bytes of a block that is kept
MAX_CACHED = 64 * 2**20  # bytes that are kept for each device at most


class _FreeList:
    """The idle blocks of one device, by their size; ``nbytes`` are about as many as they have.

    Those in ``old`` go first: they were idle when the shelf was full, and nobody has asked for them since.
    """

    def __init__(self) -> None:
        self.empty()

    def empty(self) -> None:
        """Give all blocks back."""
        self.idle: dict[int, list[Any]] = {}
        self.old: dict[int, list[Any]] = {}
        self.nbytes = 0

    def evict(self, nbytes: int) -> None:
        """Give blocks back until so many bytes more may lie here."""
        while self.nbytes + nbytes > MAX_CACHED:
            if not self.old:
                self.old, self.idle = self.idle, {}
            try:
                size, blocks = self.old.popitem()
            except KeyError:  # there are none, whatever was counted
                self.nbytes = 0
                return
            while blocks and self.nbytes + nbytes > MAX_CACHED:
                del blocks[-1:]
                self.nbytes -= size
            if blocks:
                self.old[size] = blocks


class CachedBlock:
    """Memory that goes back to its shelf with the last reference to it; ``handle`` is its address."""

    __slots__ = ("buffer", "handle", "shelf", "size")

    def __init__(self, buffer: Any, size: int, shelf: _FreeList) -> None:
        self.buffer = buffer
        self.handle = buffer.handle
        self.size = size
        self.shelf = shelf
        outlive_cycles(self)  # 0.1 us

    # Without a lock, for this may run in the middle of `allocate_block`, or in a forked child: a list takes
    # and gives one at a time as it is, and the count of bytes need not be exact.
    def __del__(self) -> None:
        shelf, size = self.shelf, self.size
        if shelf.nbytes + size > MAX_CACHED:
            shelf.evict(size)
        shelf.nbytes += size
        shelf.idle.setdefault(size, []).append(self.buffer)


_shelves: dict[int, _FreeList] = {}


def allocate_block(nbytes: int, stream: Stream, what: str) -> Any:
    """Memory for an array on a stream: a block that is idle, or new; freed in the order of the stream.

    Raises
    ------
    AllocationError
        Device memory ran out, even with all that was idle given back.
    """
    if lifetime._in_flight:
        lifetime.release_finished()
    if nbytes > MAX_BLOCK or stream.handle != streams.LEGACY_DEFAULT:
        return allocate(nbytes, stream, what)
    size = -(-nbytes // GRANULARITY) * GRANULARITY
    shelf = _shelves.get(stream.device) or _shelves.setdefault(stream.device, _FreeList())
    idle = shelf.idle.get(size) or shelf.old.get(size)
    if idle:
        try:
            block = CachedBlock(idle.pop(), size, shelf)
        except IndexError:  # another thread was quicker
            pass
        else:
            shelf.nbytes -= size
            return block
    return CachedBlock(allocate(size, stream, what), size, shelf)


def allocate(nbytes: int, stream: Stream, what: str) -> Any:
    """New memory from the pool; where there is none, idle blocks are given back first."""
    try:
        return memories.allocate(nbytes, stream, what)
    except AllocationError:
        lifetime.release_finished()
        if not release(stream.device):
            raise
        return memories.allocate(nbytes, stream, what)


def release(device: int) -> int:
    """Give the idle blocks of a device back to its pool; how many bytes that were."""
    shelf = _shelves.get(device)
    if shelf is None:
        return 0
    nbytes = shelf.nbytes
    shelf.empty()
    return nbytes
