"""Workspaces, and a caching allocator for small blocks of the default stream.

Their uses are ordered and never captured. The driver's pool takes as long as the rest of a call.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from ..errors import AllocationError
from . import event as events
from . import lifetime, recording
from . import memory as memories
from . import stream as streams
from .lifetime import ExportedMemory
from .replay import Replay

MAX_BLOCK = 2**20  # bytes of the largest block that is cached
MAX_CACHED = 64 * 2**20  # bytes for each device; all idle blocks are released if one more does not fit


class _FreeList:
    """The idle blocks of one device, by their size; ``nbytes`` is about their sum."""

    def __init__(self) -> None:
        self.idle: dict[int, list[Any]] = {}
        self.nbytes = 0

    def empty(self) -> int:
        """Release all blocks; return their bytes."""
        nbytes, self.nbytes, self.idle = self.nbytes, 0, {}
        return nbytes


class CachedBlock:
    """Memory that returns to its free list with the last reference to it; ``handle`` is its address."""

    __slots__ = ("buffer", "free_list", "handle", "size")

    buffer: Any
    handle: int
    size: int
    free_list: _FreeList

    # Without a lock, because it may run in the middle of `allocate_block` or in a forked child: the methods
    # of a list are atomic, and the count of bytes need not be exact.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():
            return
        if _collecting:
            _collected.append(self)
            return
        free_list, size = self.free_list, self.size
        if free_list.nbytes + size > MAX_CACHED:
            free_list.empty()
        free_list.nbytes += size
        free_list.idle.setdefault(size, []).append(self.buffer)


# The garbage collector calls `__del__` of all objects in a cycle, in any order, before it clears any of them.
# Other threads may run meanwhile, and one of the objects may keep the others. A block therefore becomes idle
# after the collection, if nothing else refers to it; otherwise its buffer is freed when the block is dropped.
_collecting = False
_collected: list[CachedBlock] = []
_alone = [object()]
_REFERENCES = sys.getrefcount(_alone[-1])  # to an object of one list; it differs among versions of Python


def _note_collection(phase: str, _: object) -> None:
    global _collecting
    _collecting = phase == "start"
    if _collecting or not _collected:
        return
    blocks = _collected.copy()
    del _collected[: len(blocks)]  # another thread may have added one meanwhile
    while blocks:
        if sys.getrefcount(blocks[-1]) == _REFERENCES:
            blocks[-1].__del__()
        blocks.pop()


gc.callbacks.append(_note_collection)
_free_lists: dict[int, _FreeList] = {}


def allocate_block(nbytes: int, stream: streams.Stream, what: str) -> Any:
    """Allocate memory for an array on a stream: an idle block, or a new one; freed in stream order."""
    if lifetime._in_flight:
        lifetime.release_finished()
    if nbytes > MAX_BLOCK or stream.handle != streams.LEGACY_DEFAULT:
        return allocate(nbytes, stream, what)
    size = -(-nbytes // recording.GRANULARITY) * recording.GRANULARITY
    free_list = _free_lists.get(stream.device) or _free_lists.setdefault(stream.device, _FreeList())
    idle, buffer = free_list.idle.get(size), None
    if idle:
        try:
            buffer = idle.pop()
            free_list.nbytes -= size
        except IndexError:  # another thread took it
            pass
    if buffer is None:
        buffer = allocate(size, stream, what)
    block = CachedBlock()  # without a constructor in Python, which takes as long as the rest
    block.buffer, block.handle, block.size, block.free_list = buffer, buffer.handle, size, free_list
    return block


def allocate(nbytes: int, stream: streams.Stream, what: str) -> Any:
    """Allocate from the pool, or in a capture from a recording; release idle blocks if it is exhausted."""
    recorded = stream.handle != streams.LEGACY_DEFAULT and recording.current()
    new = recorded.arena.allocate if recorded and streams.is_capturing(stream) else memories.allocate
    try:
        return new(nbytes, stream, what)
    except AllocationError:
        lifetime.release_finished()
        if not release(stream.device):
            raise
        return new(nbytes, stream, what)


def release(device: int) -> int:
    """Return the idle blocks of a device to its pool; return their bytes."""
    free_list = _free_lists.get(device)
    return free_list.empty() if free_list else 0


class Workspace:
    """Memory for one stream of one thread, which may outlive that stream.

    A stream that was given as an address, or that its library can close, may be destroyed before the
    workspace is freed. To free memory on it may end the process, so the memory belongs to a stream of this
    package.
    """

    __slots__ = ("_replays", "exported", "handle", "size")

    def __init__(self, nbytes: int, stream: streams.Stream, what: str) -> None:
        self._replays: WeakSet[Replay] = WeakSet()
        home = stream if stream.lasts else streams.own_stream(stream.device)
        memory = allocate(nbytes, home, what)
        events.wait_stream(home, stream)
        self.handle = int(memory.handle)
        self.size = int(memory.size)
        self.exported = ExportedMemory(memory, home, stream)

    def add(self, replay: Replay) -> None:
        """Drop a replay that uses this memory before the memory is freed."""
        self._replays.add(replay)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            for replay in list(self._replays):
                replay.drop()


@dataclass(slots=True, eq=False)
class LentMemory:
    """Workspace that another library lends for calls; a recording of such a call belongs to this memory."""

    handle: int
    size: int
    wanted: int = 0  # the most that a call asked for

    @property
    def memory(self) -> object:
        """The owner of the memory; None if the lender keeps it alive."""
        return None

    def address(self, nbytes: int) -> int | None:
        """Return the address of the memory for a call, or None if the call needs more."""
        self.wanted = max(self.wanted, nbytes)
        return self.handle if nbytes <= self.size else None
