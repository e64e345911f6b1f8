"""Compare recurrent networks with PyTorch on one GPU.

    python benchmarks/rnn.py --rows rows.jsonl [--shard 2/4] [--seconds 540] [--json OUT]

A row is a network, a batch and a computation. The computation is a forward pass (PyTorch in inference mode),
or a training step with the gradients of input and weights (PyTorch by autograd). Both sides have the same
weights and the same precision. Both compute float32 as TF32, which is PyTorch's default. GPU time is the
median of loops of calls between two events. PyTorch and two policies of cudnn_ct run alternately, loop by
loop. Inputs and results rotate, and the weights stay. Rows above the limit are measured again, five times. A
time counts only if the results equal PyTorch's within the tolerance. The file of rows has one JSON object per
line. Rows in the file are not measured again, so that a stopped command resumes. `rnn_report.py` merges such
files.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence

import rnn_report
import rnn_workload
from harness import command
from harness.command import keep
from harness.results import Results
from rnn_rows import CONTENDERS, came_since, line, row_record, warm_up
from rnn_workload import KINDS, MODES

SECTIONS = ("padded", "packed")


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    results = Results(options.rows)
    command.carry_out(list(jobs(options, results)), results, warm_up, options)
    print(rnn_report.render(results.merged()))
    if options.json:
        rnn_report.write_whole(options.json, results.merged())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("compare recurrent networks with PyTorch")
    parser.add_argument("--section", nargs="+", choices=(*SECTIONS, "all"), default=["padded", "packed"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    options = parser.parse_args(argv)
    if "all" in options.section:
        options.section = SECTIONS
    return options


def jobs(options: argparse.Namespace, results: Results) -> Iterator[Callable[[], None]]:
    """Yield the jobs that the results lack."""
    again = {record["id"] for record in results.merged() if came_since(record)}
    selection = {"modes": options.modes, "kinds": options.kinds}
    for row in rnn_workload.rows(
        sections=options.section, **selection, every=options.every, shard=options.shard
    ):
        if row.id in again or not results.has("rows", row.id, CONTENDERS):
            yield functools.partial(keep, results, row_record, row, line=line)


if __name__ == "__main__":
    main()
