"""Events, and the lifetime of memory that pending work uses: until its last use on every stream.

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

from .._handle import in_forked_child, outlive_cycles
from ..errors import CudnnError
from . import driver as cuda
from . import recording
from . import stream as streams
from .stream import Stream

# --- events ------------------------------------------------------------------------------------------------

_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
TIMED = 0  # flags of an event that keeps the time


class Event:
    """A CUDA event, destroyed with its last reference."""

    __slots__ = ("handle",)

    def __init__(self, flags: int = _DISABLE_TIMING) -> None:
        self.handle = cuda.call("creating an event", "cuEventCreate", flags)
        outlive_cycles(self)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending() or not hasattr(self, "handle"):  # it could not be created
            return
        try:
            before = streams.relax()
        except CudnnError:  # a finalizer cannot raise, and a forked child has no events
            return
        cuda.driver().cuEventDestroy(self.handle)
        streams.unrelax(before)


def record(stream: Stream) -> Any:
    """Record an event behind the work that is enqueued on a stream."""
    with streams.on_device(stream.device), streams.relaxed():
        event = Event()
        cuda.call("recording an event", "cuEventRecord", event.handle, stream.handle, stream=stream)
        return event


def wait(stream: Stream, event: Any) -> None:
    """Make later work on ``stream`` wait for ``event``. The host does not wait."""
    previous, doing = streams.set_device(stream.device), "ordering a stream after an event"
    try:
        cuda.call(doing, "cuStreamWaitEvent", stream.handle, event.handle, 0, stream=stream)
    finally:
        streams.restore_device(previous)


def wait_stream(before: Stream, after: Stream) -> None:
    """Make later work on ``after`` wait for the work on ``before``."""
    if before != after:
        wait(after, record(before))


def synchronize(stream: Stream) -> None:
    """Wait on the host until everything enqueued on the stream is complete."""
    recording.refuse(f"waiting for {stream} on the host")
    streams.wait(stream)


def synchronize_device(device: int) -> None:
    """Wait on the host until everything enqueued on any stream of a device is complete."""
    recording.refuse(f"waiting for device {device} on the host")
    with streams.on_device(device), streams.relaxed():
        cuda.call(f"waiting for device {device}", "cuCtxSynchronize")


def is_done(event: Any) -> bool:
    """Return whether the work before an event is complete."""
    driver = cuda.driver()
    with streams.relaxed():
        result = driver.cuEventQuery(event.handle)[0]
    if result == driver.CUresult.CUDA_ERROR_NOT_READY:
        return False
    cuda.check(result, "querying an event")
    return True


def elapsed(stream: Stream, work: Callable[[], object]) -> float:
    """Return the device time in milliseconds of the work that ``work`` enqueues; wait for it."""
    doing, record = "recording an event", "cuEventRecord"
    with streams.relaxed():
        start, end = Event(TIMED), Event(TIMED)
        cuda.call(doing, record, start.handle, stream.handle)
        work()
        cuda.call(doing, record, end.handle, stream.handle)
        cuda.call("waiting for an event", "cuEventSynchronize", end.handle, stream=stream)
        return float(cuda.call("timing", "cuEventElapsedTime", start.handle, end.handle))


# --- lifetime ----------------------------------------------------------------------------------------------

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
            before, event = self.events, record(stream)
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
                    wait(self.home, event)
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
        synchronize_device(consumer.device)
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
        return is_done(event)
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
