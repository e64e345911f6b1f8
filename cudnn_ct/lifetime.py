"""What is in flight stays alive: memory goes back only after its uses on every stream are over."""

from __future__ import annotations

from collections import deque
from typing import Any

from . import stream as streams
from .stream import Stream

__all__ = ["Lent", "Uses", "release_finished"]


class Uses:
    """The uses of an array's memory on streams other than its home, and the memory itself.

    Made on the first such use. The memory outlives it, so that when the array goes, its home stream is first
    told to wait for those uses and only then takes the memory back.
    """

    __slots__ = ("events", "home", "memory")

    def __init__(self, memory: object, home: Stream | None) -> None:
        self.memory = memory
        self.home = home
        self.events: dict[Stream, Any] = {}

    def note(self, stream: Stream) -> None:
        """Remember that the work now on ``stream`` uses the memory."""
        self.events[stream] = streams.record(stream)

    def __del__(self) -> None:
        for event in self.events.values():
            try:
                if self.home is None:
                    _retain(event, self.memory)
                else:
                    streams.wait(self.home, event)
            except Exception:  # the home stream is gone; a late release is right, an early one is not
                event.sync()


_in_flight: deque[tuple[Any, object]] = deque()


def _retain(event: Any, memory: object) -> None:
    """Keep memory whose home stream nobody knows until an event is over; let go of what is."""
    _in_flight.append((event, memory))
    release_finished()


def release_finished() -> None:
    """Let go of retained memory whose last use is over."""
    while _in_flight and streams.is_done(_in_flight[0][0]):
        _in_flight.popleft()


class Lent:
    """A DeviceArray that another library holds. Its memory goes back after that library's work on it."""

    __slots__ = ("array", "consumer")

    def __init__(self, array: Any, consumer: Stream) -> None:
        self.array = array
        self.consumer = consumer

    def __del__(self) -> None:
        if not self.array.closed:
            self.array.after_use(self.consumer)
