"""Device memory whose reads and writes are ordered among streams."""

from __future__ import annotations

from . import event as events
from . import lifetime
from . import stream as streams
from .lifetime import StreamUses
from .stream import Stream

__all__ = ["OrderedMemory"]


class OrderedMemory:
    """Device memory, its last writer, and its uses on other streams than its own.

    An operation calls `wait_for_writer` or `before_write` for each operand before it enqueues work, and
    `record_use` or `after_write` afterwards. Views of one memory share their uses and their last writer.
    ``memory`` is the owner of the memory, None after ``close()``; the other attributes are those of
    `DeviceArray`.
    """

    __slots__ = ("__weakref__", "_uses", "device", "external", "home", "memory", "writer")

    memory: object
    device: int
    home: Stream | None
    writer: Stream
    external: bool
    _uses: StreamUses | None

    def wait_for_writer(self, stream: Stream) -> None:
        """Make ``stream`` wait for the last writer of the contents."""
        if self.writer is not stream and self.writer != stream and not streams.is_capturing(stream):
            events.wait_stream(self.writer, stream)

    def before_write(self, stream: Stream) -> None:
        """Make ``stream`` wait for the last writer of the contents, and for work that reads them."""
        self.wait_for_writer(stream)
        if streams.is_capturing(stream):
            return
        home = self.home  # reads on the home stream are not recorded
        if home is not None and home != self.writer:  # else `wait_for_writer` has waited for them
            events.wait_stream(home, stream)
        if self._uses is not None:
            for event in list(self._uses.events.values()):
                events.wait(stream, event)

    def record_use(self, stream: Stream) -> None:
        """Record that work on ``stream`` uses the memory, which is freed only after that work."""
        if self.home is stream or self.home == stream:
            return
        self._known_uses().note(stream)

    def after_write(self, stream: Stream) -> None:
        """Record that ``stream`` wrote the contents, and make a foreign owner's stream wait for it.

        A foreign owner may write too, unseen by this package, so its stream stays the last writer.
        """
        self.record_use(stream)
        if not self.external or self.home is None:
            self.writer = stream
            if self._uses is not None and self._uses.views:
                with lifetime.noting:
                    for view in self._uses.views:
                        view.writer = stream
        elif self.home != stream and not streams.is_capturing(stream):
            events.wait_stream(stream, self.home)

    def share_order(self, view: OrderedMemory) -> None:
        """Give another object over the same memory the same uses, and keep their last writers equal."""
        uses = self._known_uses()
        with lifetime.noting:  # another thread may record a write meanwhile
            uses.views.update((self, view))
            view._uses = uses
            view.writer = self.writer

    def _known_uses(self) -> StreamUses:
        """Return the one record of the memory's uses, whichever thread creates it."""
        with lifetime.noting:
            if self._uses is None:
                self._uses = StreamUses(self.memory, self.home)
            return self._uses
