"""Plan or compile each graph of a file in a child process, and continue after a graph that ends it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from .._caller import Caller
from .._config import config
from .child import user_file
from .compile_child import SECONDS
from .offline import PlanningError, run_child

NO_GRAPHS = "no graphs: the file has no call that is computed by a graph"


def each_graph(file: str | Path, description: dict[str, Any], output: str = "") -> dict[str, Any]:
    """Return a row for each graph of a file, and its calls without a graph.

    With ``output``, graphs are compiled and their plans appended to that file; else cuDNN's heuristics are
    queried. If cuDNN ends the process at a graph, another process continues with the next graph. The row of
    the lost graph has the reason.

    Raises PlanningError for a program that fails, and ValueError for another file that cannot be planned.
    """
    user_file(file)
    request: dict[str, Any] = {
        "file": str(Path(file).absolute()),
        "device": description,
        "output": output,
        "settings": {"allow_tf32": config.allow_tf32, "deterministic": config.deterministic},
    }
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        while True:
            progress.write_text("")
            written = os.path.getsize(output) if output else 0
            request = {**request, "start": len(rows), "progress": str(progress)}
            try:
                answer = run_child("cudnn_ct.cli.compile_child", request, SECONDS)
            except PlanningError as error:
                lines = _lines(progress)
                if len(lines) % 2 == 0:  # not while a graph was planned
                    raise
                lost = {**lines.pop(), "engines": 0, "first": None, "compiled": None, "seconds": 0.0}
                lost["unknown"] = False
                done = lines[1::2]
                rows += [*done, {**lost, "reason": str(error)}]
                if output:  # the process may have ended while it wrote a plan
                    os.truncate(output, max([written, *(row["size"] for row in done)]))
                continue
            if "wrong_file" in answer:
                wrong = f"{file} cannot be planned: {answer['wrong_file']}"
                raise PlanningError(wrong) if answer["is_program"] else ValueError(wrong)
            return {"graphs": rows + _lines(progress)[1::2], **answer}


def called(row: dict[str, Any]) -> str:
    """Return the operation of a graph and its line in the program, such as ``conv at train.py:12``."""
    return str(Caller(row["operation"], row["line"]))


def _lines(progress: Path) -> list[Any]:
    return [json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines()]
