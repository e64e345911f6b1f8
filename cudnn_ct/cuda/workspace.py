"""Workspaces: memory that calls use while they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakSet

from . import allocator
from . import event as events
from . import stream as streams
from .lifetime import ExportedMemory
from .replay import Replay


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
        memory = allocator.allocate(nbytes, home, what)
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
        """What keeps the memory alive; None if the lender does."""
        return None

    def address(self, nbytes: int) -> int | None:
        """Return the address of the memory for a call, or None if the call needs more."""
        self.wanted = max(self.wanted, nbytes)
        return self.handle if nbytes <= self.size else None
