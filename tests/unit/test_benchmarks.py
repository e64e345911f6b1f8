"""benchmarks/: the calls that they time, the rows that they keep and resume, and their commands."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import reference

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not next to these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import conv  # noqa: E402
import conv_layers  # noqa: E402
import conv_rows  # noqa: E402
import layers_host  # noqa: E402
import layers_rows  # noqa: E402
import layers_workload  # noqa: E402
import rnn_networks  # noqa: E402
import rnn_rows  # noqa: E402
import rnn_workload  # noqa: E402
from harness import command, timing  # noqa: E402
from harness.operands import Operands  # noqa: E402
from harness.results import Results, read  # noqa: E402

sys.path.remove(str(BENCHMARKS))

LAYERS = layers_workload.operations()
RNN = rnn_workload.Row("lstm", 4, 1, 1, 3, 5, rnn_workload.KINDS["fp16"], "forward")


def conv_record(number: int, **times: float) -> dict[str, Any]:
    key = f"layer {number} | forward | fp16"
    which = {"section": "rows", "id": key, "kind": "fp16", "direction": "forward", "half": "report"}
    return {**which, "times": times, "first_ms": {}, "errors": {}}


# --- the calls ---------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _context_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (layers_rows, rnn_rows, command, timing):
        monkeypatch.setattr(module, "lost_context", lambda: "")


@pytest.fixture
def operations_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct, "DropoutState", lambda p: p)
    monkeypatch.setattr(ct, "dropout", lambda x, state, *, out=None: (x, "a mask"))
    monkeypatch.setattr(ct, "dropout_backward", lambda dy, mask, state, *, out=None: dy)
    for operation in set(LAYERS) - {"dropout", "dropout_backward"}:
        monkeypatch.setattr(ct, operation, getattr(reference, operation))


def layer(operation: str) -> tuple[Any, Any, Operands]:
    """Return a small row of an operation, its calls, and their operands in NumPy."""
    row = layers_host.small(LAYERS[operation])
    pair = layers_rows.PAIRS[operation](row)._replace(prepare=None)
    arrays = {role: [np.full(a.shape, 0.5, a.dtype)] for role, a in pair.arrays.items()}
    return row, pair, Operands(1, arrays, arrays)


@pytest.mark.usefixtures("operations_in_numpy")
@pytest.mark.parametrize("operation", LAYERS)
def test_benchmark_calls_match_the_operations(operation: str) -> None:
    row, pair, operands = layer(operation)
    record = layers_rows.facts(row)
    for given in (operands, layers_host.without_out(operands)):
        call = layers_rows.calls_of(row, pair, given, record, ["ours"])["ours"]
        result = call(0)
        assert record["errors"] == {}
        out = given.ours.get("out", [None])[0]
        if out is not None and not operation.startswith("dropout"):
            assert out is (result[0] if isinstance(result, tuple) else result)


@pytest.mark.parametrize(
    ("apart", "error"),
    [
        (0.001, None),
        (0.5, "computes something else: relatively 0.5 from PyTorch's result, not 0.01"),
        (math.nan, "computes something else: relatively nan"),
    ],
)
def test_benchmark_drops_the_time_of_a_wrong_result(
    apart: float, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = ModuleType("torch")
    torch.__dict__["inference_mode"] = contextlib.nullcontext
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(layers_rows, "difference", lambda *_: apart)
    row, pair, operands = layer("softmax")
    record = layers_rows.facts(row) | {"times": {"torch": 10.0, "ours": 1.0}}
    layers_rows.compare(record, row, pair, operands, {"ours": None, "torch": None})
    assert ("ours" in record["times"]) == (error is None)
    assert record["errors"].get("ours", "").startswith(error or "")


class FakeRNN:
    """Records the calls of the benchmark. Signatures are those of ct.RNN, which test_rnn.py covers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.made, self.calls = (arguments, options), []

    def from_torch(self, state: Any) -> Any:
        return ("weights of", state)

    def forward(self, x: Any, w: Any, **given: Any) -> Any:
        self.calls.append(("forward", given))
        return SimpleNamespace(y="y", hy="hy", cy=None, reserve="reserve")

    def backward_data(self, dy: Any, reserve: Any) -> Any:
        self.calls.append(("data", reserve, dy))
        return "dx", "dh0", None

    def backward_weights(self, reserve: Any) -> Any:
        self.calls.append(("weights", reserve))
        return 5


def test_benchmark_networks_match_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct, "RNN", FakeRNN)
    torch_network = SimpleNamespace(state_dict=lambda: "theirs")
    row = RNN._replace(layers=2, directions=2, kind=rnn_workload.KINDS["tf32"])
    ours = rnn_networks.our_network(row, torch_network, "heuristic")
    options = {"direction": "bidirectional", "dtype": "float32", "precision": "tf32", "algo": "heuristic"}
    assert ours.weights == ("weights of", "theirs")
    assert ours.rnn.made == (("lstm", 4, 4, 2), options)
    operands = Operands(1, {}, {"x": ["x"], "dy": ["dy"]})
    row = RNN._replace(packed=True, work="training")
    assert rnn_networks.our_call(RNN, ours, operands)(0) == ("y", "hy", None)
    assert rnn_networks.our_call(row, ours, operands)(0, y="out") == ("y", "dx", 5)
    given = {"training": True, "out": "out", "lengths": row.lengths, "layout": "packed"}
    assert ours.rnn.calls[1:] == [("forward", given), ("data", "reserve", "dy"), ("weights", "reserve")]


# --- rows --------------------------------------------------------------------------------------------------


def test_shards_are_disjoint_and_complete() -> None:
    everything = conv_layers.rows()
    parts = [conv_layers.rows(shard=(k, 7)) for k in range(1, 8)]
    assert len({row.id for row in everything}) == len(everything) == 89 * 3 * 6
    assert sorted(row.id for part in parts for row in part) == sorted(row.id for row in everything)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_results_skip_a_truncated_line(tmp_path: Path) -> None:
    path, whole = tmp_path / "rows.jsonl", json.dumps(conv_record(1, guess=1.0))
    path.write_text(f"{whole}\n{whole[:40]}")
    results = Results(path)
    assert [record["id"] for record in results.records] == ["layer 1 | forward | fp16"]
    results.add(conv_record(2, guess=1.0))
    assert len(Results(path).records) == 2


def test_benchmark_stops_at_its_time_limit_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(row: Any, wanted: Any) -> dict[str, Any]:
        return conv_rows.facts(row) | {"times": dict.fromkeys(wanted, 40.0)}

    monkeypatch.setattr(command, "prepare", lambda warm_up: None)
    monkeypatch.setattr(command, "about", lambda: {"section": "about", "id": "now", "device": "none"})
    monkeypatch.setattr(conv, "row_record", measured)
    arguments = ["--rows", str(tmp_path / "rows.jsonl"), "--networks", "vgg16", "--kinds", "fp16"]
    printed = []
    for more in (["--seconds", "-1"], [], []):
        conv.main([*arguments, *more])
        printed.append(capsys.readouterr().out)
    assert "27 left: run the same command again" in printed[0]
    assert "27 to measure" in printed[1]
    assert printed[2].startswith("0 to measure, 29 records are there already")


# --- commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("benchmark", ["conv", "layers", "rnn"])
def test_commands_need_no_torch(benchmark: str, tmp_path: Path) -> None:
    rows, whole = BENCHMARKS / "results" / f"{benchmark}.json", tmp_path / "whole.json"
    environment = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    for name, *arguments in (
        (f"{benchmark}_report.py", rows, "--json", whole),
        (f"{benchmark}.py", "--help"),
    ):
        shell = [sys.executable, "-W", "error", "-X", "importtime", BENCHMARKS / name, *arguments]
        done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "torch" not in done.stderr
    assert "--section" in done.stdout
    assert read(whole) == read(rows)
