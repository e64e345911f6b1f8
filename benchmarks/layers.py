"""Compare pooling, softmax, batch normalisation and the other layers with PyTorch on one GPU.

    python benchmarks/layers.py --rows rows.jsonl [--shard 2/4] [--seconds 540] [--json OUT]

A row is an operation on a layer of a network, forward or backward, in a dtype and a layout. PyTorch, called
as in a network, and cudnn_ct have the same data. GPU time is the median of loops of calls between two events.
Both run alternately, loop by loop. Operands and results rotate through more memory than the cache holds. The
floor of a row is the time to read and write its arrays once, at the speed of a copy in the same run. A row
whose result differs from PyTorch's is an error. The file of rows has one JSON object per line. Rows in the
file are not measured again, so that a stopped command resumes. Rows of an operation that cudnn_ct lacked are
measured as soon as cudnn_ct has it. `layers_report.py` merges such files.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence

import layers_report
import layers_workload
from harness import command
from harness.command import keep
from harness.results import Results
from layers_rows import CONTENDERS, came_since, line, row_record, warm_up
from layers_workload import FAMILIES, KINDS


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    results = Results(options.rows)
    command.carry_out(list(jobs(options, results)), results, warm_up, options)
    print(layers_report.render(results.merged()))
    if options.json:
        layers_report.write_whole(options.json, results.merged())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("compare layers with PyTorch")
    parser.add_argument("--family", nargs="+", choices=tuple(FAMILIES), default=tuple(FAMILIES))
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    return parser.parse_args(argv)


def jobs(options: argparse.Namespace, results: Results) -> Iterator[Callable[[], None]]:
    """Yield the jobs that the results lack."""
    again = {record["id"] for record in results.merged() if came_since(record)}
    selection = {"kinds": options.kinds, "every": options.every, "shard": options.shard}
    for row in layers_workload.rows(families=options.family, **selection):
        if row.id in again or not results.has("rows", row.id, CONTENDERS):
            yield functools.partial(keep, results, row_record, row, line=line)


if __name__ == "__main__":
    main()
