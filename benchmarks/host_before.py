"""Compare the host times of two checkouts of this repository on one GPU: `host.py` of each runs in turn.

    git worktree add /tmp/before 611d1d7e
    python benchmarks/host_before.py /tmp/before [--rounds N] [--turns N] [--only GROUP ...] [--json OUT]

A time is the least of the medians of the turns, because other work on a host lasts for seconds. PyTorch's
rows tell how much the host itself changed. The last lines are the rows that took longest next to before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

from harness.shards import positive

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("conv", "conv-rotating", "conv-fresh", "layers", "plan", "rnn", "network", "other")
LIMIT, SHOWN = 1.03, 20  # of a row, and how many rows are shown

Times = dict[tuple[str, str], list[float]]
"""The microseconds of each turn, by the section of a row with its contender, and the row."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = argparse.ArgumentParser(description="compare the host times of two checkouts")
    options.add_argument("before", type=Path, help="the folder of the other checkout")
    options.add_argument("--rounds", type=positive, default=5, help="of host.py (default: %(default)s)")
    options.add_argument("--turns", type=positive, default=3, help="runs of each (default: %(default)s)")
    options.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, metavar="GROUP")
    options.add_argument("--json", type=Path, help="write the times of all turns to this file")
    given = options.parse_args(argv)
    sides: dict[Path, Times] = {given.before.resolve(): defaultdict(list), ROOT: defaultdict(list)}
    for turn in range(given.turns):
        for root in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            for row, microseconds in times_of(root, given.rounds, given.only):
                sides[root][row].append(microseconds)
    before, now = sides.values()
    both = {row: (now[row], before[row]) for row in before if row in now}
    if given.json:
        stored = {" | ".join(row): times for row, times in both.items()}
        given.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    report({row: min(ours) / min(theirs) for row, (ours, theirs) in both.items()})
    return int(not both)


def times_of(root: Path, rounds: int, groups: Sequence[str]) -> Iterator[tuple[tuple[str, str], float]]:
    """Run `host.py` of a checkout, and yield its rows with their times."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.json"
        command = [sys.executable, str(root / "benchmarks" / "host.py"), "--rounds", str(rounds)]
        paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = os.environ | {"PYTHONPATH": paths}
        subprocess.run([*command, "--only", *groups, "--json", str(path)], cwd=root, env=environ)
        records = json.loads(path.read_text(encoding="utf-8"))["records"]
    for one in records:
        for contender, microseconds in (one.get("times") or {}).items():
            yield (f"{one['section']}, {contender}", one["id"]), microseconds


def report(ratios: Mapping[tuple[str, str], float]) -> None:
    """Print the ratios of groups, and of the slowest rows."""
    groups = defaultdict(list)
    for (group, _), ratio in ratios.items():
        groups[group].append(ratio)
    for group, found in groups.items():
        print(f"{geometric_mean(found):6.3f} {max(found):6.3f}  {group} ({len(found)} rows)")
    ours = {row: ratio for row, ratio in ratios.items() if "torch" not in row[0] and "frontend" not in row[0]}
    if ours:
        over = sum(ratio > LIMIT for ratio in ours.values())
        print(f"{geometric_mean(ours.values()):6.3f}  all {len(ours)} rows of ours, {over} above {LIMIT}")
    for row, ratio in sorted(ours.items(), key=lambda one: -one[1])[:SHOWN]:
        print(f"{ratio:6.3f}  {', '.join(row)}")


if __name__ == "__main__":
    sys.exit(main())
