"""Write the tables of measurements in docs/, from the files in benchmarks/results/.

python tools/performance_docs.py            # write the tables
python tools/performance_docs.py --check    # print the pages that are out of date, and exit 1 if any is

A table does not change if the file of its benchmark does not exist.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "benchmarks"))

import attention_report  # type: ignore[import-not-found]  # noqa: E402
import conv_report  # type: ignore[import-not-found]  # noqa: E402
import host_report  # type: ignore[import-not-found]  # noqa: E402
import layers_report  # type: ignore[import-not-found]  # noqa: E402
import rnn_report  # type: ignore[import-not-found]  # noqa: E402
import rnn_workload  # type: ignore[import-not-found]  # noqa: E402
from conv_layers import DIRECTIONS, KINDS  # type: ignore[import-not-found]  # noqa: E402
from harness.figures import geomean, values  # type: ignore[import-not-found]  # noqa: E402
from harness.results import of_section, read  # type: ignore[import-not-found]  # noqa: E402
from layers_workload import FAMILIES  # type: ignore[import-not-found]  # noqa: E402

Record = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    old = []
    for page, text in written(RESULTS).items():
        if text != page.read_text(encoding="utf-8"):
            old.append(page)
            if not options.check:
                page.write_text(text, encoding="utf-8")
    for page in old:
        print(page.relative_to(ROOT), "is out of date" if options.check else "written")
    return 1 if options.check and old else 0


def written(results: Path) -> dict[Path, str]:
    """Return the text that each page with a table should have."""
    pages: dict[Path, str] = {}
    for name, benchmark, place, table in TABLES:
        page = ROOT / place
        pages.setdefault(page, page.read_text(encoding="utf-8"))
        file = results / f"{benchmark}.json"
        if file.exists():
            found = [json.loads(file.read_text(encoding="utf-8"))] if table is short_targets else read(file)
            pages[page] = put(pages[page], name, table(found), place)
    return pages


def put(page: str, name: str, block: str, place: str) -> str:
    """Replace the text between the marks of a name."""
    pattern = rf"(<!-- begin: {name} [^\n]*-->\n).*?(<!-- end: {name} -->)"
    text, count = re.subn(pattern, lambda marks: f"{marks[1]}\n{block}\n\n{marks[2]}", page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{place} does not have one pair of marks for {name}")
    return text


# --- tables ------------------------------------------------------------------------------------------------


def short_targets(records: list[Record]) -> str:
    """Return the table of `benchmarks/all.py`, which one run makes."""
    (one,) = records
    about = one["about"]
    lines = [
        [bar["name"], str(bar["count"]), *map(number, (bar["value"], bar["limit"], bar.get("floor")))]
        for bar in one["bars"]
    ]
    versions = f"driver {about['driver']}, cuDNN {about['cudnn']}, PyTorch {about['torch']}, {about['date']}"
    head = f"{about['device']}, {versions}, {about['seconds']} s, seed {about['seed']}."
    return f"{head}\n\n{markdown(('', 'rows', 'measured', 'at most', 'floor'), lines)}"


def number(value: float | None) -> str:
    """Return a ratio, a percentage, milliseconds or MiB as text for a table."""
    return ratio(value) if value is None or value < 100 else f"{value:.0f}"


def conv_in_full(records: list[Record]) -> str:
    """Return a table of convolutions by dtype, layout and direction."""
    rows = of_section(records, "rows")
    bound = [row for row in rows if conv_report.ROW_LIMIT.kernel_bound(row)]

    def cells(title: str, **which: str) -> list[str]:
        timed = values(conv_report.time_over_torch, _where(bound, **which))
        some = _where(rows, **which)
        return [
            title,
            str(len(timed)),
            ratio(geomean(timed)),
            ratio(max(timed, default=None)),
            ratio(geomean(guessed := values(conv_report.guess_over_torch, some))),
            ratio(max(guessed, default=None)),
            ratio(geomean(values(conv_report.guess_over_time, some))),
        ]

    lines = [
        cells(f"{kind.title}, {direction}", kind=name, direction=direction)
        for name, kind in KINDS.items()
        for direction in DIRECTIONS
    ]
    heads = ["", "rows over 30 us", "autotune / PyTorch", "worst"]
    heads += ["heuristic / PyTorch", "worst", "heuristic / autotune"]
    return f"{_about(records)}\n\n{markdown(heads, [*lines, cells('all')])}"


def attention_by_use(records: list[Record]) -> str:
    """Return a table of attention compared with PyTorch's cuDNN and flash backends."""
    lines: dict[tuple[str, str], list[str]] = {}
    for group in attention_report.groups(of_section(records, "rows")):
        cells = lines.setdefault((group.use, group.direction), [f"{group.use}, {group.direction}"])
        unseen = ratio(geomean(group.held_out))
        cells += [str(len(group.ratios)), ratio(geomean(group.ratios)), unseen, ratio(max(group.ratios))]
    heads = [""]
    for backend in ("cuDNN backend", "flash backend"):
        heads += ["rows", f"ours / {backend}", "held out", "worst"]
    return f"{_about(records)}\n\n{markdown(heads, lines.values())}"


def norms_by_row(records: list[Record]) -> str:
    """Return a table of normalisations of rows compared with PyTorch, a copy and the best engine."""
    names = ("torch", "ct_heuristic", "ct_autotune", "ct_best")
    lines = []
    for row in sorted(of_section(records, "rows"), key=by_name_and_size):
        times = row["times"]
        cells = [f"{times[name]:.1f}" if name in times else "-" for name in names]
        tuned = times["ct_autotune"] / times["torch"] if "ct_autotune" in times else None
        lines.append([row["id"], *cells, f"{row['floor']:.1f}", ratio(tuned)])
    heads = ["", "PyTorch", "heuristic", "autotune", "best engine", "memory", "autotune / PyTorch"]
    return f"{_about(records)}\n\n{markdown(heads, lines)}"


def by_name_and_size(row: Record) -> list[tuple[int, str]]:
    """Return a key that sorts names, and the numbers in them by their size."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", row["id"])]


def products_by_kind(records: list[Record]) -> str:
    """Return a table of products of matrices compared with PyTorch, by what takes their time."""
    lines = []
    for kind, (title, target) in PRODUCTS.items():
        rows = [row for row in of_section(records, "rows") if row["kind"] == kind]
        tuned, guessed = (
            [row["times"][name] / row["times"]["torch"] for row in rows if name in row["times"]]
            for name in ("ct_autotune", "ct_heuristic")
        )
        unseen = [row["times"]["ct_autotune"] / row["times"]["torch"] for row in rows if row["held_out"]]
        means = [ratio(geomean(one)) for one in (tuned, unseen)]
        lines.append(
            [title, str(len(rows)), *means, ratio(max(tuned)), ratio(target), ratio(geomean(guessed))]
        )
    heads = ["", "rows", "autotune / PyTorch", "held out", "worst", "target", "heuristic / PyTorch"]
    return f"{_about(records)}\n\n{markdown(heads, lines)}"


# What takes the time of a product, and the largest ratio wanted.
PRODUCTS = {
    "compute": ("the product", 1.02),
    "weights": ("reading the weights", 1.05),
    "epilogue": ("the result and its activation", 0.6),
}


def layers_by_family(records: list[Record]) -> str:
    """Return a table of layers by family, compared with PyTorch and with memory copies."""
    rows = of_section(records, "rows")
    lines = [_layer_cells(title, _where(rows, family=name)) for name, title in _families().items()]
    return markdown(LAYER_HEADS, lines)


def layers_in_full(records: list[Record]) -> str:
    """Return a table of layers by operation."""
    rows = of_section(records, "rows")
    cases = (case for family in FAMILIES.values() for case in family.cases)
    found = dict.fromkeys(operation for case in cases for operation in case.operations)
    lines = [_layer_cells(f"`{name}`", _where(rows, operation=name)) for name in found]
    return f"{_about(records)}\n\n{markdown(LAYER_HEADS, lines)}"


LAYER_HEADS = ("", "rows", "ours / PyTorch", "worst", "ours / memory", "PyTorch / memory")


def _layer_cells(title: str, rows: list[Record]) -> list[str]:
    ratios = values(layers_report.ours_over_torch, rows)
    floors = [
        geomean(values(lambda row, name=name: layers_report.floor_ratio(row, name), rows))
        for name in ("ours", "torch")
    ]
    return [
        title,
        str(len(ratios)),
        ratio(geomean(ratios)),
        ratio(max(ratios, default=None)),
        *map(ratio, floors),
    ]


def rnn_in_full(records: list[Record]) -> str:
    """Return a table of recurrent networks by pass, mode and dtype."""
    columns = (rnn_report.time_over_torch, rnn_report.guess_over_torch, rnn_report.guess_over_time)
    lines = []
    for title, rows in _rnn_groups(of_section(records, "rows")):
        timed, *others = (values(column, rows) for column in columns)
        means = (geomean(timed), max(timed, default=None), *map(geomean, others))
        lines.append([title, str(len(timed)), *map(ratio, means)])
    heads = ("", "rows", "autotune / PyTorch", "worst", "heuristic / PyTorch", "heuristic / autotune")
    return f"{_about(records)}\n\n{markdown(heads, lines)}"


def _rnn_groups(rows: list[Record]) -> Iterator[tuple[str, list[Record]]]:
    padded = _where(rows, packed=False)
    for work in rnn_workload.PASSES:
        yield work, _where(padded, work=work)
    for mode in rnn_workload.MODES:
        yield f"`{mode}`", _where(padded, mode=mode)
    for name, kind in rnn_workload.KINDS.items():
        yield kind.title, _where(padded, kind=name)
    yield "packed sequences", _where(rows, packed=True)
    yield "all", rows


def host_targets(records: list[Record]) -> str:
    """Return a table of the targets of host time."""
    lines = []
    for target in host_report.TARGETS:
        found = [value for value, _ in host_report.rows_of(target, records)]
        limits = f"{target.limit:.2f}" + (f", each {target.row_limit:.2f}" if target.row_limit else "")
        means = (geomean(found), max(found, default=None))
        lines.append([target.name, str(len(found)), *map(ratio, means), limits])
    return f"{_about(records)}\n\n{markdown(('', 'rows', 'ratio', 'worst', 'target'), lines)}"


def host_times(records: list[Record]) -> str:
    """Return a table of the host time of operations in microseconds, compared with PyTorch."""
    sides = ("ours", "torch")
    rows = [row for section in HOST_SECTIONS for row in of_section(records, section)]
    rows = [row for row in rows if row["times"].keys() >= set(sides)]
    lines = []
    for name in dict.fromkeys(row["operation"] for row in rows):
        some = [row["times"] for row in _where(rows, operation=name)]
        means = [geomean([times[side] for times in some]) for side in sides]
        ratios = [times["ours"] / times["torch"] for times in some]
        shown = (*(f"{mean:.1f}" for mean in means), ratio(geomean(ratios)), ratio(max(ratios)))
        lines.append([f"`{name}`", str(len(some)), *shown])
    return markdown(("", "rows", "µs", "PyTorch, µs", "ours / PyTorch", "worst"), lines)


HOST_SECTIONS = ("conv", "plan", "layers", "rnn", "network", "other")


def ratio(value: float | None) -> str:
    """Return a ratio as text for a table."""
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    titles = list(heads)
    lines = ["| " + " | ".join(line) + " |" for line in (titles, *rows)]
    lines.insert(1, "|" + "---|" * len(titles))
    return "\n".join(lines)


def _about(records: list[Record]) -> str:
    """Return a line with the device, the versions and the date of each run."""
    runs = {
        (one["device"], one["driver"], _version(one["cudnn"]), one["torch"], one["date"][:10])
        for one in records
        if one["section"] == "about"
    }
    return "\n".join(
        f"{device}, driver {driver}, cuDNN {cudnn}, PyTorch {torch}, {date}."
        for device, driver, cudnn, torch, date in sorted(runs)
    )


def _version(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _families() -> dict[str, str]:
    """Return the titles of the families with a target, by name."""
    return {name: family.title for name, family in FAMILIES.items() if family.limit is not None}


def _where(rows: list[Record], **which: Any) -> list[Record]:
    return [row for row in rows if all(row[key] == value for key, value in which.items())]


Table = Callable[[list[Record]], str]

# The name in the marks, the benchmark, the page, and the function that returns the table.
TABLES: tuple[tuple[str, str, str, Table], ...] = (
    ("short", "all", "docs/performance.md", short_targets),
    ("layers", "layers", "docs/layer-calls.md", layers_by_family),
    ("conv", "conv", "docs/performance.md", conv_in_full),
    ("layers", "layers", "docs/performance.md", layers_in_full),
    ("rnn", "rnn", "docs/performance.md", rnn_in_full),
    ("attention", "attention", "docs/attention.md", attention_by_use),
    ("products", "matmul", "docs/matmul-and-norms.md", products_by_kind),
    ("norms", "layer_norms", "docs/matmul-and-norms.md", norms_by_row),
    ("host", "host", "docs/performance.md", host_targets),
    ("host-operations", "host", "docs/performance.md", host_times),
)


if __name__ == "__main__":
    sys.exit(main())
