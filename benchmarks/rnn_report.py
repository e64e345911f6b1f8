"""Report of the RNN benchmark: the targets with their figures, and the rows behind the figures.

    python benchmarks/rnn_report.py ROWS... [--json OUT]

ROWS are files of one or more shards, written by `rnn.py`. No GPU is needed. Ratios are ours / theirs, and
geometric means are taken over rows. `time` is the autotuned algorithm, and `guess` the heuristic choice. Both
sides compute float32 as TF32, PyTorch's default. The table comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import command, results
from harness.figures import Bar, Limit, geomean, quotient, ranked, values
from harness.results import Record, of_section
from harness.text import about_lines, cell, failures, figure, times_of
from rnn_workload import KINDS, MODES, PASSES

ROW_LIMIT = Limit("time", "torch", 1.05)  # maximum for each row
PADDED_LIMIT, PACKED_LIMIT = 0.85, 1.0  # geometric means


def main() -> None:
    command.report("report the results of benchmarks/rnn.py", render, write_whole)


def write_whole(path: Path, records: list[Record]) -> None:
    """Write the records and the targets to one JSON file."""
    results.write_whole(path, "rnn", records, [bar.record for bar in bars(records)])


# --- figures -----------------------------------------------------------------------------------------------


def bars(records: list[Record]) -> list[Bar]:
    """Return the targets with the measured values."""
    rows = of_section(records, "rows")
    return [*_mean_bars(rows), _row_bar(rows)]


def _mean_bars(rows: list[Record]) -> Iterator[Bar]:
    for title, packed, limit in (
        ("sequences of one length", False, PADDED_LIMIT),
        ("packed sequences", True, PACKED_LIMIT),
    ):
        some = [row for row in rows if row["packed"] is packed]
        ratios = values(time_over_torch, some)
        parts = [
            f"{work} {figure(geomean(values(time_over_torch, (r for r in some if r['work'] == work))))}"
            for work in PASSES
        ]
        parts.append(f"guess / torch {figure(geomean(values(guess_over_torch, some)))}")
        detail = ", ".join(parts) if ratios else ""
        yield Bar(f"time / torch, {title}", geomean(ratios), limit, len(ratios), detail)


def _row_bar(rows: list[Record]) -> Bar:
    ratios = values(time_over_torch, rows)
    above = f"{sum(ratio > ROW_LIMIT.most for ratio in ratios)} above"
    return Bar("time / torch, the worst row", max(ratios, default=None), ROW_LIMIT.most, len(ratios), above)


def time_over_torch(row: Record) -> float | None:
    """Return the ratio of the autotuned choice to PyTorch, or the median ratio of a remeasured row."""
    return ROW_LIMIT.ratio(row)


def guess_over_torch(row: Record) -> float | None:
    """Return the ratio of the heuristic choice to PyTorch."""
    return quotient(row["times"], "guess", "torch")


def guess_over_time(row: Record) -> float | None:
    """Return the ratio of the heuristic choice to the autotuned one."""
    return quotient(row["times"], "guess", "time")


# --- text --------------------------------------------------------------------------------------------------


def render(records: list[Record]) -> str:
    """Return the whole report."""
    rows = of_section(records, "rows")
    heading = [f"{len(rows)} rows", *about_lines(records)]
    parts = [
        "\n".join(heading),
        failures(records),
        _above(rows),
        "\n".join(map(str, bars(records))),
        _table(rows),
    ]
    return "\n\n".join(part for part in parts if part)


def _above(rows: list[Record]) -> str:
    """List the rows above the limit, largest ratio first."""
    found = ranked(time_over_torch, rows, ROW_LIMIT.most)
    lines = [f"rows above {ROW_LIMIT.most}, time / torch: {len(found)}"]
    for value, row in found:
        again = " (measured again)" if row.get("remeasured") else ""
        lines.append(f"  {value:5.2f} {row['id']}: {times_of(row)}{again}")
    return "\n".join(lines)


def _table(rows: list[Record]) -> str:
    """Return a table of geometric means, largest ratios and numbers of rows."""
    lines = [f"{'geometric mean, worst, rows':28} {'time/torch':>18} {'guess/torch':>18} {'guess/time':>18}"]
    lines += [f"{title:28} {_cells(some)}" for title, some in _groups(rows) if some]
    return "\n".join(lines) if rows else ""


def _groups(rows: list[Record]) -> Iterator[tuple[str, list[Record]]]:
    padded = [row for row in rows if not row["packed"]]
    for work in PASSES:
        yield f"{work}", [row for row in padded if row["work"] == work]
    for mode in MODES:
        yield f"  {mode}", [row for row in padded if row["mode"] == mode]
    for key, kind in KINDS.items():
        yield f"  {kind.title}", [row for row in padded if row["kind"] == key]
    yield "packed", [row for row in rows if row["packed"]]
    yield "all", rows


def _cells(rows: list[Record]) -> str:
    columns = (time_over_torch, guess_over_torch, guess_over_time)
    return " ".join(f"{cell(values(ratio, rows)):>18}" for ratio in columns)


if __name__ == "__main__":
    main()
