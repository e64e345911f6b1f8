"""Benchmarks in parts: each part runs in a process of its own, and targets make one table of their rows.

A part is a function that yields rows, which are dicts with the name ``row`` and figures, or ``error``. A
failure loses its row or its part alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from .figures import Bar

ROOT = Path(__file__).resolve().parents[2]
NO_GPU = "no GPU"

Row = dict[str, Any]
Part = Callable[..., Iterable[Row]]


class Target(NamedTuple):
    """A line of the table: the part and the field of its rows, how their values become one, and a limit.

    ``only`` is a word in the names of the rows that count.
    """

    name: str
    part: str
    field: str
    limit: float
    joined: Callable[[list[float]], float] = geometric_mean
    only: str = ""


def no_variables(part: str, dry: bool) -> dict[str, str]:  # noqa: ARG001 - as other environments
    """Return no variables besides those of the command."""
    return {}


class Parts(NamedTuple):
    """A benchmark: its name, file and parts. ``checks`` run after the others, all at the same time.

    ``shards`` are the numbers of processes of parts, and ``seconds`` the longest time of one.
    """

    name: str
    file: Path
    timed: Mapping[str, Part]
    targets: Sequence[Target]
    checks: Mapping[str, Part] = {}
    shards: Mapping[str, int] = {}
    seconds: float = 75
    rounds: int = 9
    environment: Callable[[str, bool], dict[str, str]] = no_variables
    has_dry: bool = False  # whether parts have tiny shapes for the CPU

    @property
    def parts(self) -> dict[str, Part]:
        return {**self.timed, **self.checks}

    def main(self, parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
        """Run the command and return its exit status: 1 if a row failed."""
        parser.add_argument("--part", nargs="+", choices=tuple(self.parts), default=tuple(self.parts))
        parser.add_argument("--rounds", type=int, default=self.rounds, help="default: %(default)s")
        parser.add_argument("--json", type=Path, help="write the rows to this file after each part")
        parser.add_argument("--add", action="store_true", help="keep the rows of other parts in that file")
        parser.set_defaults(dry=False)
        if self.has_dry:
            parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU")
        parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: %(default)s)")
        parser.add_argument("--child", choices=tuple(self.parts), help=argparse.SUPPRESS)
        parser.add_argument("--shard", default="1/1", help=argparse.SUPPRESS)
        given = parser.parse_args(arguments)
        if given.child:
            return self.child(given)
        started = time.monotonic()
        rows = [row for row in kept(given)["rows"] if row["part"] not in given.part]
        for part in given.part:
            if part in self.timed:
                rows += self.run(part, given)
                self.report(rows, given, started)
        checks = [
            (part, f"{shard + 1}/{self.shards.get(part, 1)}")
            for part in given.part
            if part in self.checks
            for shard in range(self.shards.get(part, 1))
        ]
        with ThreadPoolExecutor(max(1, len(checks))) as pool:  # after the times, which they would disturb
            for found in pool.map(lambda one: self.run(one[0], given, one[1]), checks):
                rows += found
        print(self.report(rows, given, started))
        return int(any("error" in row for row in rows))

    # --- processes of parts --------------------------------------------------------------------------------

    def child(self, given: argparse.Namespace) -> int:
        """Print the rows of a part as lines of JSON."""
        shard, shards = map(int, given.shard.split("/"))
        keywords = {"dry": given.dry, "rounds": given.rounds, "seed": given.seed}
        for row in self.parts[given.child](**keywords, shard=shard - 1, shards=shards):
            print(json.dumps({"part": given.child, **row}), flush=True)
        return 0

    def run(self, part: str, given: argparse.Namespace, shard: str = "1/1") -> list[Row]:
        """Run a part in a process of its own, print its rows and return them; a failure is a row."""
        command = [sys.executable, str(self.file), "--child", part, "--shard", shard]
        command += ["--rounds", str(given.rounds), "--seed", str(given.seed)] + ["--dry"] * given.dry
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "PYTHONPATH": paths, **self.environment(part, given.dry)}
        started, seconds = time.monotonic(), self.seconds * (8 if given.dry else 1)
        try:
            done = subprocess.run(
                command, env=environ, capture_output=True, text=True, check=False, timeout=seconds
            )
            output, problem = done.stdout, done.stderr[-800:] if done.returncode else ""
        except subprocess.TimeoutExpired as error:
            output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
            problem = f"stopped after {seconds:.0f} s"
        rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"part": ')]
        if problem:
            rows.append({"part": part, "row": f"part {shard}", "error": problem})
        lines = [line_of(row) for row in rows if "about" not in row]
        print("\n".join([f"{part} {shard}: {time.monotonic() - started:.0f} s", *lines]), flush=True)
        return rows

    # --- table ---------------------------------------------------------------------------------------------

    def report(self, rows: list[Row], given: argparse.Namespace, started: float) -> str:
        """Return the table, and write it with the rows to the file, if one is asked for."""
        parts = {*given.part, *(row["part"] for row in rows)}
        bars = [bar for target in self.targets if (bar := bar_of(target, rows, parts))]
        versions = {key: value for row in rows for key, value in row.get("about", {}).items()}
        here = device()
        known = kept(given)["about"]  # some parts report versions
        where = known.get("device", here) if here == NO_GPU else here
        spent = round(time.monotonic() - started)
        about = {**known, "device": where, "seconds": spent, "seed": given.seed, **versions}
        if given.json:
            measured = [row for row in rows if "about" not in row]
            found = {
                "benchmark": self.name,
                "about": about,
                "bars": [bar.record for bar in bars],
                "rows": measured,
            }
            given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return "\n".join([", ".join(f"{key} {value}" for key, value in about.items()), *map(str, bars)])


def kept(given: argparse.Namespace) -> dict[str, Any]:
    """Return what the file has, if rows of other parts are to be kept, with the name of their GPU."""
    found: dict[str, Any] = {"rows": [], "about": {}}
    if given.add and given.json and given.json.exists():
        found |= json.loads(given.json.read_text(encoding="utf-8"))
    return found


def bar_of(target: Target, rows: Sequence[Row], parts: Collection[str]) -> Bar | None:
    """Return the line of a target, or None if its part was not asked for."""
    if target.part not in parts:
        return None
    own = [
        row
        for row in rows
        if row["part"] == target.part and "about" not in row and target.only in row.get("row", "")
    ]
    values = [row[target.field] for row in own if row.get(target.field) is not None]
    failed = sum("error" in row for row in own)
    detail = f"{failed} failed" if failed else ""
    value, limit = target.joined(values) if values else None, target.limit
    least = "floor" if target.field == "ratio" else f"{target.field}_floor"
    timed = [row for row in own if row.get(target.field) is not None]
    if target.joined is max:
        timed = [row for row in timed if row[target.field] == value]
    floors = [row[least] for row in timed if least in row]
    floor = target.joined(floors) if floors and len(floors) == len(timed) else None
    return Bar(target.name, value, limit, len(values), detail, floor)


def device() -> str:
    """Return the name of the first GPU."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return NO_GPU
    return done.stdout.splitlines()[0].strip()


def line_of(row: Row) -> str:
    """Return a line on a row."""
    if "error" in row:
        return f"  {row['row']}: {row['error']}"
    values = (f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, int | float))
    return f"  {row['row']}: {', '.join(values)}"
