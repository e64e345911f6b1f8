"""The candidates of one problem: those found, those that failed, and the sources of further ones."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from .._config import config
from ..context import Context
from ..cuda import stream as streams
from ..errors import (
    BadParamError,
    CudnnError,
    ExecutionFailedError,
    InternalError,
    LibraryLoadError,
    NotSupportedError,
    caller,
    without_frames,
)
from ..facts import digest
from ..graph import recording
from ..graph.plan_store import is_timing, plan_store, uses_plans
from ..graph.stored import candidate_from_json, choice_entry, choice_key
from ..plans.base import AlgoRequest, Candidate, Heuristic, Problem
from .benchmark import DifferentResultError
from .measurement import Exploration
from .store import store

# Failures that do not disqualify an algorithm: a lack of memory, or an error of the device.
TRANSIENT = (InternalError, ExecutionFailedError)


class CandidateSet:
    """The candidates of one problem on one device, and what became of them. Shared by threads."""

    def __init__(
        self,
        request: AlgoRequest,
        stages: Sequence[Heuristic],
        kept: Sequence[Candidate] = (),
        how: str = "",
        *,
        key: str = "",
        instead: Sequence[Heuristic] = (),
    ) -> None:
        """Begin with ``kept`` rows, then rows of ``stages``; those of ``instead`` replace a named algorithm.

        With a ``key`` of the store, timed rows are stored.
        """
        self.request = request
        self.lock = threading.RLock()
        self._key = key
        self._stages = [(stage, False) for stage in stages] + [(stage, True) for stage in instead]
        self._rows = [*map(self.apply_limits, kept)]
        self._how = how
        self._settled = bool(self._rows) and all(row.rejected for row in self._rows)  # known to be impossible
        self.exploration = Exploration() if request.algo == "online" and not kept else None
        if self.exploration and self.exploration.settled:  # by a limit of 0 seconds
            self._how = "no other candidates tried, settled"
        self._substitutes: set[tuple[Any, ...]] = set()
        self._failed: dict[tuple[object, ...], str] = {}  # the reasons of `reject`
        self._warned = False

    @property
    def needs_timing(self) -> bool:
        """Whether candidates are still to be timed."""
        return self.request.timed and not self._settled and not any(not row.rejected for row in self._rows)

    @property
    def first(self) -> Candidate | None:
        """The best candidate so far that was not rejected. It waits for no benchmark."""
        return next((row for row in self._rows if not row.rejected), None)

    def has_better(self, row: Candidate | None) -> bool:
        """Return whether the best candidate so far is another one."""
        first = self.first
        return first is not None and row is not None and first.key != row.key

    @property
    def exhausted(self) -> bool:
        """Whether all candidates were rejected."""
        with self.lock:
            return bool(self._rows) and not self._stages and all(row.rejected for row in self._rows)

    def viable(self, context: Context, failures: list[CudnnError]) -> Iterator[Candidate]:
        """Yield the candidates that may be tried, the best first, from further sources once it runs out.

        A source with a transient failure is queried again next time. The first of such ``failures`` is raised
        instead of yielding nothing, or a replacement of the named algorithm, which may work another time.
        """
        seen, asked = 0, 0
        while True:
            with self.lock:
                while seen >= len(self._rows) and asked < len(self._stages) and not self.needs_timing:
                    stage, substitute = self._stages[asked]
                    if substitute and failures:
                        raise failures[0]
                    try:
                        self._add(stage(context), substitute)
                    except TRANSIENT as error:
                        failures.append(without_frames(error))
                        asked += 1
                    else:
                        del self._stages[asked]
                row = self._rows[seen] if seen < len(self._rows) else None
            if failures and (row is None or self.is_substitute(row)):
                raise failures[0]
            if row is None:
                return
            seen += 1
            if not row.rejected:
                yield row

    def apply_limits(self, row: Candidate) -> Candidate:
        """Return a row, rejected if it exceeds a limit of the request."""
        return row if row.rejected else row._replace(rejected=self.request.rejection(row))

    def reject(self, row: Candidate, reason: str) -> bool:
        """Reject a row for all threads; return whether it was not rejected before."""
        with self.lock:  # by key, because times change
            news = any(one.key == row.key and not one.rejected for one in self._rows)
            self._failed[row.key] = reason
            self._rows = [self._with_failure(one) for one in self._rows]
        return news

    def latest(self, row: Candidate) -> Candidate:
        """Return a row with the time of its last trial."""
        return next((one for one in self._rows if one.key == row.key and not one.rejected), row)

    def not_failed(self, rows: Sequence[Candidate]) -> list[Candidate]:
        """Return the rows that no call has rejected."""
        return [row for row in rows if row.key not in self._failed]

    def _with_failure(self, row: Candidate) -> Candidate:
        return row if row.rejected else row._replace(rejected=self._failed.get(row.key, ""))

    def store_timings(self, rows: list[Candidate], failures: Sequence[CudnnError]) -> None:
        """Take timed rows, the fastest first and skipped ones last, and store them on disk.

        After a transient failure nothing is stored; if no row is usable either, the failure is raised. If
        results differed, nothing is stored either: the results for other operands may agree.
        """
        passing = [failure for failure in failures if not _of_the_candidate(failure)]
        if passing and all(row.rejected for row in rows):
            raise passing[0]
        with self.lock:
            self._rows += sorted(rows, key=lambda row: row.rank)
            self._settled = True
            self._how = "timed" if any(row.time_ms is not None for row in rows) else ""
        if _lasting(failures):
            self._store()

    def take(self, state: Exploration) -> None:
        """Put what calls have tried before the heuristic choice, and store it once nothing is left to try."""
        with self.lock:
            known = {row.key for row in state.tried}
            others = [row for row in self._rows if row.key not in known]
            self._rows = [*map(self._with_failure, state.tried), *others]
            self._how = f"{len(state.tried)} candidates tried" + ", settled" * state.settled
        if state.complete and _lasting(state.failures):
            self._store()

    def _store(self) -> None:
        """Store the three fastest rows, and the one with the least workspace, on disk."""
        if not self._key or config.debug_sync:  # its waits would be in the times
            return
        usable = [row for row in self._rows if not row.rejected]
        best = usable[:3] + sorted(usable[3:], key=lambda row: row.workspace)[:1]
        stored = [row._replace(problem=None)._asdict() for row in best or self._rows]
        store().put(self._key, {"rows": stored, "call": str(caller())})

    def warn_once(self) -> bool:
        with self.lock:
            first, self._warned = not self._warned, True
        return first

    def fallback_reason(self, row: Candidate | None) -> str:
        """Return why a row runs instead of the algorithm that was named; empty if it is that one."""
        if row is None or not self.is_substitute(row):
            return ""
        return next((row.rejected for row in self._rows if row.rejected), "it is not supported")

    def is_substitute(self, row: Candidate) -> bool:
        """Return whether a row replaces the algorithm that was named."""
        return row.key in self._substitutes

    def origin(self, row: Candidate | None) -> str:
        time = f", {row.time_ms * 1000:.1f} us a call" if row is not None and row.time_ms is not None else ""
        return f"  how: {self.request.algo or 'as it was given'}{f', {self._how}' if self._how else ''}{time}"

    def rejections(self) -> list[str]:
        return [f"{row}: {row.rejected}" for row in self._rows if row.rejected]

    def _add(self, rows: Sequence[Candidate], substitutes: bool) -> None:
        known = {row.key for row in self._rows}
        news = [self.apply_limits(row) for row in rows if row.key not in known]
        self._rows += news
        if substitutes:
            self._substitutes.update(row.key for row in news)


def _lasting(failures: Sequence[CudnnError]) -> bool:
    """Return whether a benchmark would end the same way at another time, and for other operands."""
    return all(_of_the_candidate(one) and not isinstance(one, DifferentResultError) for one in failures)


def _of_the_candidate(failure: CudnnError) -> bool:
    """Return whether a failure in a benchmark is due to the candidate, and not to the installation."""
    # The error for a rejected engine has the status that cuDNN returned, which may be of another class. A
    # library that is missing from the installation is a defect of it, but not one that its wheel does not
    # have.
    rejected = isinstance(failure, NotSupportedError | BadParamError)
    broken = isinstance(failure.__cause__ or failure, LibraryLoadError)
    return rejected and not broken and (failure.status or 0) < 4000


# --- on disk -----------------------------------------------------------------------------------------------


def store_key(problem: Problem, context: Context, request: AlgoRequest) -> str:
    """Return all that a timed decision depends on, as text: the reprs of values name every field."""
    limits = repr(request._replace(algo=None, strict=False))
    if not request.dynamic_shapes:  # the key is as before this field existed
        limits = limits.replace(", dynamic_shapes=False", "")
    library, device = context.library, streams.device_name(context.device)
    return f"cuDNN {library.version}{library.variant} facts {digest()} | {device} | {problem!r} | {limits}"


def heuristic_choice(problem: Problem, context: Context, request: AlgoRequest) -> Candidate | None:
    """Return the candidate that the heuristics chose for a problem whose plan is stored."""
    # Those for a described device may choose another one, so that their choice does not count.
    if not uses_plans():
        return None
    entry = plan_store().get(choice_key(context, *choice_of(problem, request)))
    try:
        if entry is None or not entry.from_device:
            return None
        return candidate_from_json(entry.facts["candidate"])
    except (TypeError, ValueError, KeyError):
        return None


def store_choice(problem: Problem, context: Context, request: AlgoRequest, row: Candidate) -> None:
    """Store the choice of a row by the heuristics, if its plan is stored or plans are recorded."""
    kept = row.compiled and not row.dynamic and config.plan_cache
    if is_timing() or not (recording.active() or kept):
        return
    text, limits = choice_of(problem, request)
    plan = choice_entry(context, text, limits, row)
    recording.note_choice(text, limits, plan)
    known = plan_store().get(plan.key) if kept else None
    if kept and not (known and known.from_device):
        plan_store().put(plan)


def choice_of(problem: Problem, request: AlgoRequest) -> tuple[str, dict[str, Any]]:
    """Return a problem as text, and the limits of a request that a heuristic choice depends on."""
    limits: dict[str, Any] = {
        "deterministic": request.deterministic,
        "workspace_limit": request.workspace_limit,
    }
    if request.dynamic_shapes:
        limits["dynamic_shapes"] = True
    return f"{type(problem).__name__} {problem!r}", limits | {"compiled": request.compiled}


def load_candidates(key: str) -> list[Candidate]:
    """Return the rows that the store has for a key; none if one of them is malformed."""
    try:
        return [_candidate(row) for row in (store().get(key) or {}).get("rows", ())]
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return []


def _candidate(row: dict[str, Any]) -> Candidate:
    candidate = candidate_from_json(row)
    time = None if candidate.time_ms is None else float(candidate.time_ms)
    if time is not None and not math.isfinite(time):
        raise ValueError(f"time_ms is not finite: got {time}")
    return candidate._replace(time_ms=time)
