"""benchmarks/rnn*.py: the rows, what they call, what is left to measure, and the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cudnn_ct as ct

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not beside these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import rnn_networks as networks  # noqa: E402
import rnn_rows as rows  # noqa: E402
import rnn_workload as workload  # noqa: E402
from harness.operands import Operands  # noqa: E402
from harness.results import read  # noqa: E402

sys.path.remove(str(BENCHMARKS))

ROW = workload.Row("lstm", 4, 1, 1, 3, 5, workload.KINDS["fp16"], "forward")


# --- the workload ------------------------------------------------------------------------------------------


# --- what is called ----------------------------------------------------------------------------------------


class FakeRNN:
    """The class as the benchmark uses it: it notes how it was called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.made, self.calls = (arguments, options), []
        self.weight_size = 10

    def from_torch(self, state: Any) -> Any:
        return ("weights of", state)

    def to_torch(self, weights: Any) -> Any:
        return {"bias": weights + 2, "weight": weights + 1}

    def forward(self, x: Any, w: Any, **given: Any) -> Any:
        self.calls.append(("forward", given))
        return SimpleNamespace(y="y", hy="hy", cy=None, reserve="reserve")

    def backward_data(self, dy: Any, reserve: Any) -> Any:
        self.calls.append(("data", reserve, dy))
        return "dx", "dh0", None

    def backward_weights(self, reserve: Any) -> Any:
        self.calls.append(("weights", reserve))
        return 5


NETWORK = SimpleNamespace(
    state_dict=lambda: "theirs", named_parameters=lambda: [("weight", None), ("bias", None)]
)
OPERANDS = Operands(1, {}, {"x": ["x"], "dy": ["dy"]})


@pytest.fixture
def made_up_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct, "RNN", FakeRNN, raising=False)
    monkeypatch.setattr(rows, "lost_context", lambda: "")


@pytest.mark.usefixtures("made_up_class")
def test_benchmark_networks_match_the_rows() -> None:
    row = ROW._replace(layers=2, directions=2, kind=workload.KINDS["tf32"])
    ours = networks.our_network(row, NETWORK, "heuristic")
    assert ours.weights == ("weights of", "theirs")
    assert ours.rnn.made == (
        ("lstm", 4, 4, 2),
        {
            "direction": "bidirectional", "dtype": "float32", "precision": "tf32",
            "algo": "heuristic",
        },
    )  # fmt: skip


@pytest.mark.usefixtures("made_up_class")
def test_benchmark_calls_match_the_class() -> None:
    ours = networks.our_network(ROW, NETWORK, "autotune")
    assert networks.our_call(ROW, ours, OPERANDS)(0) == ("y", "hy", None)
    assert ours.rnn.calls.pop() == ("forward", {"out": None})
    row = ROW._replace(packed=True, work="training")
    assert networks.our_call(row, ours, OPERANDS)(0, y="out") == ("y", "dx", 5)
    given = {"training": True, "out": "out", "lengths": row.lengths, "layout": "packed"}
    assert ours.rnn.calls == [("forward", given), ("data", "reserve", "dy"), ("weights", "reserve")]


# --- what is left to measure -------------------------------------------------------------------------------


# --- the report --------------------------------------------------------------------------------------------


def made_up(number: int = 0, *, packed: bool = False, **times: float) -> dict[str, Any]:
    return rows.facts(ROW._replace(hidden=number + 1, packed=packed)) | {"times": times}


@pytest.mark.parametrize("name", ["rnn.py", "rnn_report.py"])
def test_rnn_commands_need_no_torch(name: str, tmp_path: Path) -> None:
    path, whole = tmp_path / "rows.jsonl", tmp_path / "whole.json"
    path.write_text(json.dumps(made_up(torch=40, time=30)) + "\n")
    arguments = ["--help"] if name == "rnn.py" else [str(path), "--json", str(whole)]
    command = [sys.executable, "-W", "error", "-X", "importtime", str(BENCHMARKS / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stderr
    if whole.exists():
        assert json.loads(whole.read_text())["benchmark"] == "rnn"
        assert read(whole) == read(path)
    else:
        assert "--section" in done.stdout
