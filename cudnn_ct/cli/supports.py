"""``cudnn-ct supports``: which graphs of a program have engines on which GPU."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from .._config import config
from ..graph.gpus import DERIVED_NOTE, is_derived
from .compile_child import SECONDS
from .errors import fail, plainly, usage
from .offline import GPU_HELP, PlanningError, read_gpu, run_child
from .table import show

__all__ = ["command", "supported"]


@click.command(name="supports")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--gpu",
    "gpus",
    required=True,
    multiple=True,
    help=f"{GPU_HELP} May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@plainly
def command(file: str, gpus: tuple[str, ...], as_json: bool) -> None:
    """List which graphs of FILE have engines in this cuDNN, for each GPU.

    FILE is as for `cudnn-ct compile`. cuDNN's heuristics are queried; nothing is compiled. Exits with 1 if a
    graph has no engine on one of the GPUs. Needs cuDNN >= 9.8.
    """
    with usage():
        reports = supported(file, gpus)
    missing = [row for report in reports for row in report["graphs"] if not row["engines"]]
    if as_json:
        click.echo(json.dumps({"schema": 1, "gpus": reports}, indent=2))
    else:
        _print(reports)
    if missing:
        fail(f"{len(missing)} graphs have no engine")


def supported(file: str | Path, gpus: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return for each GPU its graphs with the number of engines, the first engine and the reason if none.

    Raises ValueError for an unknown GPU, and for a file that cannot be planned.
    """
    reports = []
    for gpu, description in [(gpu, read_gpu(gpu)) for gpu in gpus]:
        request = {
            "file": str(Path(file).absolute()),
            "device": description,
            "output": "",
            "settings": {"allow_tf32": config.allow_tf32, "deterministic": config.deterministic},
        }
        reports.append({"gpu": gpu, "derived": is_derived(gpu), **_planned(request)})
    return reports


def _planned(request: dict[str, Any]) -> dict[str, Any]:
    """Return the graphs of a file and its calls without one.

    If cuDNN ends the process that plans a graph, another process continues with the next graph.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        while True:
            progress.write_text("")
            request = {**request, "start": len(rows), "progress": str(progress)}
            try:
                answer = run_child("cudnn_ct.cli.compile_child", request, SECONDS)
            except PlanningError as error:
                lines = _lines(progress)
                if len(lines) % 2 == 0:  # not while a graph was planned
                    raise
                lost = {"graph": lines.pop(), "engines": 0, "first": None, "compiled": None}
                rows += [*lines[1::2], {**lost, "reason": str(error)}]
                continue
            if "wrong_file" in answer:
                raise ValueError(f"{request['file']} cannot be planned: {answer['wrong_file']}")
            return {"graphs": rows + _lines(progress)[1::2], **answer}


def _lines(progress: Path) -> list[Any]:
    return [json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines()]


def _print(reports: list[dict[str, Any]]) -> None:
    """Print a row for each graph and a column for each GPU, then the reasons."""
    names = [f"{report['gpu']}{'*' if report['derived'] else ''}" for report in reports]
    columns = [*((name, False) for name in names), ("graph", False)]
    cells = [
        [*("yes" if row["engines"] else "no" for row in rows), rows[0]["graph"]]
        for rows in zip(*(report["graphs"] for report in reports), strict=True)
    ]
    if cells:
        show(tuple(columns), cells)
    else:
        click.echo("no graphs")
    if any(report["derived"] for report in reports):
        click.echo(f"* {DERIVED_NOTE}")
    for name, report in zip(names, reports, strict=True):
        for row in report["graphs"]:
            if not row["engines"]:
                click.echo(f"{name}: {row['graph']}: {row['reason']}")
    for call, reason in reports[0]["skipped"].items():
        click.echo(f"no graph: {call}: {reason}")
