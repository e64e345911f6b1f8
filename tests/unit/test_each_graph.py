"""The parent process of `cudnn-ct supports` and `cudnn-ct compile`, and its children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cudnn_ct.cli import offline
from cudnn_ct.cli.offline import PlanningError
from cudnn_ct.cli.program import compile_command, supported

GRAPHS = ("first", "fatal", "second", "third")


def plan(module: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Act as a child process that ends when it plans the fatal graph."""
    output = request["output"] or os.devnull
    with open(request["progress"], "w", encoding="utf-8") as progress, open(output, "a") as plans:
        for name in GRAPHS[request["start"] :]:
            label = {"graph": name, "operation": name, "line": "p.py:1"}
            print(json.dumps(label), file=progress)
            if name == "fatal":
                plans.write("a part of a pl")
                raise PlanningError("the planning process ended with SIGSEGV")
            print(f"plan of {name}", file=plans, flush=True)
            planned = {"engines": 1, "reason": "", "seconds": 0.5, "size": os.path.getsize(output)}
            print(json.dumps(label | planned), file=progress)
    return {"skipped": {}}


def test_supported_continues_after_a_graph_that_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "run_child", plan)
    (report,) = supported(__file__, ("h200",))
    assert [row["graph"] for row in report["graphs"]] == list(GRAPHS)
    assert [row["engines"] for row in report["graphs"]] == [1, 0, 1, 1]
    assert report["graphs"][1]["reason"] == "the planning process ended with SIGSEGV"
    assert report["skipped"] == {}


def test_compile_keeps_the_plans_of_other_graphs_when_one_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(offline, "run_child", plan)
    program, output = tmp_path / "graphs.json", tmp_path / "plans"
    program.write_text("{}")
    arguments = [str(program), "--gpu", "h200", "-o", str(output), "--json"]
    done = CliRunner().invoke(compile_command, arguments)
    assert output.read_text() == "plan of first\nplan of second\nplan of third\n"
    (report,) = json.loads(done.stdout)["gpus"]
    assert (report["compiled"], report["seconds"]) == (3, 1.5)
    assert report["rejected"] == [
        {
            "graph": "fatal",
            "operation": "fatal",
            "line": "p.py:1",
            "reason": "the planning process ended with SIGSEGV",
        }
    ]
    assert done.exit_code == 1
    assert "cannot compile 1 graph" in done.stderr


def test_supported_raises_if_the_process_ends_before_a_graph_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(module: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        raise PlanningError("the planning process ended with SIGILL")

    monkeypatch.setattr(offline, "run_child", end)
    with pytest.raises(PlanningError, match="SIGILL"):
        supported(__file__, ("h200",))


# --- child processes of commands end with their parent -----------------------------------------------------


ANSWER = """
import os, pathlib, time
from cudnn_ct.cli.offline import read_request

def answer():
    file = pathlib.Path(read_request()["file"])
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
    time.sleep(60)
"""
PARENT = """
import os, sys
from cudnn_ct.cli.offline import start

start("sleeper", {"file": sys.argv[1]}, os.environ, [], 60)
"""


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_a_child_ends_with_its_parent(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text(ANSWER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(file)])
    try:
        until(file.exists)
        getattr(parent, end)()
        until(lambda: not running(int(file.read_text())))
    finally:
        parent.kill()
        parent.wait()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
