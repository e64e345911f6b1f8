"""``cudnn-ct compile`` and ``supports``: the graphs of a program, for GPUs that are only described."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cudnn_doctor.read.gpus import described

from .._cache_files import replace_file
from ..graph.gpus import DERIVED_NOTE, is_derived
from ..graph.recording import rejected
from .offline import NO_GRAPHS, called, each_graph, gpus_option, naming, read_gpu
from .options import OUTPUT, json_option
from .output import NOTHING, counted, fail, say, say_json, show, usage

NAMES = ("graph", "operation", "line")
OPERANDS = 2  # that the table shows of each graph


@click.command(name="compile")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@gpus_option
@click.option("-o", "--output", required=True, type=OUTPUT, help="The file of compiled plans to write.")
@json_option
def compile_command(file: str, gpus: tuple[str, ...], output: str, as_json: bool) -> None:
    """Compile the graphs of FILE for the GPUs, on a machine with or without one.

    FILE is a Python program, whose calls run on shapes; the graphs that `ct.record_plans()` saved; or JSON
    with calls. `ct.import_plans()` or `cudnn-ct cache import-plans` loads the plans on a machine with such a
    GPU and the same cuDNN. Exits with 1 if a graph cannot be compiled or cuDNN does not support a call, and
    writes the plans of the others; with 3 if the file has no graphs.
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
        _print_compiled(reports)
        say(f"wrote {output}, {len(content):,} bytes" if content else f"wrote nothing to {output}")
    if count := sum(len(report["rejected"]) for report in reports):
        fail(f"cannot compile {counted(count, 'graph')}")
    _fail_for_calls(reports[0])
    if not any(report["compiled"] for report in reports):
        fail(NO_GRAPHS, NOTHING)


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
    wrong = [row for row in answer["graphs"] if row["reason"]]
    return {
        "gpu": description.get("deviceName"),
        "derived": derived,
        "compiled": len(answer["graphs"]) - len(wrong),
        "seconds": sum(row["seconds"] for row in answer["graphs"]),
        "rejected": [{name: row[name] for name in (*NAMES, "reason")} for row in wrong],
        "skipped": answer["skipped"],
    }


def _print_compiled(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        plans = counted(report["compiled"], "plan")
        say(f"{report['gpu']}: {plans} compiled in {report['seconds']:.1f} s")
        if report["derived"]:
            say(f"  {report['gpu']} is {DERIVED_NOTE}")
        for row in report["rejected"]:
            say(f"  rejected: {called(row)}: {row['reason']}")
        _print_skipped(report, "  ")


def _print_skipped(report: dict[str, Any], indent: str = "") -> None:
    for call, reason in report["skipped"].items():
        say(f"{indent}{'rejected' if call in rejected(report['skipped']) else 'no graph'}: {call}: {reason}")


def _fail_for_calls(report: dict[str, Any]) -> None:
    """Exit with 1 if cuDNN rejects calls on any GPU."""
    if count := len(rejected(report["skipped"])):
        fail(f"cuDNN does not support {counted(count, 'call')}")


# --- support of graphs by GPUs -----------------------------------------------------------------------------


@click.command(name="supports")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@gpus_option
@json_option
def supports_command(file: str, gpus: tuple[str, ...], as_json: bool) -> None:
    """List which graphs of FILE have engines in this cuDNN, for each GPU.

    FILE is as for `cudnn-ct compile`. cuDNN's heuristics are queried; nothing is compiled. Exits with 1 if a
    graph has no engine on one of the GPUs, or cuDNN supports a call on none, and with 3 if the file has no
    graphs. Without a GPU it is unknown whether cuBLASLt or a legacy call computes a graph that has no engine.
    Needs cuDNN >= 9.8.
    """
    with usage():
        reports = supported(file, gpus)
    rows = [row for report in reports for row in report["graphs"]]
    missing = [row for row in rows if _word(row) == "no"]
    if as_json:
        say_json({"schema": 1, "gpus": reports})
    else:
        _print_supported(reports)
    if missing:
        fail(f"no engine for {counted(len(missing), 'graph')}")
    _fail_for_calls(reports[0])
    if not rows:
        fail(NO_GRAPHS, NOTHING)


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


def _print_supported(reports: list[dict[str, Any]]) -> None:
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
    _print_skipped(reports[0])
