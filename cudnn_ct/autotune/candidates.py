"""What is known of the ways to compute one problem: the rows found, what failed, where more may be found."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from .._config import config
from ..context import Context
from ..cuda import device as devices
from ..errors import (
    BadParamError,
    CudnnError,
    ExecutionFailedError,
    InternalError,
    NotSupportedError,
    without_frames,
)
from ..plans.base import Candidate, Heuristic, Problem
from .request import AlgoRequest
from .store import store

__all__ = ["TRANSIENT", "CandidateSet", "load_candidates", "search_settings", "store_key"]

# Failures that say nothing of an algorithm: memory was short, or the device was in trouble.
TRANSIENT = (InternalError, ExecutionFailedError)
NO_LIBRARY = (1008, 3009)  # statuses of a library that is missing, which an engine's refusal may pass on


class CandidateSet:
    """The candidates of one problem on one device, and what became of them. Shared by threads."""

    def __init__(
        self,
        request: AlgoRequest,
        stages: Sequence[Heuristic],
        kept: Sequence[Candidate] = (),
        how: str = "",
        *,
        instead: Sequence[Heuristic] = (),
    ) -> None:
        """Begin with rows that are kept, then those of ``stages``; ``instead`` are not what was named."""
        self.request = request
        self.lock = threading.RLock()
        self.key = ""  # of the store, for a decision that is to be kept there
        self.kind: Any = None  # of the first choices that are kept, for the policies *_once
        self.breadth = search_settings()
        self._stages = [(stage, False) for stage in stages] + [(stage, True) for stage in instead]
        self._rows = [*map(self.apply_limits, kept)]
        self._how = how
        self._settled = bool(self._rows) and all(row.rejected for row in self._rows)  # known to be impossible
        self._substitutes: set[tuple[Any, ...]] = set()
        self._warned = False

    @property
    def needs_timing(self) -> bool:
        """Whether candidates are still to be timed."""
        return self.request.timed and not self._settled and not any(not row.rejected for row in self._rows)

    @property
    def stale(self) -> bool:
        """Whether settings have changed since, so that nobody can say which of them a race was run by."""
        return self.breadth != search_settings()

    @property
    def exhausted(self) -> bool:
        """Whether everything there was has been refused."""
        with self.lock:
            return bool(self._rows) and not self._stages and all(row.rejected for row in self._rows)

    def viable(self, context: Context) -> Iterator[Candidate]:
        """The rows that may be tried, the best first; looks further where those at hand are used up.

        A place that cannot be asked now, for a failure that will pass, is asked again next time.
        """
        seen, asked, trouble = 0, 0, None
        while True:
            with self.lock:
                while seen >= len(self._rows) and asked < len(self._stages) and not self.needs_timing:
                    stage, substitute = self._stages[asked]
                    if substitute and trouble is not None:
                        raise trouble  # the algorithm that was named may be had another time
                    try:
                        self._add(stage(context), substitute)
                    except TRANSIENT as error:
                        trouble, asked = trouble or without_frames(error), asked + 1
                    else:
                        del self._stages[asked]
                row = self._rows[seen] if seen < len(self._rows) else None
            if row is None and trouble is not None:
                raise trouble
            if row is None:
                return
            seen += 1
            if not row.rejected:
                yield row

    def apply_limits(self, row: Candidate) -> Candidate:
        """A row, refused where it is not what was asked for."""
        return row if row.rejected else row._replace(rejected=self.request.refusal(row))

    def reject(self, row: Candidate, reason: str) -> bool:
        """Let a row not be tried again. Returns whether that is new."""
        with self.lock:
            news = row in self._rows
            self._rows = [one._replace(rejected=reason) if one == row else one for one in self._rows]
        return news

    def store_timings(self, rows: list[Candidate], failures: Sequence[CudnnError]) -> None:
        """Take timed rows, the fastest first and those without a time last, and keep them on disk.

        What failed for a reason that will pass keeps the decision from the disk, and where nothing else is
        usable, from being made.
        """
        passing = [failure for failure in failures if not _of_the_candidate(failure)]
        if passing and all(row.rejected for row in rows):
            raise passing[0]
        with self.lock:
            self._rows += sorted(
                rows, key=lambda row: (bool(row.rejected), row.time_ms is None, row.time_ms or 0.0)
            )
            self._settled = True
            self._how = "timed" if any(row.time_ms is not None for row in rows) else ""
        lasting = not passing and not self.stale and not config.debug_sync  # its waits are in the times
        if self.key and lasting:
            store().put(self.key, _as_json(self._rows))

    def warn_once(self) -> bool:
        with self.lock:
            first, self._warned = not self._warned, True
        return first

    def fallback_reason(self, row: Candidate | None) -> str:
        """Why a row runs and not the algorithm that was named; empty where it is that."""
        if row is None or not self.is_substitute(row):
            return ""
        return next((row.rejected for row in self._rows if row.rejected), "it cannot be had")

    def is_substitute(self, row: Candidate) -> bool:
        """Whether a row is not the algorithm that was named, but what takes its place."""
        return row.key in self._substitutes

    def origin(self, row: Candidate | None) -> str:
        time = f", {row.time_ms * 1000:.1f} us a call" if row is not None and row.time_ms is not None else ""
        return f"  how: {self.request.algo or 'as it was given'}{f', {self._how}' if self._how else ''}{time}"

    def rejections(self) -> list[str]:
        return [f"  refused: {row}: {row.rejected}" for row in self._rows if row.rejected]

    def _add(self, rows: Sequence[Candidate], substitutes: bool) -> None:
        known = {row.key for row in self._rows}
        news = [self.apply_limits(row) for row in rows if row.key not in known]
        self._rows += news
        if substitutes:
            self._substitutes.update(row.key for row in news)


def _of_the_candidate(failure: CudnnError) -> bool:
    """Whether a failure in a race says something of the way that was tried, and not of the installation.

    An engine's refusal passes on what cuDNN said of it, which may be an error of another class.
    """
    refusal = isinstance(failure, NotSupportedError | BadParamError)
    return refusal and failure.status not in NO_LIBRARY and (failure.status or 0) < 4000


# --- on disk -----------------------------------------------------------------------------------------------


def search_settings() -> tuple[int, bool]:
    """The settings that say which candidates a race has."""
    return config.autotune_max_engines, config.allow_runtime_compilation


def store_key(problem: Problem, context: Context, request: AlgoRequest) -> str:
    """All that a timed choice depends on, as text: the reprs of values name every field."""
    limits = request._replace(algo=None, strict=False)
    version, device = context.library.version, devices.device_name(context.device)
    return f"cuDNN {version} | {device} | {problem!r} | {limits!r} | {search_settings()}"


def _as_json(rows: list[Candidate]) -> dict[str, Any]:
    """Return a timed decision for the store: the fastest rows and the one with the least workspace."""
    usable = [row for row in rows if not row.rejected]
    best = usable[:3] + sorted(usable[3:], key=lambda row: row.workspace)[:1]
    return {"rows": [row._replace(problem=None)._asdict() for row in best or rows]}


def load_candidates(key: str) -> list[Candidate]:
    """Rows that the store has for a key; none where they are not as they should be."""
    return parse_candidates(store().get(key) or {})


def parse_candidates(choice: Any) -> list[Candidate]:
    """Rows of a choice as the store keeps it; none where they are not as they should be."""
    try:
        return [_candidate(row) for row in choice.get("rows", ())]
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return []


def _candidate(row: dict[str, Any]) -> Candidate:
    candidate = Candidate(**row)
    relayout = tuple((str(operand), str(layout)) for operand, layout in candidate.relayout)
    notes = tuple(map(str, candidate.notes))
    for value, kind in zip(candidate[:5], (str, str, str, int, bool), strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
    time = None if candidate.time_ms is None else float(candidate.time_ms)
    if time is not None and not math.isfinite(time):
        raise ValueError(f"{time} is no time")
    return candidate._replace(
        relayout=relayout, notes=notes, time_ms=time, rejected=str(candidate.rejected), problem=None
    )
