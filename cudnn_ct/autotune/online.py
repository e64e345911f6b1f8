"""Try candidates between the calls of a problem, one after each call, until the fastest is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from .._config import config
from ..errors import CudnnError
from ..plans.base import Candidate
from .agreement import DifferentResultError
from .measurement import benchmarking, large_workspaces_last

Timing = Callable[[Sequence[Candidate]], tuple[list[Candidate], list[CudnnError]]]
"""Time candidates on the operands of a call; return them with their times, and their errors."""


class Exploration:
    """What the calls of a problem have tried, shared by threads. The first call only runs.

    Each candidate is timed beside the fastest one so far, whose result it must have. One with another result
    is a witness: if a later one has its result, these two are right.
    """

    def __init__(self) -> None:
        self.best: Candidate | None = None  # None before anything was timed
        self.tried: list[Candidate] = []
        self.settled = False
        self.complete = False  # every candidate was tried, and all results agree
        self._left: list[Candidate] | None = None
        self._witness: Candidate | None = None
        self._began = False
        self._spent = 0.0

    @contextmanager
    def turn(self, lock: Any) -> Iterator[bool]:
        """Hold the locks of a benchmark if this call may try a candidate, and another thread tries none."""
        first, self._began = not self._began, True
        with ExitStack() as held:
            mine = not (first or self.settled)
            for one in (benchmarking, lock) if mine else ():  # in this order, as in a benchmark
                mine = mine and one.acquire(blocking=False)
                if mine:
                    held.callback(one.release)
            yield mine and not self.settled

    def step(self, current: Candidate, find: Callable[[], Sequence[Candidate]], timed: Timing) -> None:
        """Try the next candidate beside the one that runs. ``find`` returns the candidates."""
        start = time.perf_counter()
        try:
            if self._left is None:
                rows = [row for row in find() if not row.rejected and row.key != current.key]
                self._left = large_workspaces_last(rows)
            if self._left:
                self._try(self._left.pop(0), self.best or current, timed)
        except CudnnError:  # such as a lack of memory: the calls go on as they are
            self.settled = True
            return
        self._spent += time.perf_counter() - start
        self.complete = not self._left and self._witness is None
        self.settled = not self._left or self._spent > config.online_seconds

    def _try(self, new: Candidate, best: Candidate, timed: Timing) -> None:
        witness = [self._witness] if self._witness else []
        rows, failures = timed([best, *witness, new])
        if any(isinstance(failure, DifferentResultError) for failure in failures):
            self._witness = new
        usable = [row for row in rows if not row.rejected and row.time_ms is not None]
        self.best = min(usable, key=lambda row: row.rank, default=best)
        known = {row.key: row for row in (*self.tried, *rows)}  # the last time of each
        self.tried = list(known.values())
