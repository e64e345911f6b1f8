"""Whether a device waits for graphs that are launched, so that calls should be launched in another way."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from ..errors import CudnnError
from . import driver as cuda
from . import event as events
from . import stream as streams

BATCH, FEW = 64, 16  # calls between two looks at the device; while no graphs are launched
MANY = 16  # graphs in a batch, from which launches take notably longer
LATELY = 4  # looks for which a device that was behind counts as slow
MOST = 64  # looks that are kept: a stream that waits for long does not hold up what others show
ALONE = 25.0  # microseconds, about, that the host needs for a call without a graph
MOVED = 12.0  # for one by a graph that is given other pointers, and some more


class Backlog:
    """The calls of one thread that a device has not ended.

    A device waits if many graphs are launched in turn: an H200 4 microseconds for each launch of 16 graphs,
    up to 30 for each of a hundred, but not for launches of one graph that is given other pointers.

    ``moves`` is whether that graph is preferred: many graphs were launched, the device was lately behind, and
    takes so long for a call that a few microseconds more of the host do not matter. ``alone`` is whether
    calls are made without graphs: the device is a batch behind now, and slower than the host without graphs.
    """

    __slots__ = (
        *("_behind", "_ended", "_idle", "_pending", "_times"),
        *("alone", "batch", "graphs", "left", "moves", "until"),
    )

    def __init__(self) -> None:
        self.moves = self.alone = False
        # Calls, counted down, until the device is asked again: from `BATCH` to 0, or if a call has to look at
        # the above, from 0.
        self.left, self.until = BATCH, 0
        self.batch: object = object()  # a mark on graphs that were launched since
        self.graphs = 0  # their number
        self._pending: deque[tuple[events.Event, int]] = deque(maxlen=MOST)  # with the calls before each
        self._ended: events.Event | None = None  # the last one
        self._behind = 0  # looks for which the device counts as slow
        self._idle: list[events.Event] = []
        # Microseconds of the device for a call, in the last two batches: if it was idle, one of them is long.
        self._times = (0.0, 0.0)

    def ask(self, stream: streams.Stream) -> None:
        """Look at the device after a batch of calls, before the next one on a stream of this device."""
        many, calls = self.moves or self.graphs > MANY, FEW if self.alone else BATCH
        least = MOVED if self.moves else ALONE  # the time for graphs of their own has the waits for them
        self.moves = self.alone = False
        self.left, self.until = BATCH, 0
        self.batch, self.graphs = object(), 0
        if not many:  # no device waits
            return
        with suppress(CudnnError), streams.relaxed():  # errors of earlier work, or memory for an event
            if not streams.can_enqueue(stream):
                return
            while self._pending and events.is_done(self._pending[0][0]):
                self._end(*self._pending.popleft())
            self._behind = LATELY if self._pending else max(0, self._behind - 1)
            self.moves = self._behind > 0 and min(self._times) > least
            self.alone = bool(self.moves and self._pending and min(self._times) > ALONE)
            if self.moves:
                self.left, self.until = 0, -FEW if self.alone else -BATCH
            event = self._idle.pop() if self._idle else events.Event(events.TIMED)
            cuda.call("recording an event", "cuEventRecord", event.handle, stream.handle)
            self._pending.append((event, calls))

    def _end(self, event: events.Event, calls: int) -> None:
        before, self._ended = self._ended, event  # first: an event that is idle too would be recorded again
        if before is not None:
            taken = float(cuda.call("timing", "cuEventElapsedTime", before.handle, event.handle))
            self._times = (self._times[1], taken * 1000 / calls)
            self._idle.append(before)
