"""benchmarks/layers*.py: the rows, what they call, their floors, what is left to measure, and the report."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import reference

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not beside these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import layers_host as host  # noqa: E402
import layers_report as report  # noqa: E402
import layers_rows as rows  # noqa: E402
import layers_workload as workload  # noqa: E402
from harness.operands import Operands  # noqa: E402
from harness.results import read  # noqa: E402
from layers_pair import Pair  # noqa: E402

sys.path.remove(str(BENCHMARKS))

OPERATIONS = workload.operations()


def row_of(operation: str, kind: str = "fp16-nchw", *x: int, **parameters: Any) -> workload.Row:
    layer = workload.Layer("made up", x, tuple(parameters.items()))
    return OPERATIONS[operation]._replace(layer=layer, kind=workload.KINDS[kind])


# --- the workload ------------------------------------------------------------------------------------------


# --- what must move ----------------------------------------------------------------------------------------


# --- what is called ----------------------------------------------------------------------------------------


class _Dice:
    def __init__(self, p: float) -> None:
        self.p = p


def _dropout(x: Any, state: _Dice, *, out: Any = None) -> Any:
    return x, "a mask"


def _dropout_backward(dy: Any, mask: Any, state: _Dice, *, out: Any = None) -> Any:
    assert mask == "a mask"
    return dy


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations in NumPy, with the signatures that those on the device have."""
    more = {"dropout": _dropout, "dropout_backward": _dropout_backward, "DropoutState": _Dice}
    for operation in OPERATIONS:
        monkeypatch.setattr(
            ct, operation, more.get(operation) or getattr(reference, operation), raising=False
        )
    monkeypatch.setattr(ct, "DropoutState", _Dice, raising=False)
    monkeypatch.setattr(rows, "lost_context", lambda: "")


def in_numpy(pair: Pair) -> Operands:
    arrays = {role: [np.full(a.shape, 0.5, a.dtype)] for role, a in pair.arrays.items()}
    return Operands(1, arrays, arrays)


def without_torch(operation: str) -> tuple[workload.Row, Pair]:
    row = host.small(OPERATIONS[operation])
    return row, rows.PAIRS[operation](row)._replace(prepare=None)


@pytest.mark.usefixtures("on_the_host")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_benchmark_calls_match_the_operations(operation: str) -> None:
    row, pair = without_torch(operation)
    operands, record = in_numpy(pair), rows.facts(row)
    calls = rows.calls_of(row, pair, operands, record, ["ours"])
    assert record["errors"] == {}
    results = calls["ours"](0)
    first = results[0] if isinstance(results, tuple) else results
    if "out" in operands.ours and not operation.startswith("dropout"):
        assert first is operands.ours["out"][0]
    elif "made" in operands.ours and not operation.startswith("dropout"):
        assert first.shape == operands.ours["made"][0].shape
    free = host.without_out(operands)
    calls = rows.calls_of(row, pair, free, record, ["ours"])
    assert calls["ours"](0) is not None


# --- whether both compute the same -------------------------------------------------------------------------


class Tensor(np.ndarray):  # type: ignore[type-arg]
    """As much of PyTorch's as a comparison needs, on host memory."""

    def fill_(self, value: float) -> None:
        self[...] = value

    def copy_(self, other: Any) -> None:
        self[...] = other

    def clone(self) -> Any:
        return self.copy()

    def float(self) -> Any:
        return self.astype(np.float32)

    def norm(self) -> Any:
        return np.asarray(np.linalg.norm(np.asarray(self))).view(Tensor)

    def clamp(self, min: float) -> Any:
        return np.asarray(np.maximum(self, min)).view(Tensor)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module torch that has what a comparison needs, whatever is installed."""
    torch = ModuleType("torch")
    torch.__dict__.update(
        Tensor=Tensor, from_dlpack=lambda one: one.view(Tensor), inference_mode=contextlib.nullcontext
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("apart", "error"),
    [
        (0.001, None),
        (0.5, "computes something else: relatively 0.5 from PyTorch's result, not 0.01"),
        (math.nan, "computes something else: relatively nan"),
        (ValueError("shapes"), "cannot be compared with PyTorch's result: ValueError: shapes"),
    ],
    ids=str,
)
def test_benchmark_drops_the_time_of_a_wrong_result(
    apart: Any, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: Any) -> float:
        if isinstance(apart, Exception):
            raise apart
        return float(apart)

    monkeypatch.setattr(rows, "difference", measure)
    monkeypatch.setattr(rows, "lost_context", lambda: "")
    row, pair = without_torch("softmax")
    record = rows.facts(row) | {"times": {"torch": 10.0, "ours": 1.0}, "remeasured": [0.1]}
    rows.compare(record, row, pair, in_numpy(pair), {"ours": None, "torch": None})
    if error is None:
        assert record["times"] == {"torch": 10.0, "ours": 1.0}
        assert record["errors"] == {}
    else:
        assert record["times"] == {"torch": 10.0}
        assert record["errors"]["ours"].startswith(error)
        assert report.ours_over_torch(record) is None


# --- what is left to measure -------------------------------------------------------------------------------


# --- the report --------------------------------------------------------------------------------------------


def made_up(operation: str = "pool", number: int = 0, floor: float = 10, **times: float) -> dict[str, Any]:
    row = row_of(operation, "fp16-nhwc", number + 1, 3, 8, 8)
    return rows.facts(row) | {"times": times, "bytes": floor * 4e6, "floor_us": floor}


@pytest.mark.parametrize("name", ["layers.py", "layers_report.py"])
def test_layers_commands_need_no_torch(name: str, tmp_path: Path) -> None:
    path, whole = tmp_path / "rows.jsonl", tmp_path / "whole.json"
    path.write_text(json.dumps(made_up(torch=40, ours=30)) + "\n")
    arguments = ["--help"] if name == "layers.py" else [str(path), "--json", str(whole)]
    command = [sys.executable, "-W", "error", "-X", "importtime", str(BENCHMARKS / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stderr
    if whole.exists():
        assert json.loads(whole.read_text())["benchmark"] == "layers"
        assert read(whole) == read(path)
    else:
        assert "--family" in done.stdout
