"""Report of the layer benchmark: the targets with their figures, and the rows behind the figures.

    python benchmarks/layers_report.py ROWS... [--json OUT]

ROWS are files of one or more shards, written by `layers.py`. No GPU is needed. Ratios are ours / theirs, and
geometric means are taken over the rows of a family, forward and backward. The floor of a row is the time of a
copy with the same number of bytes. Few kernels are faster than their floor.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from harness import command, results
from harness.figures import Bar, Limit, geomean, ranked, values
from harness.results import Record, of_section
from harness.text import about_lines, cell, failures, figure, times_of
from layers_workload import DIRECTIONS, FAMILIES, KINDS

ROW_LIMIT = Limit("ours", "torch", 1.1)  # maximum for each row
AT_THE_FLOOR = 1.15  # memory bandwidth limits a row that takes at most this multiple of its floor


def main() -> None:
    command.report("report the results of benchmarks/layers.py", render, write_whole)


def write_whole(path: Path, records: list[Record]) -> None:
    """Write the records and the targets to one JSON file."""
    results.write_whole(path, "layers", records, [bar.record for bar in bars(records)])


# --- figures -----------------------------------------------------------------------------------------------


def bars(records: list[Record]) -> list[Bar]:
    """Return the targets with the measured values."""
    rows = of_section(records, "rows")
    return [*_family_bars(rows), _row_bar(rows)]


def _family_bars(rows: list[Record]) -> Iterator[Bar]:
    for name, family in FAMILIES.items():
        if family.limit is None:
            continue
        some = [row for row in rows if row["family"] == name]
        parts = (
            f"{direction} {figure(geomean(values(ours_over_torch, _directed(some, direction))))}"
            for direction in DIRECTIONS
        )
        ratios = values(ours_over_torch, some)
        detail = ", ".join(parts) if ratios else ""
        yield Bar(f"ours / torch, {family.title}", geomean(ratios), family.limit, len(ratios), detail)


def _row_bar(rows: list[Record]) -> Bar:
    above = [row for _, row in ranked(ours_over_torch, rows, ROW_LIMIT.most)]
    floored = sum(at_the_floor(row) for row in above)
    ratios = values(ours_over_torch, rows)
    detail = f"{len(above)} above, {floored} of them at the floor"
    return Bar("ours / torch, the worst row", max(ratios, default=None), ROW_LIMIT.most, len(ratios), detail)


def ours_over_torch(row: Record) -> float | None:
    """Return the ratio of our time to PyTorch's, or the median ratio of a remeasured row."""
    return ROW_LIMIT.ratio(row)


def floor_ratio(row: Record, contender: str = "ours") -> float | None:
    """Return the ratio of a contender's time to the floor of the row."""
    time, floor = row["times"].get(contender), row.get("floor_us")
    return time / floor if time and floor else None


def at_the_floor(row: Record) -> bool:
    """Return whether memory bandwidth limits our call."""
    ratio = floor_ratio(row)
    return ratio is not None and ratio <= AT_THE_FLOOR


def _directed(rows: list[Record], direction: str | None) -> list[Record]:
    return [row for row in rows if direction in (None, row["direction"])]


# --- text --------------------------------------------------------------------------------------------------


def render(records: list[Record]) -> str:
    """Return the whole report."""
    rows = of_section(records, "rows")
    parts = [
        _heading(records),
        "\n".join(map(str, bars(records))),
        _table(rows),
        _above(rows),
        failures(records),
    ]
    return "\n\n".join(part for part in parts if part)


def _heading(records: list[Record]) -> str:
    speeds = [row["bytes"] / row["floor_us"] / 1e6 for row in records if row.get("floor_us")]
    lines = [f"{len(of_section(records, 'rows'))} rows", *about_lines(records)]
    if speeds:
        lines.append(f"floors at the speed of a copy, {min(speeds):.2f} to {max(speeds):.2f} TB/s")
    return "\n".join(lines)


def _table(rows: list[Record]) -> str:
    """Return a table of geometric means and largest ratios, to PyTorch and to the floor."""
    lines = [f"{'geometric mean, worst, rows':46} {'ours/torch':>18} {'ours/floor':>11} {'torch/floor':>11}"]
    lines += [f"{title:46} {_cells(some)}" for title, some in _groups(rows) if some]
    return "\n".join(lines) if rows else ""


def _groups(rows: list[Record]) -> Iterator[tuple[str, list[Record]]]:
    """Yield the rows of each family, of each of its operations, and of each of their kinds."""
    for name, family in FAMILIES.items():
        of_family = [row for row in rows if row["family"] == name]
        yield family.title, of_family
        for operation in dict.fromkeys(one for case in family.cases for one in case.operations):
            of_operation = [row for row in of_family if row["operation"] == operation]
            yield f"  {operation}", of_operation
            for key, kind in KINDS.items():
                yield f"    {kind.title}", [row for row in of_operation if row["kind"] == key]


def _cells(rows: list[Record]) -> str:
    floors = [values(functools.partial(floor_ratio, contender=name), rows) for name in ("ours", "torch")]
    columns = [f"{cell(values(ours_over_torch, rows)):>18}"]
    return " ".join(columns + [f"{figure(geomean(ratios)):>11}" for ratios in floors])


def _above(rows: list[Record]) -> str:
    """List the rows above the limit with their floors, largest ratio first."""
    found = ranked(ours_over_torch, rows, ROW_LIMIT.most)
    lines = [f"rows above {ROW_LIMIT.most}, ours / torch: {len(found)}"]
    for value, row in found:
        again = " (measured again)" if row.get("remeasured") else ""
        floor = f"floor {row['floor_us']:.1f}" + (", reached" if at_the_floor(row) else "")
        lines.append(f"  {value:5.2f} {row['id']}: {times_of(row)}, {floor}{again}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
