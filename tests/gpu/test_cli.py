"""Commands on a GPU."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

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
    assert time.monotonic() - begin < (120 if "PYTEST_XDIST_WORKER" in os.environ else 60)  # with others
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
