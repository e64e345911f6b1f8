"""``cudnn-ct compile``: compile the graphs of a program for a GPU that is only described."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import click

from .._cache_files import replace_file
from .._gpus import described
from ..graph.gpus import DERIVED_NOTE, is_derived
from .errors import NOTHING, fail, usage
from .offline import NO_GRAPHS, called, each_graph, gpus_option, naming, read_gpu
from .options import OUTPUT, json_option
from .table import counted, say, say_json

NAMES = ("graph", "operation", "line")


@click.command(name="compile")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@gpus_option
@click.option("-o", "--output", required=True, type=OUTPUT, help="The file of compiled plans to write.")
@json_option
def command(file: str, gpus: tuple[str, ...], output: str, as_json: bool) -> None:
    """Compile the graphs of FILE for the GPUs, on a machine with or without one.

    FILE is a Python program, whose calls run on shapes; the graphs that `ct.record_plans()` saved; or JSON
    with calls. `ct.import_plans()` or `cudnn-ct cache import-plans` loads the plans on a machine with such a
    GPU and the same cuDNN. Exits with 1 if a graph cannot be compiled, and writes the plans of the others;
    with 3 if the file has no graphs.
    Needs cuDNN >= 9.8.
    """
    with usage():
        named = described(gpus)
        _check_output(output, (file, *named))
        descriptions = [(gpu, read_gpu(gpu)) for gpu in named]
    reports, content = [], b""
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "plans"
        for gpu, description in descriptions:
            part.write_bytes(b"")
            with usage(), naming(gpu):
                answer = each_graph(file, description, str(part))
            reports.append(_report(description, is_derived(gpu), answer))
            content += part.read_bytes()
    if content:
        replace_file(Path(output), content)
    if as_json:
        say_json({"schema": 1, "output": output, "bytes": len(content), "gpus": reports})
    else:
        _print(reports)
        say(f"wrote {output}, {len(content):,} bytes" if content else f"wrote nothing to {output}")
    rejected = sum(len(report["rejected"]) for report in reports)
    if not any(report["compiled"] or report["rejected"] for report in reports):
        fail(NO_GRAPHS, NOTHING)
    if rejected:
        fail(f"cannot compile {counted(rejected, 'graph')}")


def _check_output(output: str, inputs: tuple[str, ...]) -> None:
    """Raise ValueError for an output that replaces an input, or cannot be written after minutes of work."""
    given = [one for one in inputs if os.path.exists(one)]
    if os.path.exists(output) and any(os.path.samefile(output, one) for one in given):
        raise ValueError(f"{output} is an input: expected another file for the plans")
    folder = os.path.dirname(os.path.abspath(output))
    if not os.path.exists(output) and not os.access(folder, os.W_OK | os.X_OK):
        missing = "does not exist" if not os.path.isdir(folder) else "is not writable"
        raise ValueError(f"{output} cannot be written: the folder {folder} {missing}")


def _report(description: dict[str, Any], derived: bool, answer: dict[str, Any]) -> dict[str, Any]:
    rejected = [row for row in answer["graphs"] if row["reason"]]
    return {
        "gpu": description.get("deviceName"),
        "derived": derived,
        "compiled": len(answer["graphs"]) - len(rejected),
        "seconds": sum(row["seconds"] for row in answer["graphs"]),
        "rejected": [{name: row[name] for name in (*NAMES, "reason")} for row in rejected],
        "skipped": answer["skipped"],
    }


def _print(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        plans = counted(report["compiled"], "plan")
        say(f"{report['gpu']}: {plans} compiled in {report['seconds']:.1f} s")
        if report["derived"]:
            say(f"  {report['gpu']} is {DERIVED_NOTE}")
        for row in report["rejected"]:
            say(f"  rejected: {called(row)}: {row['reason']}")
        for call, reason in report["skipped"].items():
            say(f"  no graph: {call}: {reason}")
