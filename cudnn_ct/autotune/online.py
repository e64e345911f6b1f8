"""Try candidates between the calls of a problem, one after each call, until the fastest is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from .._config import config
from ..errors import CudnnError, without_frames
from ..plans.base import Candidate
from .agreement import DifferentResultError
from .measurement import benchmarking, engine_of, large_workspaces_last

Timing = Callable[[Sequence[Candidate]], tuple[list[Candidate], list[CudnnError]]]
"""Time candidates on the operands of a call; return them with their times, and their errors."""


class Exploration:
    """The candidates of a problem that calls have tried, shared by threads. The first call only runs.

    Each candidate is timed next to the fastest one so far, whose result it must have. One with another result
    is a witness until an engine confirms the fastest one: if a later one has its result, these two are right.
    """

    def __init__(self) -> None:
        self.tried: list[Candidate] = []  # the fastest first
        self.failures: list[CudnnError] = []
        self.settled = config.online_seconds == 0
        self.complete = False  # every candidate was tried
        self._left: list[Candidate] | None = None
        self._witness: Candidate | None = None
        self._confirmed = False
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

    def step(self, best: Candidate, find: Callable[[], Sequence[Candidate]], timed: Timing) -> None:
        """Try the next candidate next to the fastest one so far. ``find`` returns the candidates."""
        start = time.perf_counter()
        try:
            if self._left is None:
                rows = [row for row in find() if not row.rejected and row.key != best.key]
                self._left = large_workspaces_last(rows)
            if self._left:
                self._try(self._left.pop(0), best, timed)
        except CudnnError as error:  # such as a lack of memory: the calls go on as they are
            self.failures.append(without_frames(error))
            self.settled = True
            return
        self._spent += time.perf_counter() - start
        self.complete = not self._left
        self.settled = self.complete or self._spent > config.online_seconds

    def _try(self, new: Candidate, best: Candidate, timed: Timing) -> None:
        witness = [self._witness] if self._witness else []
        rows, failures = timed([best, *witness, new])
        differing = {str(one) for one in failures if isinstance(one, DifferentResultError)}
        if rows[0].rejected and rows[0].rejected not in differing:  # it has just run: memory is short
            raise failures[0]
        self.failures += failures
        usable = [row for row in rows if not row.rejected and row.time_ms is not None]
        self._confirmed |= len(set(map(engine_of, usable))) > 1
        if self._confirmed:
            self._witness = None
        elif rows[-1].rejected in differing:
            self._witness = new
        fastest = min(usable, key=lambda row: row.rank, default=best)
        known = {row.key: row for row in (*self.tried, *rows)}  # the last time of each
        self.tried = sorted(known.values(), key=lambda row: (row.key != fastest.key, row.rank))
