"""Figures of records: ratios, geometric means, and comparisons with limits."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from .results import Record

Ratio = Callable[[Record], float | None]


class Limit(NamedTuple):
    """Maximum ratio of the times of two contenders in any kernel-bound row."""

    ours: str
    theirs: str
    most: float
    bound: float = 0  # microseconds: a row is kernel-bound if both take longer

    def ratio(self, row: Record) -> float | None:
        """Return the ratio of our time to theirs, or the median ratio of a remeasured row."""
        again = row.get("remeasured")
        return statistics.median(again) if again else quotient(row["times"], self.ours, self.theirs)

    def kernel_bound(self, row: Record) -> bool:
        """Return whether a row is kernel-bound. Both times count, because one may be host time."""
        times = row["times"]
        return bool(min(times.get(self.theirs, 0), times.get(self.ours, inf)) > self.bound)

    def exceeded(self, row: Record) -> bool:
        """Return whether a kernel-bound row exceeds the limit."""
        ratio = self.ratio(row)
        return ratio is not None and ratio > self.most and self.kernel_bound(row)


class Bar(NamedTuple):
    """Target: a value and its upper limit. The value is None if it was not measured.

    ``floor`` is what the value of a call would be that none can be faster than, if that was measured.
    """

    name: str
    value: float | None
    limit: float
    count: int
    detail: str = ""
    floor: float | None = None

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "NOT MEASURED"
        if self.value <= self.limit:
            return "PASS"
        return f"MISSED by {100 * (self.value / self.limit - 1):.1f} %" if self.limit else "MISSED"

    @property
    def record(self) -> Record:
        """Fields of the target in a whole result."""
        return {**self._asdict(), "verdict": self.verdict}

    def __str__(self) -> str:
        figure = "-" if self.value is None else f"{self.value:.3f}"
        rows = f"{self.count} row{'' if self.count == 1 else 's'}"
        of = f"{rows}; {self.detail}" if self.detail else rows
        return f"{self.verdict:16} {figure:>8} <= {self.limit:<5g} {self.name} ({of})"


def quotient(times: Record, above: str, below: str) -> float | None:
    """Return the ratio of two times, or None if either is missing."""
    a, b = times.get(above), times.get(below)
    return a / b if a and b else None


def geomean(ratios: list[float]) -> float | None:
    """Return the geometric mean, or None for an empty list."""
    return statistics.geometric_mean(ratios) if ratios else None


def values(ratio: Ratio, rows: Iterable[Record]) -> list[float]:
    """Return the ratios of the rows that have one."""
    found = map(ratio, rows)
    return [value for value in found if value is not None]


def ranked(ratio: Ratio, rows: Iterable[Record], above: float = 0) -> list[tuple[float, Record]]:
    """Return the rows with a ratio above a limit, largest ratio first."""
    found = [(value, row) for row in rows if (value := ratio(row)) is not None and value > above]
    return sorted(found, key=lambda pair: -pair[0])
