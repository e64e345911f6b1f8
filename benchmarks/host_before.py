"""Compare the host times of two checkouts of this repository on one GPU, round by round.

    git worktree add /tmp/before 611d1d7e
    python benchmarks/host_before.py /tmp/before [--rounds N] [--turns N] [--only GROUP ...] [--json OUT]

A process of each checkout measures the rows of its `host.py`, and the two alternate after each round. A turn
has new processes. A row of ours is divided by PyTorch's in the same rounds, if it has one, because processes
on one host differ by more than checkouts; its ratio is the geometric mean over turns. Other ratios are of the
least medians. The last lines are the rows that took longest next to before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from harness.shards import positive

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("conv", "conv-rotating", "conv-fresh", "layers", "plan", "rnn", "network", "other")
LIMIT, SHOWN = 1.03, 20  # of a row, and how many rows are shown

Row = tuple[str, str]
"""The section of a row with its contender, and the row."""
Times = dict[Row, list[float]]  # microseconds of each turn


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
        for root, row, microseconds in times_of(list(sides)[:: 1 if turn % 2 == 0 else -1], given):
            sides[root][row].append(microseconds)
    before, now = sides.values()
    both = {row: (now[row], before[row]) for row in before if row in now}
    if given.json:
        stored = {" | ".join(row): times for row, times in both.items()}
        given.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    report({row: ratio_of(row, both) for row in both})
    return int(not both)


def ratio_of(row: Row, both: Mapping[Row, tuple[list[float], list[float]]]) -> float:
    """Return the time of a row now divided by the time before."""
    now, before = both[row]
    section, _, contender = row[0].partition(", ")
    peer = both.get((f"{section}, torch", row[1]))
    if peer is None or contender.startswith("torch"):
        return min(now) / min(before)
    turns = zip(now, peer[0], before, peer[1], strict=True)
    return geometric_mean(ours / theirs / (old / old_theirs) for ours, theirs, old, old_theirs in turns)


def times_of(roots: Sequence[Path], given: argparse.Namespace) -> Iterator[tuple[Path, Row, float]]:
    """Measure the rows of the checkouts in alternate rounds, and yield them with their times."""
    with ExitStack() as stack:
        workers = {root: stack.enter_context(started(root, given.rounds, given.only)) for root in roots}
        # A line tells that the first row is prepared; without one, the process has failed.
        workers = {root: worker for root, worker in workers.items() if worker.stdout.readline()}
        while workers:
            for root, worker in list(workers.items()):
                worker.stdin.write("\n")
                worker.stdin.flush()
                if not (line := worker.stdout.readline()):  # it has measured all rows, or failed
                    del workers[root]
                    continue
                for record in json.loads(line):
                    for contender, microseconds in (record.get("times") or {}).items():
                        yield root, (f"{record['section']}, {contender}", record["id"]), microseconds


def started(root: Path, rounds: int, groups: Sequence[str]) -> Any:
    """Start the process that measures a checkout."""
    worker = Path(__file__).parent / "host_worker.py"
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, str(worker), str(root), str(rounds), *groups],
        cwd=root,
        env=os.environ | {"PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def report(ratios: Mapping[Row, float]) -> None:
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
