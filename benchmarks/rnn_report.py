"""What the rows of the benchmark of recurrent networks come to: the bars, each with its figure, and the rows.

    python benchmarks/rnn_report.py ROWS... [--json OUT]

ROWS are files that `rnn.py` wrote, of one shard or of several; no GPU is needed. Ratios are ours / theirs,
and geometric means are taken over rows. `time` is the algorithm that was fastest when all were timed,
`guess` the one that is taken without; both sides compute float32 as TF32, PyTorch's default. The table
stands last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import command, results
from harness.figures import Bar, Limit, geomean, quotient, ranked, values
from harness.results import Record, of_section
from harness.text import about_lines, cell, failures, figure, times_of
from rnn_workload import KINDS, MODES, PASSES

ROW_LIMIT = Limit("time", "torch", 1.05)  # no row above
PADDED_LIMIT, PACKED_LIMIT = 0.85, 1.0  # geometric means
HOST_LIMIT = 0.6  # host time of a forward call, for each mode


def main() -> None:
    command.report("report of benchmarks/rnn.py, from its files", render, write_whole)


def write_whole(path: Path, records: list[Record]) -> None:
    """Write everything as one JSON file."""
    results.write_whole(path, "rnn", records, [bar.record for bar in bars(records)])


# --- figures -----------------------------------------------------------------------------------------------


def bars(records: list[Record]) -> list[Bar]:
    """Hold everything that was measured against what is to be reached."""
    rows = of_section(records, "rows")
    return [*_mean_bars(rows), _row_bar(rows), *_host_bars(of_section(records, "host"))]


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


def _host_bars(found: list[Record]) -> Iterator[Bar]:
    if not found:
        yield Bar("host time, ours / torch", None, HOST_LIMIT, 0)
    for record in sorted(found, key=lambda record: record["id"]):
        value = quotient(record["times"], "ours", "torch")
        detail = times_of(record) + " us"
        yield Bar(f"host time, {record['mode']}", value, HOST_LIMIT, int(value is not None), detail)


def time_over_torch(row: Record) -> float | None:
    """Ratio of the timed choice to PyTorch's; of the repetition, where a row was measured again."""
    return ROW_LIMIT.ratio(row)


def guess_over_torch(row: Record) -> float | None:
    """Ratio of the heuristic choice to PyTorch."""
    return quotient(row["times"], "guess", "torch")


def guess_over_time(row: Record) -> float | None:
    """Ratio of the heuristic choice to the autotuned one."""
    return quotient(row["times"], "guess", "time")


# --- text --------------------------------------------------------------------------------------------------


def render(records: list[Record]) -> str:
    """The whole report."""
    rows = of_section(records, "rows")
    heading = [
        f"{len(rows)} rows, {len(of_section(records, 'host'))} modes on the host",
        *about_lines(records),
    ]
    parts = [
        "\n".join(heading),
        failures(records),
        _above(rows),
        "\n".join(map(str, bars(records))),
        _table(rows),
    ]
    return "\n\n".join(part for part in parts if part)


def _above(rows: list[Record]) -> str:
    """The rows above the limit, the worst first."""
    found = ranked(time_over_torch, rows, ROW_LIMIT.most)
    lines = [f"rows above {ROW_LIMIT.most}, time / torch: {len(found)}"]
    for value, row in found:
        again = " (measured again)" if row.get("remeasured") else ""
        lines.append(f"  {value:5.2f} {row['id']}: {times_of(row)}{again}")
    return "\n".join(lines)


def _table(rows: list[Record]) -> str:
    """Geometric means, the worst, and of how many rows."""
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
