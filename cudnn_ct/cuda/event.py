"""Events: the order among streams, waits of the host, and the device time of work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .._handle import outlive_cycles
from ..errors import CudnnError
from . import driver as cuda
from . import recording
from . import stream as streams
from .stream import Stream

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
