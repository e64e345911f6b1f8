"""Text of records and figures for a terminal."""

from __future__ import annotations

from .figures import geomean
from .results import Record


def line_of(record: Record, *more: str) -> str:
    """Return a line on a record: its times, the parts ``more``, its errors, and why it was skipped."""
    parts = [times_of(record), *more]
    parts += [f"{name}: {why[:150]}" for name, why in record["errors"].items()]
    parts += [f"skipped: {record['skipped'][:150]}"] if "skipped" in record else []
    return f"{record['id']}: {'; '.join(filter(None, parts))}"


def times_of(record: Record) -> str:
    """Return the times of a record by contender. Omit entries that are not numbers."""
    times = record["times"].items()
    return ", ".join(f"{name} {time:.1f}" for name, time in times if isinstance(time, float | int))


def about_lines(records: list[Record]) -> list[str]:
    """Return a line with the device, the versions and the date of each run."""
    lines = []
    for one in records:
        if one["section"] == "about":
            facts = (f"{key} {value}" for key, value in one.items() if key not in ("section", "id"))
            lines.append(", ".join(facts))
    return lines


def failures(records: list[Record]) -> str:
    """Return the errors and the skipped rows with their reasons."""
    lines = []
    for record in records:
        if "skipped" in record:
            lines.append(f"  {record['id']}: skipped: {record['skipped']}")
        for name, why in record.get("errors", {}).items():
            lines.append(f"  {record['id']}: {name}: {why.splitlines()[0] if why else why}")
    return "\n".join([f"errors and skipped rows: {len(lines)}", *lines]) if lines else ""


def cell(ratios: list[float]) -> str:
    """Return the geometric mean, the largest ratio and the number of ratios."""
    return f"{geomean(ratios):.3f} {max(ratios):6.2f} {len(ratios):4}" if ratios else "-"


def figure(value: float | None) -> str:
    """Return a ratio as text, or a dash for None."""
    return "-" if value is None else f"{value:.3f}"
