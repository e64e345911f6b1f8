"""Store the figures of docs/reliability.md, and write its tables.

python tools/reliability.py            # write the tables, from benchmarks/results/reliability.json
python tools/reliability.py --check    # exit 1 if the tables are out of date

The command that measures a figure stores it in the file. The page lists these commands.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
FIGURES = ROOT / "benchmarks" / "results" / "reliability.json"
NONE_YET = "| *not run yet* |"


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    written = page_with(page, read())
    if options.check:
        return 0 if written == page else 1
    PAGE.write_text(written, encoding="utf-8")
    return 0


def put(path: str | Path, name: str, measured: dict[str, Any]) -> None:
    """Store the figures of one measurement in a file, with the date."""
    file, known = Path(path), read(path)
    known[name] = {"date": time.strftime("%Y-%m-%d"), **measured}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")


def where() -> str:
    """Return the device and the versions in use."""
    sys.path.insert(0, str(ROOT / "tools"))
    from gpu_record import device_facts

    facts = device_facts()
    return f"{facts['device']}, driver {facts['driver']}, cuDNN {facts['cudnn']}"


def read(path: str | Path = FIGURES) -> dict[str, Any]:
    """Return all figures of a file, or an empty dict if the file does not exist."""
    file = Path(path)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def page_with(page: str, known: dict[str, Any]) -> str:
    """Return the page with its tables rewritten."""
    for name, table in TABLES.items():
        begin = re.search(rf"<!-- begin: {name} [^\n]*-->\n", page)
        end = page.find(f"<!-- end: {name} -->")
        if begin is None or end < begin.end():
            raise SystemExit(f"{PAGE} does not have one pair of marks for {name}")
        block = "\n".join(table(known.get(name, {})))
        page = f"{page[: begin.end()]}\n{block}\n\n{page[end:]}"
    return page


# --- the tables --------------------------------------------------------------------------------------------


def two_columns(*rows: tuple[str, str, Callable[[dict[str, Any]], str]]) -> Callable[..., list[str]]:
    """Return a function that writes a table. Each row has a title, the key that it needs, and its format."""

    def table(known: dict[str, Any]) -> list[str]:
        lines = ["| | |", "|---|---|"]
        for title, key, written in rows:
            lines.append(f"| {title} | {written(known)} |" if key in known else f"| {title} {NONE_YET}")
        return lines

    return table


def mib(count: int) -> str:
    """Return a number of bytes as text in MiB."""
    return f"{count / 2**20:+,.1f} MiB"


def _versions(known: dict[str, Any]) -> list[str]:
    sys.path.insert(0, str(ROOT / "tools"))
    from versions import VERSIONS

    rows = known.get("versions", {})
    lines = ["| cuDNN | passed | skipped | failed | planning for absent devices |", "|---|---|---|---|---|"]
    for version in dict.fromkeys((*VERSIONS, *rows)):
        if version in rows:
            names = ("passed", "skipped", "failed", "planning")
            lines.append(f"| {version} | {' | '.join(str(rows[version][name]) for name in names)} |")
        else:
            lines.append(f"| {version} {NONE_YET * 4}".replace("||", "|"))
    return lines


def _failing(known: dict[str, Any]) -> list[str]:
    kinds = "calls of C | tries | raised | another way ran | CUDA calls | tries | raised | another way ran"
    lines = [f"| operation | {kinds} | found wrong |", "|---" * 10 + "|"]
    for name, cells in known.get("rows", {}).items():
        title = name if name == "all" else f"`{name}`"
        lines.append(f"| {title} | {cells} |")
    return lines


def _where(known: dict[str, Any]) -> str:
    return f"{known['where']}, {known['date']}"


def _laps(field: int) -> Callable[[dict[str, Any]], str]:
    return lambda known: ", ".join(f"{lap[field] / 2**20:,.0f}" for lap in known["laps"]) + " MiB"


def _too_full(known: dict[str, Any]) -> str:
    caches = known["caches"]
    full = [name for name, (have, most) in caches.items() if have == most]
    over = sum(have > most for have, most in caches.values())
    return f"{over} of {len(caches)}; full at the end: {', '.join(full) or 'none'}"


TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "threads": two_columns(
        ("threads, operations of each", "threads", lambda k: f"{k['threads']}, {k['each']:,}"),
        ("different calls, of all operations but dropout", "calls", lambda k: f"{k['calls']}"),
        ("results that differ from those of one thread", "different", lambda k: f"{k['different']}"),
        ("seconds", "seconds", lambda k: f"{k['seconds']}"),
        ("measured on", "where", _where),
    ),
    "soak": two_columns(
        ("operations", "operations", lambda k: f"{k['operations']:,} in {k['seconds']:.0f} s"),
        ("host memory after each of the four laps", "laps", _laps(2)),
        ("device memory after each", "laps", _laps(3)),
        (
            "the most that the last lap had more than the third at the same place: host",
            "host_growth",
            lambda k: mib(k["host_growth"]),
        ),
        ("device", "device_growth", lambda k: mib(k["device_growth"])),
        ("blocks of Python's allocator", "python_blocks", lambda k: f"{k['python_blocks']:+,}"),
        ("reference cycles with objects of the package", "cycles", lambda k: str(len(k["cycles"]))),
        ("caches that held more than their bound", "caches", _too_full),
        ("measured on", "where", _where),
    ),
    "sanitizer": two_columns(
        ("memcheck", "memcheck", lambda k: str(k["memcheck"])),
        ("initcheck", "initcheck", lambda k: str(k["initcheck"])),
        ("measured on", "where", _where),
    ),
    "versions": _versions,
    "failing": _failing,
}


if __name__ == "__main__":
    sys.exit(main())
