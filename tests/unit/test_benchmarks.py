"""benchmarks/: the calls that they time, and their commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import reference

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not next to these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import layers_host  # noqa: E402
import layers_rows  # noqa: E402
import layers_workload  # noqa: E402
from harness.operands import Operands  # noqa: E402
from harness.results import read  # noqa: E402

sys.path.remove(str(BENCHMARKS))

LAYERS = layers_workload.operations()


@pytest.fixture(autouse=True)
def _context_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_rows, "lost_context", lambda: "")


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
