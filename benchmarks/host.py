"""Compare the host time of calls with PyTorch on one GPU.

    python benchmarks/host.py [--rounds N] [--only GROUP ...] [--json OUT]

A row is a call on operands so small that the GPU waits for the host. A time is the median over rounds, each
with a loop of every contender. A loop has fewer than 500 launches, because the host waits for the GPU if many
more are pending. Before the measurement each contender makes more than 20 calls with the same pointers. The
result of a row is compared with PyTorch's, on new values at the same addresses. Convolutions have three
groups: the same operands in each call, 64 sets of operands in turn, and other operands in each call. The last
group compares our calls with and without replays. The group "first" has first calls, of a process and of a
new shape. PyTorch runs in inference mode, with cudnn.benchmark. The
exit status is 1 if a row failed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import host_first
import host_report
import host_rows
import host_workload
from harness import command
from harness.command import keep
from harness.results import Record, Results
from harness.shards import positive
from harness.text import line_of

RESULTS = Path(__file__).parent / "results" / "host.json"
ROUNDS = 75

# For each group the function that measures a row, and the function that returns the rows.
GROUPS: dict[str, tuple[Callable[..., Record], Callable[[], Iterable[Any]]]] = {
    "conv": (host_rows.conv_record, host_workload.conv_rows),
    "conv-rotating": (host_rows.rotating_record, host_workload.conv_rows),
    "conv-fresh": (host_rows.fresh_record, host_workload.conv_rows),
    "layers": (host_rows.layer_record, host_workload.layer_rows),
    "plan": (host_rows.plan_record, host_workload.plan_rows),
    "rnn": (host_rows.rnn_record, host_workload.rnn_rows),
    "network": (host_rows.network_record, lambda: host_workload.BATCHES),
    "first": (host_first.first_record, lambda: host_first.KINDS),
    "other": (host_rows.other_record, host_workload.other_rows),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = parse(argv)
    if reason := no_gpu():
        print(reason)
        return 1
    results, rows = Results(None), 0
    command.prepare(host_rows.warm_up)
    results.add(command.about())
    for group in options.only or GROUPS:
        measure, all_rows = GROUPS[group]
        for row in all_rows():
            keep(results, measure, row, options.rounds, line=line)
            rows += 1
    print(f"\n{host_report.render(results.records, options.only or ())}")
    if path := options.json or (None if options.only else RESULTS):
        host_report.write_whole(path, results.records)
    failed = len(results.records) < rows + 1 or any(record.get("errors") for record in results.records)
    return int(failed)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description="compare the host time of calls with PyTorch")
    options.add_argument("--rounds", type=positive, default=ROUNDS, help="default: %(default)s")
    options.add_argument("--only", nargs="+", choices=tuple(GROUPS), metavar="GROUP", help=", ".join(GROUPS))
    stored = f"write the result to this file (default: {RESULTS.name} in benchmarks/results, without --only)"
    options.add_argument("--json", type=Path, help=stored)
    return options.parse_args(argv)


def no_gpu() -> str:
    """Return the reason why nothing can be measured, or an empty string."""
    try:
        import torch
    except ModuleNotFoundError:
        return "PyTorch is not installed: this benchmark compares host times with it"
    return "" if torch.cuda.is_available() else "PyTorch does not have a GPU"


def line(record: Record) -> str:
    """Return a line on a row: its times, its errors, and the reasons for missing contenders."""
    return f"{record['section']}: {line_of(record, *dict.fromkeys(record.get('missing', {}).values()))}"


if __name__ == "__main__":
    raise SystemExit(main())
