"""tools/bisect_cudnn.py and tools/bench.py on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cudnn_ct as ct
from tests.maintainers import run_tool, tool

from .test_cli import CONV

tool("bisect_cudnn")


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bisect_compares_a_convolution_with_numpy(direction: str, dtype: str) -> None:
    options = ("--direction", direction, "--dtype", dtype, "--json")
    ran = run_tool("bisect_cudnn", ct.errors.format_version(ct.version()), *CONV, *options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (row,) = json.loads(ran.stdout)["versions"]
    assert row["status"] == "ok"
    assert row["ms"] > 0
    assert 0 <= row["error"] < 2e-2


def test_bisect_reports_a_wrong_result_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(
        "import numpy as np, cudnn_ct as ct\n"
        "x = np.ones((2, 3, 4, 5), np.float32)\n"
        "call = lambda: ct.softmax(ct.asarray(x))\n"
        "reference = lambda: 1.1 * ct.reference.softmax(x) + 1\n"
    )
    ran = run_tool("bisect_cudnn", ct.errors.format_version(ct.version()), "--file", str(file), "--json")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    (row,) = json.loads(ran.stdout)["versions"]
    assert row["status"] == "wrong"


@pytest.mark.parametrize(
    "problem",
    [
        ["conv", *CONV],
        *([name, "--x", "8,16,14,14"] for name in ("pool", "softmax", "batch_norm")),
        ["rnn", "--x", "8,4,32", "--hidden", "32"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_bench_times_every_problem(problem: list[str]) -> None:
    ran = run_tool("bench", *problem, "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert any(row["time"] for row in rows)
    assert all(row["nbytes"] > 0 for row in rows if row["time"])
