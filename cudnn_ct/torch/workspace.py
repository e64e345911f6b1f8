"""Workspaces of calls in memory of torch's allocator, which its statistics and limits count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import context
from ..cuda import stream as streams
from ..cuda.allocator import LentMemory
from ..cuda.stream import Stream
from ..errors import AllocationError

__all__ = ["LEARNED", "SMALL", "Needs", "TorchWorkspace"]

LEARNED = 2  # runs until the need of a call is known: the first may compare candidates
SMALL = 2**16  # bytes that the package keeps for each stream: an allocation takes as long as a launch


class TorchWorkspace(LentMemory):
    """Memory of torch on its current stream for one call; more is allocated when the call asks for it.

    Torch may give the memory to other work on the stream when the call has returned. A recording of the call
    has the address in its key; if the size was not known before, ``size`` is 0, and nothing is recorded.
    """

    __slots__ = ("_device", "_storage")

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._device = device
        self._storage: Any = torch.UntypedStorage(nbytes, device=device) if nbytes else None
        super().__init__(0 if self._storage is None else self._storage.data_ptr(), nbytes)

    @property
    def memory(self) -> object:
        return self._storage

    def address(self, nbytes: int) -> int:
        """Return the address of the memory for a part of a call."""
        self.wanted = max(self.wanted, nbytes)
        if nbytes <= self.size or not nbytes:
            return self.handle
        self.size = 0
        if self._storage is None or self._storage.nbytes() < nbytes:
            try:
                self._storage = torch.UntypedStorage(nbytes, device=self._device)
            except torch.OutOfMemoryError as error:
                raise AllocationError(f"torch has no memory for a workspace of {nbytes:,} bytes") from error
        address: int = self._storage.data_ptr()
        return address


@dataclass(slots=True)
class Needs:
    """The workspace that a prepared call needs, in bytes, and the number of runs that found it out."""

    nbytes: int = 0
    runs: int = 0

    def are_small(self, stream: Stream) -> bool:
        """Return whether a known call has the package's workspace on a stream.

        A call that is not known may need more: with other settings or alignment, or in another thread.
        """
        small = self.runs == LEARNED and self.nbytes <= SMALL
        return small and not (self.nbytes and streams.is_capturing(stream))  # a capture forbids allocations

    def run(self, call: Callable[[], None], device: torch.device) -> None:
        """Make a call with a workspace of torch if it runs on torch's current stream.

        Within ``ct.use`` and ``ct.capture`` it runs on another one, and the workspace is the package's.
        """
        if self.runs == LEARNED and not self.nbytes:
            call()
            return
        where = context.of_device(device.index or 0)
        where.lent = lent = TorchWorkspace(self.nbytes if self.runs == LEARNED else 0, device)
        try:
            call()
        finally:
            where.lent = None
        if self.runs < LEARNED:
            self.nbytes, self.runs = lent.wanted, self.runs + 1
        elif lent.wanted:  # a replay asks for nothing
            self.nbytes = lent.wanted
