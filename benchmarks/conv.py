"""Compare convolution with PyTorch on one GPU.

    python benchmarks/conv.py --section all --rows rows.jsonl [--shard 2/8] [--seconds 540] [--json OUT]

A row is a layer of a network in one direction and kind. Four contenders have the same data, layout and TF32
setting: PyTorch with cudnn.benchmark, PyTorch without it, cudnn_ct by default, and cudnn_ct with the policy
"autotune". GPU time is the median of loops of calls between two events. The contenders run alternately, loop
by loop. Operands and results rotate through more memory than the cache holds. The file of rows has one JSON
object per line. Rows in the file are not measured again, so that a stopped command resumes. `conv_report.py`
merges such files.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import conv_layers
import conv_report
from conv_cache import cache_record, first_call_ever
from conv_fused import fused_record
from conv_layers import DIRECTIONS, KINDS, NETWORKS
from conv_rows import (
    CONTENDERS,
    POLICIES,
    candidates_line,
    candidates_record,
    new_record,
    row_record,
    warm_up,
)
from harness import command
from harness.command import keep
from harness.results import Results

SECTIONS = ("rows", "new", "fused", "cache")


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    if options.first_call:
        print(json.dumps({"ms": first_call_ever(options.first_call, options.warm)}))
        return
    results = Results(options.rows)
    work = [job for section in options.section for job in jobs(section, options, results)]
    command.carry_out(work, results, warm_up, options)
    print(conv_report.render(results.merged()))
    if options.json:
        conv_report.write_whole(options.json, results.merged())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("compare convolution with PyTorch")
    parser.add_argument("--section", nargs="+", choices=(*SECTIONS, "all"), default=["rows"])
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=tuple(NETWORKS))
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--candidates", type=Path, help="append the candidates of each row to this file")
    parser.add_argument("--no-torch", action="store_true", help="measure only cudnn_ct")
    parser.add_argument("--first-call", choices=tuple(POLICIES), help="print the time of a first call")
    parser.add_argument("--warm", action="store_true", help="run another convolution before --first-call")
    options = parser.parse_args(argv)
    if "all" in options.section:
        options.section = SECTIONS
    return options


def jobs(section: str, options: argparse.Namespace, results: Results) -> Iterator[Callable[[], None]]:
    """Yield the jobs of a section that the results lack."""
    if section == "cache":  # one record, for the first shard
        if options.shard[0] == 1 and not results.has(section, section):
            yield functools.partial(keep, results, cache_record)
    elif section == "fused":
        some = {"networks": ["resnet50"], "directions": ["forward"], "kinds": ["fp16"]}
        for row in conv_layers.rows(**some, shard=options.shard):
            if not results.has("fused", f"fused {row.id}"):
                yield functools.partial(keep, results, fused_record, row)
    elif section == "new":
        for row in conv_layers.rows(**selected(options)):
            if not results.has("new", row.id):
                yield functools.partial(keep, results, new_record, row)
    else:
        wanted = tuple(POLICIES) if options.no_torch else CONTENDERS
        tables = Results(options.candidates) if options.candidates else None
        for row in conv_layers.rows(**selected(options)):
            if not results.has("rows", row.id, wanted):
                yield functools.partial(keep, results, row_record, row, wanted)
            if tables is not None and not tables.has("candidates", row.id):
                yield functools.partial(keep, tables, candidates_record, row, line=candidates_line)


def selected(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that select rows."""
    return {name: getattr(options, name) for name in ("networks", "directions", "kinds", "every", "shard")}


if __name__ == "__main__":
    main()
