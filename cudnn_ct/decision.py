"""What is known of the ways to compute one problem: the rows found, what failed, where more may be found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import stream as streams
from ._config import config
from .algo_store import store
from .context import Context
from .problem import Candidate, Problem, Request

__all__ = ["SHORT", "Decision", "Stage", "kept_rows", "store_key"]

Stage = Callable[[Context], list[Candidate]]

SHORT = "not enough memory: "  # how the status of a row begins that may be usable at another time


class Decision:
    """The candidates of one problem on one device, and what became of them. Shared by threads."""

    def __init__(
        self, request: Request, stages: Sequence[Stage], kept: Sequence[Candidate] = (), how: str = ""
    ) -> None:
        self.request = request
        self.lock = threading.RLock()
        self.key = ""  # of the store, for a decision that is to be kept there
        self.kind: Any = None  # of the first choices that are kept, for the policies *_once
        self._stages = list(stages)
        self._rows = list(kept)
        self._how = how
        self._settled = bool(kept) and all(row.status for row in kept)  # known to be impossible
        self._warned = False

    @property
    def untimed(self) -> bool:
        """Whether candidates are still to be timed."""
        return self.request.timed and not self._settled and not any(not row.status for row in self._rows)

    def usable(self, context: Context) -> Iterator[Candidate]:
        """The rows that may be tried, the best first; looks further where those at hand are used up."""
        seen = 0
        while True:
            with self.lock:
                while seen >= len(self._rows) and self._stages and not self.untimed:
                    rows = self._stages[0](context)
                    self._rows += map(self.judged, rows)
                    self._stages.pop(0)
                if seen >= len(self._rows):
                    return
                row = self._rows[seen]
            seen += 1
            if not row.status:
                yield row

    def judged(self, row: Candidate) -> Candidate:
        """A row, refused where it is not what was asked for."""
        return row if row.status else row._replace(status=self.request.refusal(row))

    def refuse(self, row: Candidate, reason: str) -> None:
        with self.lock:
            self._rows = [one._replace(status=reason) if one == row else one for one in self._rows]

    def settle(self, rows: list[Candidate]) -> None:
        """Take timed rows: the quickest first, and kept on disk unless memory was too short to time all."""
        with self.lock:
            self._rows += sorted(rows, key=lambda row: (bool(row.status), row.time or 0.0))
            self._settled = True
            self._how = "timed"
            short = any(row.status.startswith(SHORT) for row in rows)
        if self.key and not short:
            store().put(self.key, as_json(self._rows))

    def warn_once(self) -> bool:
        with self.lock:
            first, self._warned = not self._warned, True
        return first

    def fallback_reason(self) -> str:
        name = self.request.algo
        named = name is not None and not self.request.once and not self.request.timed
        if not named or name == "guess_on_shape_change":
            return ""
        refused = [row for row in self._rows if row.status]
        return refused[0].status if refused and self._rows[0].status else ""

    def story(self, row: Candidate | None) -> str:
        time = f", {row.time * 1000:.1f} us a call" if row is not None and row.time is not None else ""
        return f"  how: {self.request.algo or 'as it was given'}{f', {self._how}' if self._how else ''}{time}"

    def reasons(self) -> list[str]:
        return [f"  refused: {row}: {row.status}" for row in self._rows if row.status]


# --- on disk -----------------------------------------------------------------------------------------------


def store_key(problem: Problem, context: Context, request: Request) -> str:
    """All that a timed choice depends on, as text: the reprs of values name every field."""
    limits = request._replace(algo=None, strict=False)
    settings = (config.timed_engines, config.runtime_compiled)
    version, device = context.library.version, streams.device_name(context.device)
    return f"cuDNN {version} | {device} | {problem!r} | {limits!r} | {settings}"


def as_json(rows: list[Candidate]) -> dict[str, Any]:
    """A timed decision for the store: the quickest rows, or why there is none."""
    best = [row for row in rows if not row.status][:3]
    if best:
        return {"rows": [row._replace(problem=None)._asdict() for row in best]}
    return {"rows": [row._replace(problem=None)._asdict() for row in rows]}


def kept_rows(key: str) -> list[Candidate]:
    """Rows that the store has for a key; none where they are not as they should be."""
    try:
        return [_candidate(row) for row in (store().get(key) or {}).get("rows", ())]
    except (TypeError, ValueError, KeyError, AttributeError):
        return []


def _candidate(row: dict[str, Any]) -> Candidate:
    candidate = Candidate(**row)
    packed = tuple((str(operand), str(layout)) for operand, layout in candidate.packed)
    notes = tuple(map(str, candidate.notes))
    for value, kind in zip(candidate[:5], (str, str, str, int, bool), strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
    time = None if candidate.time is None else float(candidate.time)
    return candidate._replace(
        packed=packed, notes=notes, time=time, status=str(candidate.status), problem=None
    )
