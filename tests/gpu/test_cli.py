"""Commands on a GPU."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cudnn_ct as ct
from cudnn_ct.cli import main
from cudnn_ct.cli.selftest_cases import OPERATIONS

CONV = ["--x", "8,16,14,14", "--w", "16,16,3,3", "--padding", "1"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_selftest_passes_within_a_minute() -> None:
    begin = time.monotonic()
    ran = run("selftest", "--json")
    told = json.loads(ran.stdout)
    assert [row for row in told["rows"] if row["verdict"] == "failed"] == []
    assert ran.exit_code == 0
    assert time.monotonic() - begin < 60
    assert told["device"]
    assert told["reason"] is None
    assert {row["name"].split(" (")[0] for row in told["rows"]} == set(OPERATIONS)


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_algorithms_prints_times(direction: str) -> None:
    rows = json.loads(run("algorithms", *CONV, "--direction", direction, "--json").stdout)["rows"]
    times = [row["time_ms"] for row in rows if row["time_ms"]]
    assert times == sorted(times)
    assert {row["backend"] for row in rows if row["time_ms"]} == {"graph", "legacy"}
    listed = json.loads(run("algorithms", *CONV, "--direction", direction, "--no-timing", "--json").stdout)
    assert not any(row["time_ms"] for row in listed["rows"])
    assert not listed["planned"]


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bisect_compares_a_convolution_with_numpy(direction: str, dtype: str) -> None:
    options = ("--direction", direction, "--dtype", dtype, "--json")
    ran = run("bisect", ct.errors.format_version(ct.version()), *CONV, *options)
    assert ran.exit_code == 0, ran.output
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
    ran = run("bisect", ct.errors.format_version(ct.version()), "--file", str(file), "--json")
    assert ran.exit_code == 1, ran.output
    (row,) = json.loads(ran.stdout)["versions"]
    assert row["status"] == "wrong"


def test_algorithms_plans_for_an_exported_device(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    ran = run("device", "--export", str(file))
    assert ran.exit_code == 0, ran.output
    ran = run("algorithms", *CONV, "--device", str(file), "--json")
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert any(not row["rejected"] for row in told["rows"])
    assert told["planned"]
    named = run("device").stdout
    assert named.startswith(f"{told['device']}, ")
    assert named.endswith(", device 0\n")


def test_device_export_has_the_fields_of_the_recorded_description() -> None:
    recorded = json.loads((Path(__file__).parents[1] / "devices/h200-cudnn-9.19.json").read_text())
    exported = json.loads(run("device", "--export").stdout)
    assert {name: type(exported.get(name)) for name in recorded} == {
        name: type(value) for name, value in recorded.items()
    }


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
    ran = run("bench", *problem, "--json")
    assert ran.exit_code == 0, ran.output
    rows = json.loads(ran.stdout)["rows"]
    assert any(row["time"] for row in rows)
    assert all(row["nbytes"] > 0 for row in rows if row["time"])
