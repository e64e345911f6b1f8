"""The parent process of `cudnn-ct supports`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_ct.cli import supports
from cudnn_ct.cli.offline import PlanningError

GRAPHS = ("first", "fatal", "second", "third")


def plan(module: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Act as a child process that ends when it plans the fatal graph."""
    lines = []
    for name in GRAPHS[request["start"] :]:
        lines.append(name)
        if name == "fatal":
            Path(request["progress"]).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            raise PlanningError("the planning process ended with SIGSEGV")
        lines.append({"graph": name, "engines": 1, "reason": ""})
    Path(request["progress"]).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return {"skipped": {}}


def test_supported_continues_after_a_graph_that_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supports, "run_child", plan)
    (report,) = supports.supported("graphs.json", ("h200",))
    assert [row["graph"] for row in report["graphs"]] == list(GRAPHS)
    assert [row["engines"] for row in report["graphs"]] == [1, 0, 1, 1]
    assert report["graphs"][1]["reason"] == "the planning process ended with SIGSEGV"
    assert report["skipped"] == {}


def test_supported_raises_if_the_process_ends_before_a_graph_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(module: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        raise PlanningError("the planning process ended with SIGILL")

    monkeypatch.setattr(supports, "run_child", end)
    with pytest.raises(PlanningError, match="SIGILL"):
        supports.supported("graphs.json", ("h200",))
