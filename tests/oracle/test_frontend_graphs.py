"""The graphs that are compared with nvidia-cudnn-frontend: their operands, and the report."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from . import frontend_graphs
from .frontend_kinds import KINDS
from .graph_bounds import bounds


def test_each_family_of_graphs_has_variants() -> None:
    assert len(KINDS) >= 60
    for family in ("matmul", "conv", "layer_norm", "rms_norm", "elementwise", "reduction", "attention"):
        assert sum(name.startswith(family) for name in KINDS) >= 5, family


@pytest.mark.parametrize("name", list(KINDS)[::3])
def test_expected_values_of_graphs_are_finite(name: str) -> None:
    graph = ct.Graph()
    made = KINDS[name](graph)
    problem = graph.define(*(made if isinstance(made, tuple) else (made,)))
    for value, bound in bounds(problem, frontend_graphs.drawn(problem)):
        assert np.isfinite(value).all()
        assert np.median(bound) < np.abs(value).max()


def row(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    return {"ours": ours, "theirs": theirs}


RIGHT: dict[str, Any] = {"error": 1e-4, "wrong": ""}
WRONG: dict[str, Any] = {"error": 1.0, "wrong": "y[0] is 2"}
FAILED: dict[str, Any] = {"failed": "NotSupportedError: no engine"}


@pytest.mark.parametrize(
    ("ours", "theirs", "status"),
    [
        (RIGHT, RIGHT, "agree"),
        (WRONG, RIGHT, "ours wrong"),
        (RIGHT, WRONG, "theirs wrong"),
        (WRONG, WRONG, "both wrong"),
        (FAILED, RIGHT, "ours rejected"),
        (RIGHT, FAILED, "theirs rejected"),
        (WRONG, FAILED, "ours wrong"),
        (FAILED, FAILED, "both rejected"),
    ],
)
def test_verdict_names_the_library_that_differs(ours: Any, theirs: Any, status: str) -> None:
    assert frontend_graphs._status(row(ours, theirs)) == status


def test_crashes_are_rows_and_the_next_graph_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [b'{"stage": "ours"}\n{"kind": "a", "status": "agree"}\n{"stage": "theirs"}\n']
    outputs += [b'{"kind": "c", "status": "agree"}\n']

    class Done:
        stderr, returncode = b"fault", -11

        def __init__(self) -> None:
            self.stdout = outputs.pop(0)

    run: Callable[..., Done] = lambda *_, **__: Done()  # noqa: E731
    monkeypatch.setattr(subprocess, "run", run)
    options = frontend_graphs._parser().parse_args([])
    found = list(frontend_graphs._run(options, ["a", "b", "c"], 0))
    assert [one["status"] for one in found] == ["agree", "theirs crash", "agree"]
    assert found[1]["text"] == "exit status -11: fault"
    assert "1 theirs crash" in frontend_graphs._table(found, {})
