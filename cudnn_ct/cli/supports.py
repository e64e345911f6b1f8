"""``cudnn-ct supports``: which graphs of a program have engines on which GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .._gpus import described
from ..graph.gpus import DERIVED_NOTE, is_derived
from .errors import NOTHING, fail, usage
from .offline import NO_GRAPHS, called, each_graph, gpus_option, naming, read_gpu
from .options import json_option
from .table import counted, say, say_json, show

OPERANDS = 2  # that the table shows of each graph


@click.command(name="supports")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@gpus_option
@json_option
def command(file: str, gpus: tuple[str, ...], as_json: bool) -> None:
    """List which graphs of FILE have engines in this cuDNN, for each GPU.

    FILE is as for `cudnn-ct compile`. cuDNN's heuristics are queried; nothing is compiled. Exits with 1 if a
    graph has no engine on one of the GPUs, and with 3 if the file has no graphs. Without a GPU it is unknown
    whether cuBLASLt supports a graph that has no other engine. Needs cuDNN >= 9.8.
    """
    with usage():
        reports = supported(file, gpus)
    rows = [row for report in reports for row in report["graphs"]]
    missing = [row for row in rows if _word(row) == "no"]
    if as_json:
        say_json({"schema": 1, "gpus": reports})
    else:
        _print(reports)
    if not rows:
        fail(NO_GRAPHS, NOTHING)
    if missing:
        fail(f"no engine for {counted(len(missing), 'graph')}")


def supported(file: str | Path, gpus: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """Return for each GPU its graphs with the number of engines, the first engine and the reason if none.

    The reason is also that of an engine which a call names and which is replaced.
    Raises ValueError for an unknown GPU and a wrong file, and PlanningError for a program that fails.
    """
    reports = []
    for gpu, description in [(gpu, read_gpu(gpu)) for gpu in described(gpus)]:
        with naming(gpu):
            reports.append({"gpu": gpu, "derived": is_derived(gpu), **each_graph(file, description)})
    return reports


def _word(row: dict[str, Any]) -> str:
    """Return whether cuDNN has an engine for a graph: ``yes``, ``no``, or ``unknown``."""
    return "yes" if row["engines"] else "unknown" if row["unknown"] else "no"


def _first(operands: list[str]) -> str:
    """Return the first operands of a graph, which tell apart the graphs of one line."""
    return ", ".join([*operands[:OPERANDS], *(["..."] if len(operands) > OPERANDS else [])])


def _print(reports: list[dict[str, Any]]) -> None:
    """Print a row for each graph and a column for each GPU, then the reasons."""
    names = [f"{report['gpu']}{'*' if report['derived'] else ''}" for report in reports]
    columns = [*((name, False) for name in (*names, "operation", "line", "operands"))]
    cells = [
        [*map(_word, rows), rows[0]["operation"], rows[0]["line"], _first(rows[0]["operands"])]
        for rows in zip(*(report["graphs"] for report in reports), strict=True)
    ]
    if cells:
        show(tuple(columns), cells)
    if any(report["derived"] for report in reports):
        say(f"* {DERIVED_NOTE}")
    for name, report in zip(names, reports, strict=True):
        for row in report["graphs"]:
            if row["reason"]:
                say(f"{name}: {called(row)}: {row['reason']}")
    for call, reason in reports[0]["skipped"].items():
        say(f"no graph: {call}: {reason}")
