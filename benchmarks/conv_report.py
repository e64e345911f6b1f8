"""What the rows of the convolution benchmark come to: the bars, each with its figure, and the rows behind.

    python benchmarks/conv_report.py ROWS... [--json OUT]

ROWS are files that `conv.py` wrote, of one shard or of several; no GPU is needed. Ratios are ours / theirs,
and geometric means are taken over rows. A row is kernel-bound where PyTorch with cudnn.benchmark takes more
than 30 us. The rule behind `guess_*` is fitted on one half of the rows and judged by the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from conv_layers import DIRECTIONS, KINDS

Record = dict[str, Any]

KERNEL_BOUND = 30  # microseconds
ABOVE = 1.03  # a kernel-bound row must not be slower than that
SLOW_GUESS = 1.25  # guessed rows that are slower than that are listed
NEW_PROBLEM = (35, 70)  # microseconds: what counts as a kernel of 50 us
LIMITS = {"fp16": 0.98, "bf16": 0.98, "tf32-nhwc": 0.98, "tf32-nchw": 0.98, "fp32": 0.90, "fp64": 0.90}


def main() -> None:
    parser = argparse.ArgumentParser(description="report of benchmarks/conv.py, from its files")
    parser.add_argument("rows", nargs="+", type=Path, help="files of rows, merged")
    parser.add_argument("--json", type=Path, help="write everything as one file here")
    arguments = parser.parse_args()
    records = merged(record for path in arguments.rows for record in read(path))
    print(render(records))
    if arguments.json:
        write_whole(arguments.json, records)


# --- files -------------------------------------------------------------------------------------------------


def read(path: Path) -> list[Record]:
    """Read a file of rows, one JSON object a line, or a whole result. A line that was cut off is left out."""
    text = path.read_text(encoding="utf-8")
    if text.startswith(WHOLE):
        return list(json.loads(text)["records"])
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [record for record in found if isinstance(record, dict) and "section" in record]


def merged(records: Iterable[Record]) -> list[Record]:
    """Keep one record of each: the one with the most contenders timed, the latest of equals."""
    best: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record["section"], record["id"])
        if key not in best or len(record.get("times", ())) >= len(best[key].get("times", ())):
            best[key] = record
    return list(best.values())


WHOLE = '{\n "benchmark": "conv"'


def write_whole(path: Path, records: list[Record]) -> None:
    """Write everything as one JSON file, a record a line."""
    about = [record for record in records if record["section"] == "about"]
    head = {
        "about": [{k: v for k, v in one.items() if k not in ("section", "id")} for one in about],
        "unit": "microseconds of GPU time per call, medians; ratios are ours / theirs",
        "bars": [{**bar._asdict(), "verdict": bar.verdict} for bar in bars(records)],
    }
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    body = ",\n".join("  " + json.dumps(record, default=str) for record in records)
    text = ",\n".join([WHOLE, *lines, f' "records": [\n{body}\n ]'])
    path.write_text(text + "\n}\n", encoding="utf-8")


# --- figures -----------------------------------------------------------------------------------------------


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

    def __str__(self) -> str:
        figure = "-" if self.value is None else f"{self.value:.3f}"
        return (
            f"{self.verdict:16} {figure:>8} <= {self.limit:<5g} {self.name} ({_of(self.count, self.detail)})"
        )


def bars(records: list[Record]) -> list[Bar]:
    """Hold everything that was measured against what is to be reached."""
    rows = of_section(records, "rows")
    return [
        *_time_bars(rows),
        *_guess_bars(rows),
        _new_problem_bar(rows),
        *_fused_bars(of_section(records, "fused")),
        *_host_bars(of_section(records, "host")),
        *_cache_bars(of_section(records, "cache")),
    ]


def _time_bars(rows: list[Record]) -> Iterator[Bar]:
    bound = [row for row in rows if kernel_bound(row)]
    for kind, limit in LIMITS.items():
        ratios = values(time_over_torch, (row for row in bound if row["kind"] == kind))
        yield Bar(f"time / torch, kernel-bound, {KINDS[kind].title}", geomean(ratios), limit, len(ratios))
    ratios = values(time_over_torch, bound)
    above = sum(ratio > ABOVE for ratio in ratios)
    yield Bar("time / torch, the worst kernel-bound row", max(ratios, default=None), ABOVE, len(ratios),
              f"{above} above")  # fmt: skip
    rest = values(time_over_torch, (row for row in rows if not kernel_bound(row)))
    yield Bar("time / torch, the rest", geomean(rest), 0.75, len(rest))


def _guess_bars(rows: list[Record]) -> Iterator[Bar]:
    yield _by_halves("guess / torch without benchmark", guess_over_torch, rows, 0.98)
    for kind in LIMITS:
        for direction in DIRECTIONS:
            some = [row for row in rows if (row["kind"], row["direction"]) == (kind, direction)]
            name = f"guess / time, {KINDS[kind].title}, {direction}"
            yield _by_halves(name, guess_over_time, some, 1.12)


def _by_halves(name: str, ratio: Ratio, rows: list[Record], limit: float) -> Bar:
    """A bar for the half that the rule was not fitted on, with the other figures beside it."""
    report = values(ratio, (row for row in rows if row["half"] == "report"))
    fit = values(ratio, (row for row in rows if row["half"] == "fit"))
    detail = f"fitted half {_figure(geomean(fit))}, all {_figure(geomean(report + fit))}"
    return Bar(name, geomean(report), limit, len(report), detail)


def _new_problem_bar(rows: list[Record]) -> Bar:
    low, high = NEW_PROBLEM
    costs = [
        row["first_ms"]["time"]
        for row in rows
        if low <= row["times"].get("time", 0) <= high and "time" in row.get("first_ms", {})
    ]
    detail = f"kernels of {low} to {high} us, median {_figure(statistics.median(costs))}" if costs else ""
    name = "ms of the first time_* call of a new problem, the worst"
    return Bar(name, max(costs, default=None), 60, len(costs), detail)


def _fused_bars(rows: list[Record]) -> Iterator[Bar]:
    for ours in ("guess", "time"):
        eager, fused = (
            [ratio for row in rows if (ratio := quotient(row["times"], ours, theirs))]
            for theirs in ("torch_eager", "torch_fused")
        )
        detail = f"/ cudnn_convolution_relu {_figure(geomean(fused))}"
        yield Bar(f"conv + bias + relu fused ({ours}) / torch eager", geomean(eager), 0.6, len(eager), detail)


def _host_bars(found: list[Record]) -> Iterator[Bar]:
    times = found[-1]["times"] if found else {}
    for ours, theirs, limit in (
        ("conv", "torch", 0.8),
        ("plan_out", "torch", 0.5),
        ("plan_out", "frontend", 0.55),
    ):
        value = quotient(times, ours, theirs)
        detail = f"{times[ours]:.2f} / {times[theirs]:.2f} us" if value else ""
        yield Bar(f"host time, {ours} / {theirs}", value, limit, int(value is not None), detail)


def _cache_bars(found: list[Record]) -> Iterator[Bar]:
    for state in ("warm", "cold"):
        times = found[-1]["times"].get(state, {}) if found else {}
        medians = {name: statistics.median(several) for name, several in times.items() if several}
        value = quotient(medians, "time", "guess")
        detail = f"{medians['time']:.1f} / {medians['guess']:.1f} ms" if value else ""
        name = f"first time_* call with its choice on disk / guess_*, {state} process"
        yield Bar(name, value, 1.3, len(times.get("time", ())), detail)


Ratio = Callable[[Record], float | None]


def time_over_torch(row: Record) -> float | None:
    """Ratio of the timed choice to PyTorch's; of the repetition, where a row was measured again."""
    again = row.get("remeasured")
    return statistics.median(again) if again else quotient(row["times"], "time", "torch_benchmark")


def guess_over_torch(row: Record) -> float | None:
    """Ratio of the guessed choice to PyTorch's guess."""
    return quotient(row["times"], "guess", "torch")


def guess_over_time(row: Record) -> float | None:
    """Ratio of the guessed choice to the timed one."""
    return quotient(row["times"], "guess", "time")


def quotient(times: Record, above: str, below: str) -> float | None:
    """One time over another; None where either is missing."""
    a, b = times.get(above), times.get(below)
    return a / b if a and b else None


def kernel_bound(row: Record) -> bool:
    """Whether the GPU decides how long a row takes, not the host."""
    return bool(row["times"].get("torch_benchmark", 0) > KERNEL_BOUND)


def geomean(ratios: list[float]) -> float | None:
    """Geometric mean; None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None


def values(ratio: Ratio, rows: Iterable[Record]) -> list[float]:
    """The ratios that there are."""
    found = map(ratio, rows)
    return [value for value in found if value is not None]


def of_section(records: list[Record], section: str) -> list[Record]:
    """The records of one section; those that only say why nothing was measured are left out."""
    return [record for record in records if record["section"] == section and record.get("times")]


# --- text --------------------------------------------------------------------------------------------------


def render(records: list[Record]) -> str:
    """The whole report."""
    rows = of_section(records, "rows")
    parts = [
        _heading(records),
        "\n".join(map(str, bars(records))),
        _table(rows),
        _listing(f"kernel-bound rows above {ABOVE}, time / torch", time_over_torch, ABOVE, "time",
                 [row for row in rows if kernel_bound(row)]),
        _listing("the ten worst of the rest, time / torch", time_over_torch, 0, "time",
                 [row for row in rows if not kernel_bound(row)], 10),
        _listing(f"guess rows above {SLOW_GUESS}, guess / time", guess_over_time, SLOW_GUESS, "guess", rows),
        _host_listing(of_section(records, "host")),
        _failures(records),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _heading(records: list[Record]) -> str:
    lines = [f"{len(of_section(records, 'rows'))} rows, {len(of_section(records, 'fused'))} fused"]
    for one in records:
        if one["section"] == "about":
            facts = (f"{key} {value}" for key, value in one.items() if key not in ("section", "id"))
            lines.append(", ".join(facts))
    return "\n".join(lines)


def _table(rows: list[Record]) -> str:
    """Geometric means, and the worst, by kind and direction."""
    lines = [
        f"{'geometric mean, worst, rows':36} {'time/torch kernel-bound':>23} {'the rest':>18} "
        f"{'guess/torch heur.':>18} {'guess/time':>18} {'fit':>6} {'report':>6}"
    ]
    for kind, direction in [(k, d) for k in KINDS for d in (*DIRECTIONS, None)] + [(None, None)]:
        some = [
            row
            for row in rows
            if (kind is None or row["kind"] == kind) and (direction is None or row["direction"] == direction)
        ]
        if some:
            title = "all" if kind is None else f"{KINDS[kind].title}, {direction or 'all'}"
            lines.append(f"{title:36} {_cells(some)}")
    return "\n".join(lines)


def _cells(rows: list[Record]) -> str:
    bound = values(time_over_torch, filter(kernel_bound, rows))
    rest = values(time_over_torch, (row for row in rows if not kernel_bound(row)))
    halves = [
        geomean(values(guess_over_time, (row for row in rows if row["half"] == half)))
        for half in ("fit", "report")
    ]
    columns = [f"{_cell(bound):>23}", f"{_cell(rest):>18}", f"{_cell(values(guess_over_torch, rows)):>18}"]
    columns.append(f"{_cell(values(guess_over_time, rows)):>18}")
    return " ".join(columns + [f"{_figure(half):>6}" for half in halves])


def _cell(ratios: list[float]) -> str:
    return f"{geomean(ratios):.3f} {max(ratios):6.2f} {len(ratios):4}" if ratios else "-"


def _listing(
    title: str, ratio: Ratio, above: float, ours: str, rows: list[Record], most: int | None = None
) -> str:
    """Rows with a ratio above a limit, the worst first, with times and what was chosen."""
    ranked = sorted(((value, row) for row in rows if (value := ratio(row)) is not None and value > above),
                    key=lambda pair: -pair[0])  # fmt: skip
    lines = [f"{title}: {len(ranked)}"]
    for value, row in ranked[:most]:
        times = ", ".join(f"{name} {time:.1f}" for name, time in row["times"].items())
        again = " (measured again)" if row.get("remeasured") and ratio is time_over_torch else ""
        lines.append(f"  {value:5.2f} {row['id']} [{row['half']}]: {times}{again}")
        chosen = row.get("choice", {})
        for name in dict.fromkeys((ours, "time")):
            lines += [f"        {name}: {chosen[name]}"] if name in chosen else []
    return "\n".join(lines)


def _host_listing(found: list[Record]) -> str:
    if not found:
        return ""
    notes = found[-1].get("errors", {})
    lines = [f"  {name:12} {time:6.2f}" for name, time in found[-1]["times"].items()]
    return "\n".join(["host time per call, us", *lines, *(f"  {name}: {why}" for name, why in notes.items())])


def _failures(records: list[Record]) -> str:
    """Everything that raised or was left out, with the reason."""
    lines = []
    for record in records:
        if "skipped" in record:
            lines.append(f"  {record['id']}: skipped: {record['skipped']}")
        for name, why in record.get("errors", {}).items():
            lines.append(f"  {record['id']}: {name}: {why.splitlines()[0] if why else why}")
    return "\n".join([f"errors and skipped rows: {len(lines)}", *lines]) if lines else ""


def _of(count: int, detail: str) -> str:
    rows = f"{count} row{'' if count == 1 else 's'}"
    return f"{rows}; {detail}" if detail else rows


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
