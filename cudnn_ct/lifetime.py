"""What is in flight stays alive: memory goes back only after its uses on every stream are over."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

from . import stream as streams
from .errors import CudnnError
from .stream import Stream

__all__ = ["Lent", "Uses", "noting", "release_finished"]


# No thread loses what another notes of an array; a finalizer may come while its own thread notes something.
noting = threading.RLock()


class Uses:
    """The uses of an array's memory on streams other than its home, and the memory itself.

    Made on the first such use. The memory outlives it, so that when the array goes, its home stream is first
    told to wait for those uses and only then takes the memory back.
    """

    __slots__ = ("events", "home", "memory", "process")

    def __init__(self, memory: object, home: Stream | None) -> None:
        self.memory = memory
        self.home = home
        self.events: dict[Stream, Any] = {}
        self.process = os.getpid()

    def note(self, stream: Stream) -> None:
        """Remember that the work now on ``stream`` uses the memory.

        Not of work that is being captured: a graph may be replayed at any time, and who captures it keeps its
        operands alive.
        """
        if not streams.is_capturing(stream):
            event = streams.record(stream)
            with noting:
                left = {s: event for s, event in self.events.items() if not _is_over(event)}
                self.events = left | {stream: event}

    def __del__(self) -> None:
        if os.getpid() != self.process:  # in a forked child there is no driver to talk to
            return
        for event in self.events.values():
            try:
                if self.home is None or streams.is_capturing(self.home):
                    _retain(event, self.memory)
                else:
                    streams.wait(self.home, event)
            except Exception:  # the home stream is gone; a late release is right, an early one is not
                _retain(event, self.memory)


class Lent:
    """Memory that another library holds. It goes back to its home after that library's work on it.

    Whose stream that was may have destroyed it since, and a stream that is gone cannot be asked for anything:
    the host waits for the whole device, unless the stream is the default one, which is always there.
    """

    __slots__ = ("consumer", "uses")

    def __init__(self, memory: object, home: Stream | None, consumer: Stream) -> None:
        self.uses = Uses(memory, home)
        self.consumer = consumer

    def __del__(self) -> None:
        if os.getpid() != self.uses.process or self.uses.home == self.consumer:
            return
        try:
            if self.consumer == streams.default_stream(self.consumer.device):
                self.uses.note(self.consumer)
            else:
                streams.finish(self.consumer.device)
        except Exception:  # a graph is being captured: nobody can say when this memory is free
            _lost.append(self.uses.memory)


_lost: list[object] = []
_in_flight: deque[tuple[Any, object]] = deque()


def _retain(event: Any, memory: object) -> None:
    """Keep memory whose home stream cannot wait until an event is over; let go of what is."""
    _in_flight.append((event, memory))
    release_finished()


def _is_over(event: Any) -> bool:
    """Whether the work before an event is over; not where nobody can say, as during some captures."""
    try:
        return streams.is_done(event)
    except CudnnError:
        return False


def release_finished() -> None:
    """Let go of retained memory whose last use is over."""
    while True:
        try:
            held = _in_flight.popleft()  # taken first: another thread may be at the same
        except IndexError:
            return
        if not _is_over(held[0]):
            _in_flight.appendleft(held)
            return
