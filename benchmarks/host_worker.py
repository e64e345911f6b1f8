"""Measure rows of the `host.py` of a checkout, one round at a time, for `host_before.py`.

    python benchmarks/host_worker.py CHECKOUT ROUNDS GROUP ...

It writes a line of JSON before each round, and at the end: the records since the line before. A round begins
when a line is read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any


def main() -> None:
    """Measure the groups."""
    root, rounds, *groups = sys.argv[1:]
    sys.path[0] = str(Path(root) / "benchmarks")  # in place of the folder of this file
    sys.path.insert(1, root)
    import host
    import host_rows
    from harness import command
    from harness.results import Results
    from harness.timing import host_loop

    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print elsewhere
    results = Results(None)

    def send() -> None:
        print(json.dumps(results.records), file=lines, flush=True)
        results.records.clear()

    def host_times(calls: dict[str, Any], rounds: int) -> dict[str, float]:
        taken = []
        for _ in range(rounds):
            send()
            sys.stdin.readline()
            taken.append(round_of(calls, host_loop))
        return dict(zip(calls, map(median, zip(*taken, strict=True)), strict=True))

    command.prepare(host_rows.warm_up)
    host_rows.host_times = host_times
    for group in groups:
        measure, rows = host.GROUPS[group]
        for row in rows():
            command.keep(results, measure, row, int(rounds))
    send()
    sys.stdin.readline()


def round_of(calls: dict[str, Any], host_loop: Callable[..., float]) -> list[float]:
    """Return the microseconds of a loop of every call."""
    import torch

    with torch.inference_mode():
        return [host_loop(*call) for call in calls.values()]


if __name__ == "__main__":
    main()
