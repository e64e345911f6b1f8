"""Report of the convolution benchmark: the targets with their figures, and the rows behind the figures.

    python benchmarks/conv_report.py ROWS... [--json OUT]

ROWS are files of one or more shards, written by `conv.py`. No GPU is needed. Ratios are ours / theirs, and
geometric means are taken over rows. A row is kernel-bound if autotune and PyTorch with cudnn.benchmark both
take more than 30 us, because on a slow host the time of one of them may be host time. The figures of the
heuristic choice are from the half of the rows on which its rule was not fitted.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from conv_layers import DIRECTIONS, KINDS
from harness import command, results
from harness.figures import Bar, Limit, Ratio, geomean, quotient, ranked, values
from harness.results import Record, of_section
from harness.text import about_lines, cell, failures, figure, times_of

# A kernel-bound row must take at most 1.03 times the time of PyTorch with cudnn.benchmark.
ROW_LIMIT = Limit("time", "torch_benchmark", 1.03, bound=30)
SLOW_GUESS = 1.25  # the report lists rows whose heuristic choice is slower by this factor
NEW_PROBLEM = (35, 70)  # microseconds: the range of kernels of about 50 us
NEW_PROBLEM_LIMIT = 60  # milliseconds
LIMITS = {"fp16": 0.98, "bf16": 0.98, "tf32-nhwc": 0.98, "tf32-nchw": 0.98, "fp32": 0.90, "fp64": 0.90}


def main() -> None:
    command.report("report the results of benchmarks/conv.py", render, write_whole)


def write_whole(path: Path, records: list[Record]) -> None:
    """Write the records and the targets to one JSON file."""
    results.write_whole(path, "conv", records, [bar.record for bar in bars(records)])


# --- figures -----------------------------------------------------------------------------------------------


def bars(records: list[Record]) -> list[Bar]:
    """Return the targets with the measured values."""
    rows = of_section(records, "rows")
    return [
        *_time_bars(rows),
        *_guess_bars(rows),
        _new_problem_bar(records),
        *_fused_bars(of_section(records, "fused")),
        *_cache_bars(of_section(records, "cache")),
    ]


def _time_bars(rows: list[Record]) -> Iterator[Bar]:
    bound = [row for row in rows if ROW_LIMIT.kernel_bound(row)]
    for kind, limit in LIMITS.items():
        ratios = values(time_over_torch, (row for row in bound if row["kind"] == kind))
        yield Bar(f"time / torch, kernel-bound, {KINDS[kind].title}", geomean(ratios), limit, len(ratios))
    ratios = values(time_over_torch, bound)
    above = f"{sum(ratio > ROW_LIMIT.most for ratio in ratios)} above"
    worst = max(ratios, default=None)
    yield Bar("time / torch, the worst kernel-bound row", worst, ROW_LIMIT.most, len(ratios), above)
    rest = values(time_over_torch, (row for row in rows if not ROW_LIMIT.kernel_bound(row)))
    yield Bar("time / torch, the rest", geomean(rest), 0.75, len(rest))


def _guess_bars(rows: list[Record]) -> Iterator[Bar]:
    yield _by_halves("guess / torch without benchmark", guess_over_torch, rows, 0.98)
    for kind in LIMITS:
        for direction in DIRECTIONS:
            some = [row for row in rows if (row["kind"], row["direction"]) == (kind, direction)]
            name = f"guess / time, {KINDS[kind].title}, {direction}"
            yield _by_halves(name, guess_over_time, some, 1.12)


def _by_halves(name: str, ratio: Ratio, rows: list[Record], limit: float) -> Bar:
    """Return the target of the half on which the rule was not fitted. Its detail has the other figures."""
    report = values(ratio, (row for row in rows if row["half"] == "report"))
    fit = values(ratio, (row for row in rows if row["half"] == "fit"))
    detail = f"fitted half {figure(geomean(fit))}, all {figure(geomean(report + fit))}"
    return Bar(name, geomean(report), limit, len(report), detail)


def _new_problem_bar(records: list[Record]) -> Bar:
    """Return the target of the section "new", which compiles no engine. Its detail has the section "rows"."""
    plain, compiled = (_costs(of_section(records, section)) for section in ("new", "rows"))
    detail = f"kernels of {NEW_PROBLEM[0]} to {NEW_PROBLEM[1]} us"
    if plain:
        above = sum(cost > NEW_PROBLEM_LIMIT for cost in plain)
        detail += f", median {figure(statistics.median(plain))}, {above} above"
    if compiled:
        detail += f"; with engines that are compiled, median {figure(statistics.median(compiled))}"
    name = "ms of the first autotune call of a new problem, the worst"
    return Bar(name, max(plain, default=None), NEW_PROBLEM_LIMIT, len(plain), detail)


def _costs(rows: list[Record]) -> list[float]:
    """Return the milliseconds of the first autotune call for each kernel of about 50 us."""
    low, high = NEW_PROBLEM
    return [
        row["first_ms"]["time"]
        for row in rows
        if low <= row["times"].get("time", 0) <= high and "time" in row.get("first_ms", {})
    ]


def _fused_bars(rows: list[Record]) -> Iterator[Bar]:
    for ours in ("guess", "time"):
        eager, fused = (
            [ratio for row in rows if (ratio := quotient(row["times"], ours, theirs))]
            for theirs in ("torch_eager", "torch_fused")
        )
        detail = f"/ cudnn_convolution_relu {figure(geomean(fused))}"
        yield Bar(f"conv + bias + relu fused ({ours}) / torch eager", geomean(eager), 0.6, len(eager), detail)


def _cache_bars(found: list[Record]) -> Iterator[Bar]:
    for state in ("warm", "cold"):
        times = found[-1]["times"].get(state, {}) if found else {}
        medians = {name: statistics.median(several) for name, several in times.items() if several}
        value = quotient(medians, "time", "guess")
        detail = f"{medians['time']:.1f} / {medians['guess']:.1f} ms" if value else ""
        name = f"first autotune call with its choice on disk / heuristic, {state} process"
        yield Bar(name, value, 1.3, len(times.get("time", ())), detail)


def time_over_torch(row: Record) -> float | None:
    """Return the ratio of the autotuned choice to PyTorch, or the median ratio of a remeasured row."""
    return ROW_LIMIT.ratio(row)


def guess_over_torch(row: Record) -> float | None:
    """Return the ratio of our heuristic choice to PyTorch's."""
    return quotient(row["times"], "guess", "torch")


def guess_over_time(row: Record) -> float | None:
    """Return the ratio of the heuristic choice to the autotuned one."""
    return quotient(row["times"], "guess", "time")


# --- text --------------------------------------------------------------------------------------------------


def render(records: list[Record]) -> str:
    """Return the whole report."""
    rows = of_section(records, "rows")
    most = ROW_LIMIT.most
    parts = [
        _heading(records),
        "\n".join(map(str, bars(records))),
        _table(rows),
        _listing(f"kernel-bound rows above {most}, time / torch", time_over_torch, most, "time",
                 [row for row in rows if ROW_LIMIT.kernel_bound(row)]),
        _listing("ten worst of the other rows, time / torch", time_over_torch, 0, "time",
                 [row for row in rows if not ROW_LIMIT.kernel_bound(row)], 10),
        _listing(f"guess rows above {SLOW_GUESS}, guess / time", guess_over_time, SLOW_GUESS, "guess", rows),
        failures(records),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _heading(records: list[Record]) -> str:
    counts = f"{len(of_section(records, 'rows'))} rows, {len(of_section(records, 'fused'))} fused"
    return "\n".join([counts, *about_lines(records)])


def _table(rows: list[Record]) -> str:
    """Return a table of geometric means and largest ratios by kind and direction."""
    lines = [
        f"{'geometric mean, worst, rows':36} {'time/torch kernel-bound':>23} {'other rows':>18} "
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
    bound = values(time_over_torch, filter(ROW_LIMIT.kernel_bound, rows))
    rest = values(time_over_torch, (row for row in rows if not ROW_LIMIT.kernel_bound(row)))
    halves = [
        geomean(values(guess_over_time, (row for row in rows if row["half"] == half)))
        for half in ("fit", "report")
    ]
    columns = [f"{cell(bound):>23}", f"{cell(rest):>18}", f"{cell(values(guess_over_torch, rows)):>18}"]
    columns.append(f"{cell(values(guess_over_time, rows)):>18}")
    return " ".join(columns + [f"{figure(half):>6}" for half in halves])


def _listing(
    title: str, ratio: Ratio, above: float, ours: str, rows: list[Record], most: int | None = None
) -> str:
    """List the rows with a ratio above a limit, largest first, with times and chosen algorithms."""
    found = ranked(ratio, rows, above)
    lines = [f"{title}: {len(found)}"]
    for value, row in found[:most]:
        again = " (measured again)" if row.get("remeasured") and ratio is time_over_torch else ""
        lines.append(f"  {value:5.2f} {row['id']} [{row['half']}]: {times_of(row)}{again}")
        chosen = row.get("choice", {})
        for name in dict.fromkeys((ours, "time")):
            lines += [f"        {name}: {chosen[name]}"] if name in chosen else []
    return "\n".join(lines)


if __name__ == "__main__":
    main()
