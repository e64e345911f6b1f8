"""Lifetime of memory that pending work uses: it is freed after its last use on every stream.

Memory that is dropped during a capture, which forbids most driver calls, is queued and freed by later calls.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from .._handle import in_forked_child
from ..errors import CudnnError
from . import event as events
from . import recording
from . import stream as streams
from .stream import Stream

# Held while a use is recorded. Reentrant, because a finalizer that records a use may run in the same thread.
noting = threading.RLock()


class StreamUses:
    """The uses of an array's memory on streams other than its home, and the memory itself.

    It references the memory, so that the home stream waits for the uses before the memory is freed.
    """

    __slots__ = ("events", "home", "memory", "over", "room", "views")

    def __init__(self, memory: object, home: Stream | None) -> None:
        self.memory = memory
        self.home = home
        self.events: dict[Stream, Any] = {}  # behind the last use on each stream
        # The arrays over this memory, if there are several: their last writers are kept equal.
        self.views: list[ref[Any]] = []
        self.room = 16  # of `views`, before those that are gone are dropped: a WeakSet is slow
        # Set once the home stream waits: an array that a finalizer of its cycle uses afterwards needs another
        # object.
        self.over = False

    def note(self, stream: Stream) -> None:
        """Record that the work now on ``stream`` uses the memory."""
        noted = streams.is_capturing(stream)  # the user of a graph keeps its operands alive, unless:
        if noted:
            recording.keep(self.memory)
        while not noted:
            before, event = self.events, events.record(stream)
            with noting:  # another thread may have recorded a later event meanwhile
                noted = self.events is before
                if noted:
                    left = {s: event for s, event in before.items() if not _is_over(event)}
                    self.events = left | {stream: event}

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        self.over = True
        if not self.events or ending():
            return
        for event in self.events.values():
            try:
                if self.home is None or not streams.can_enqueue(self.home):
                    _retain(event, self.memory)
                else:
                    events.wait(self.home, event)
            except Exception:  # the home stream was destroyed, or the process forked: free late, not early
                _retain(event, self.memory)


class ExportedMemory:
    """Memory that a consumer uses on its stream, unseen by this package, until it drops the memory.

    Then the home stream waits for the consumer's stream, if that one lasts. Another stream may have been
    destroyed, and the driver ends the process for its address: the host waits for the whole device instead.
    """

    __slots__ = ("consumer", "uses")

    def __init__(self, memory: object, home: Stream | None, consumer: Stream) -> None:
        self.uses = StreamUses(memory, home)
        self.consumer = consumer

    def settle(self) -> None:
        """Record the last work of the consumer, while its stream still exists."""
        home = self.uses.home
        if home is not None and home != self.consumer:
            self.uses.note(self.consumer)
            self.consumer = home

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        uses, consumer = self.uses, self.consumer
        if not (ending() or uses.home == consumer or _returned(uses, consumer)):
            defer(partial(_returned, uses, consumer))


def _returned(uses: StreamUses, consumer: Stream) -> bool:
    """Order exported memory after the work of its consumer; return False while a capture forbids it."""
    try:
        if consumer.lasts and streams.can_enqueue(consumer):
            uses.note(consumer)
            return True
        if consumer.lasts or _may_be_capturing(uses.home, consumer.device):
            return False
        events.synchronize_device(consumer.device)
    except CudnnError:  # the context is lost, another thread captures, or the process forked
        return False
    return True


def _may_be_capturing(home: Stream | None, device: int) -> bool:
    """Return whether a known stream is captured: a wait for the device would invalidate the capture."""
    known = (home, streams.current_stream(device), streams.default_stream(device))
    return any(stream is not None and not streams.can_enqueue(stream) for stream in known)


def _retain(event: Any, memory: object) -> None:
    """Keep memory until an event is complete that the home stream cannot wait for."""
    if not _is_over(event):
        defer(partial(_is_over, event, memory))


def _is_over(event: Any, memory: object = None) -> bool:  # noqa: ARG001 - kept as long as the call is queued
    """Return whether the work before an event is complete; False if the query fails."""
    try:
        return events.is_done(event)
    except CudnnError:
        return False


# --- deferred releases -------------------------------------------------------------------------------------

_in_flight: deque[Callable[[], bool]] = deque()


def defer(attempt: Callable[[], bool]) -> None:
    """Queue a release: later calls retry it until it returns True."""
    _in_flight.append(attempt)


def release_finished() -> None:
    """Run queued releases up to the first that is still pending, which moves to the end."""
    while True:
        try:
            attempt = _in_flight.popleft()  # removed before it runs: another thread may do the same
        except IndexError:
            return
        try:
            done = attempt()
        except BaseException:  # a signal handler that raises: the memory must not be freed early
            _in_flight.append(attempt)
            raise
        if not done:
            _in_flight.append(attempt)
            return


@in_forked_child
def _after_fork() -> None:
    """Replace a lock that a thread of the parent may hold."""
    global noting
    noting = threading.RLock()
