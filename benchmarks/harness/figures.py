"""What records come to: ratios, their geometric means, and whether they keep a limit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from .results import Record

Ratio = Callable[[Record], float | None]


class Limit(NamedTuple):
    """What the time of one contender over another's must not exceed in any row that the GPU decides."""

    ours: str
    theirs: str
    most: float
    bound: float = 0  # microseconds: a row that either makes in less may be the host's

    def ratio(self, row: Record) -> float | None:
        """Ours over theirs; the median of the repetitions, where a row was measured again."""
        again = row.get("remeasured")
        return statistics.median(again) if again else quotient(row["times"], self.ours, self.theirs)

    def kernel_bound(self, row: Record) -> bool:
        """Whether the GPU decides how long a row takes, not the host. For both: one may be slow."""
        times = row["times"]
        return bool(min(times.get(self.theirs, 0), times.get(self.ours, inf)) > self.bound)

    def exceeded(self, row: Record) -> bool:
        """Whether a row is slower than it may be."""
        ratio = self.ratio(row)
        return ratio is not None and ratio > self.most and self.kernel_bound(row)


class Bar(NamedTuple):
    """One thing to reach: a value of at most a limit. No value: not measured."""

    name: str
    value: float | None
    limit: float
    count: int
    detail: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "NOT MEASURED"
        return (
            "PASS" if self.value <= self.limit else f"MISSED by {100 * (self.value / self.limit - 1):.1f} %"
        )

    @property
    def record(self) -> Record:
        """The bar as it stands in a whole result."""
        return {**self._asdict(), "verdict": self.verdict}

    def __str__(self) -> str:
        figure = "-" if self.value is None else f"{self.value:.3f}"
        rows = f"{self.count} row{'' if self.count == 1 else 's'}"
        of = f"{rows}; {self.detail}" if self.detail else rows
        return f"{self.verdict:16} {figure:>8} <= {self.limit:<5g} {self.name} ({of})"


def quotient(times: Record, above: str, below: str) -> float | None:
    """One time over another; None where either is missing."""
    a, b = times.get(above), times.get(below)
    return a / b if a and b else None


def geomean(ratios: list[float]) -> float | None:
    """Geometric mean; None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None


def values(ratio: Ratio, rows: Iterable[Record]) -> list[float]:
    """The ratios that there are."""
    found = map(ratio, rows)
    return [value for value in found if value is not None]


def ranked(ratio: Ratio, rows: Iterable[Record], above: float = 0) -> list[tuple[float, Record]]:
    """The rows with a ratio above a limit, the worst first."""
    found = [(value, row) for row in rows if (value := ratio(row)) is not None and value > above]
    return sorted(found, key=lambda pair: -pair[0])
