"""The results of a selftest, as rows of a table and as JSON."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import CudnnError, CudnnWarning, NotSupportedError
from .table import Column

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
SCHEMA = 1  # increased when a key is removed or changes its meaning

COLUMNS: tuple[Column, ...] = (
    ("op", False), ("dtype", False), ("layout", False), ("algorithm", False),
    ("error", True), ("tolerance", True), ("verdict", False), ("", False),
)  # fmt: skip


class Outcome(NamedTuple):
    """The result of one row."""

    name: str
    verdict: str
    dtype: str = ""
    layout: str = ""
    algorithm: str = ""
    error: float | None = None  # largest difference / largest element; None if nothing was compared
    tolerance: float | None = None
    detail: str = ""  # the failure, or the details of a check
    seconds: float = 0.0


def outcome_of(row: Outcome, check: Callable[[Outcome], Outcome], may_lack: bool) -> Outcome:
    """Run a check; its errors become its outcome. Not all GPUs support one that ``may_lack``."""
    begin = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CudnnWarning)
        try:
            row = check(row)
        except CudnnError as error:
            skipped = may_lack and isinstance(error, NotSupportedError)
            row = row._replace(verdict=SKIPPED if skipped else FAILED, detail=_words(error))
        except Exception as error:
            row = row._replace(verdict=FAILED, detail=f"{type(error).__name__}: {_words(error)}")
    warned = [str(warning.message) for warning in caught if issubclass(warning.category, CudnnWarning)]
    detail = "; ".join(filter(None, [row.detail, *warned]))
    return row._replace(detail=detail, seconds=time.monotonic() - begin)


def cells(row: Outcome) -> list[str]:
    """Return the cells of ``COLUMNS``."""
    numbers = ("-" if number is None else f"{number:.1e}" for number in (row.error, row.tolerance))
    return [row.name, row.dtype, row.layout, row.algorithm, *numbers, row.verdict, row.detail]


def as_dict(rows: Sequence[Outcome], **about: Any) -> dict[str, Any]:
    """Return all values for JSON. An infinite or NaN error is None; its row has failed."""
    counts = {verdict: count(rows, verdict) for verdict in (OK, FAILED, SKIPPED)}
    return {"schema": SCHEMA, **about, **counts, "rows": [_plain(row) for row in rows]}


def count(rows: Sequence[Outcome], verdict: str) -> int:
    """Count the rows with a verdict."""
    return sum(row.verdict == verdict for row in rows)


def _plain(row: Outcome) -> dict[str, Any]:
    finite = row.error is not None and row.error < float("inf")
    return row._asdict() | {"error": row.error if finite else None, "seconds": round(row.seconds, 4)}


def _words(error: Exception) -> str:
    """Return the message of an error in one line: the reasons of candidates follow its first line."""
    return "; ".join(line.strip() for line in str(error).splitlines())
