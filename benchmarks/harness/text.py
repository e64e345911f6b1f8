"""How records and figures read, on a terminal."""

from __future__ import annotations

from .figures import geomean
from .results import Record


def line_of(record: Record, *more: str) -> str:
    """One line on a record, while the benchmark runs, with more to say of it after its times."""
    parts = [times_of(record), *more]
    parts += [f"{name}: {why[:150]}" for name, why in record["errors"].items()]
    parts += [f"skipped: {record['skipped'][:150]}"] if "skipped" in record else []
    return f"{record['id']}: {'; '.join(filter(None, parts))}"


def times_of(record: Record) -> str:
    """The times of a record, by contender; what is more than a number is left out."""
    times = record["times"].items()
    return ", ".join(f"{name} {time:.1f}" for name, time in times if isinstance(time, float | int))


def about_lines(records: list[Record]) -> list[str]:
    """Where and with what all this was measured, a line for each run."""
    lines = []
    for one in records:
        if one["section"] == "about":
            facts = (f"{key} {value}" for key, value in one.items() if key not in ("section", "id"))
            lines.append(", ".join(facts))
    return lines


def failures(records: list[Record]) -> str:
    """Everything that raised or was left out, with the reason."""
    lines = []
    for record in records:
        if "skipped" in record:
            lines.append(f"  {record['id']}: skipped: {record['skipped']}")
        for name, why in record.get("errors", {}).items():
            lines.append(f"  {record['id']}: {name}: {why.splitlines()[0] if why else why}")
    return "\n".join([f"errors and skipped rows: {len(lines)}", *lines]) if lines else ""


def cell(ratios: list[float]) -> str:
    """Geometric mean, the worst, and of how many."""
    return f"{geomean(ratios):.3f} {max(ratios):6.2f} {len(ratios):4}" if ratios else "-"


def figure(value: float | None) -> str:
    """A ratio, or a dash for none."""
    return "-" if value is None else f"{value:.3f}"
