"""Report of the comparison of attention with PyTorch's cuDNN and flash backends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from harness.figures import geomean
from harness.results import Record

TARGETS = {
    "cudnn": {"training": 1.0, "prefill": 1.0, "decode": 1.0},
    "flash": {"training": 0.75, "prefill": 0.75, "decode": 0.95},
}
DIRECTIONS = ("forward", "backward")


class Group(NamedTuple):
    """Ratios of our GPU time to that of another backend, of all rows and of those held out."""

    use: str
    direction: str
    other: str
    target: float
    ratios: list[float]
    held_out: list[float]


def ratio(numbers: dict[str, float], other: str) -> float | None:
    """Return our number over that of another contender."""
    return numbers["ours"] / numbers[other] if numbers.get(other) and numbers.get("ours") else None


def groups(records: Sequence[Record]) -> list[Group]:
    """Return the groups of rows that were timed."""
    found = []
    for other, targets in TARGETS.items():
        for use, target in targets.items():
            for direction in DIRECTIONS:
                rows = [r for r in records if r.get("use") == use and r.get("direction") == direction]
                pairs = [(one, row["held_out"]) for row in rows if (one := ratio(row["times"], other))]
                if pairs:
                    ratios, unseen = [one for one, _ in pairs], [one for one, held_out in pairs if held_out]
                    found.append(Group(use, direction, other, target, ratios, unseen))
    return found


def errors(records: Sequence[Record]) -> list[float]:
    """Return our errors divided by the errors of PyTorch's cuDNN backend."""
    return [one for row in records if (one := ratio(row.get("deviation", {}), "cudnn"))]


def line(record: Record) -> str:
    """Return the times of a row, its error and its host time."""
    times = " ".join(f"{who} {record['times'].get(who, math.nan):8.1f}" for who in ("ours", "cudnn", "flash"))
    reasons = "".join(f"; {who}: {why.splitlines()[0][:60]}" for who, why in record["errors"].items())
    error = ratio(record.get("deviation", {}), "cudnn")
    host = record.get("host", {}).get("ours", math.nan)
    return f"{record['id'][:74]:74} {times} error {error or math.nan:5.2f} host {host:5.1f}{reasons}"


def render(records: Sequence[Record]) -> str:
    """Return the table of geometric means, for all rows and for those held out."""
    lines = ["", "ours / theirs, GPU time: geometric mean (held out), worst, rows; target"]
    for one in groups(records):
        unseen = geomean(one.held_out) or math.nan
        lines.append(
            f"  {one.use:8} {one.direction:8} / {one.other:5}: {geomean(one.ratios):.3f} ({unseen:.3f}), "
            f"worst {max(one.ratios):.2f}, {len(one.ratios)} rows; at most {one.target}"
        )
    deviations = errors(records)
    host = [one for row in records if (one := ratio(row.get("host", {}), "cudnn"))]
    if deviations:
        lines.append(f"  error / cudnn: {geomean(deviations):.3f}, worst {max(deviations):.2f}; at most 1.1")
    if host:
        lines.append(f"  host time / cudnn: {geomean(host):.2f}")
    failed = [row["errors"]["ours"].splitlines()[0] for row in records if "ours" in row["errors"]]
    return "\n".join([*lines, *(f"  failed: {reason}" for reason in failed)])
