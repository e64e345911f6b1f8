"""Commands on a GPU."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from cudnn_ct.cli import main

CONV = ["--x", "8,16,14,14", "--w", "16,16,3,3", "--padding", "1"]


def test_the_selftest_is_green_within_a_minute() -> None:
    begin = time.monotonic()
    ran = CliRunner().invoke(main, ["selftest", "--json"], catch_exceptions=False)
    told = json.loads(ran.stdout)
    assert [row for row in told["rows"] if row["verdict"] == "failed"] == []
    assert ran.exit_code == 0
    assert time.monotonic() - begin < 60
    assert told["device"]


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_algorithms_are_timed(direction: str) -> None:
    ran = CliRunner().invoke(
        main, ["algos", *CONV, "--direction", direction, "--json"], catch_exceptions=False
    )
    rows = json.loads(ran.stdout)["rows"]
    assert {row["family"] for row in rows if row["time"]} == {"graph", "legacy"}


def test_the_device_is_exported_and_planned_for(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    ran = CliRunner().invoke(main, ["device", "--export", str(file)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    ran = CliRunner().invoke(main, ["algos", *CONV, "--device", str(file), "--json"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert any(not row["status"] for row in json.loads(ran.stdout)["rows"])


@pytest.mark.parametrize(
    "problem",
    [["conv", *CONV], *([name, "--x", "8,16,14,14"] for name in ("pool", "softmax", "batch_norm"))],
    ids=lambda arguments: arguments[0],
)
def test_problems_are_timed(problem: list[str]) -> None:
    ran = CliRunner().invoke(main, ["bench", *problem, "--json"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert any(row["time"] for row in json.loads(ran.stdout)["rows"])
