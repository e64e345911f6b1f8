"""What the real cuDNN supports on described GPUs: the lists and figures of the docs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT, run_python

pytestmark = pytest.mark.usefixtures("can_plan")

RESULTS = ROOT / "benchmarks" / "results" / "support.json"


def run(*command: object, status: int = 0) -> str:
    done = run_python(*command, cwd=ROOT)
    assert done.returncode == status, done.stdout + done.stderr[-2000:]
    return done.stdout


def test_support_list_agrees_with_a_record_of_the_same_description(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    tool, graphs = ROOT / "tools" / "support_list.py", [0, 30, 92, 110, 150, 151, 200, 499]
    output = run(tool, "--record", record, "--described", "h200", "--jobs", 2, "--graphs", *graphs)
    assert "of 8 in" in output
    content = json.loads(record.read_text())
    assert [row["number"] for row in content["graphs"]] == graphs
    assert content["planned"] == "described"
    assert {row["status"] for row in content["graphs"]} <= {"yes", "no"}
    assert "agrees with the device for 8 of 8 graphs (100.0%)" in run(tool, "--compare", record)
    for row in content["graphs"][:1]:
        row["status"] = {"yes": "no", "no": "yes"}[row["status"]]
    record.write_text(json.dumps(content))
    assert "agrees with the device for 7 of 8" in run(tool, "--compare", record, status=1)


@pytest.mark.nightly
def test_support_matrix_is_what_this_version_plans(cudnn: int) -> None:
    stored = json.loads(RESULTS.read_text())
    if stored["cudnn"] != f"{cudnn // 10_000}.{cudnn // 100 % 100}.{cudnn % 100}":
        pytest.skip(f"the matrix is of cuDNN {stored['cudnn']}")
    code = "import sys, json; sys.path.insert(0, 'tools'); import support_matrix as m; "
    code += "print(json.dumps(m.planned(('h200', 't4'), ('attention', 'layer_norm'), 8)))"
    found = json.loads(run("-c", code).splitlines()[-1])
    for operation, dtypes in found["operations"].items():
        for dtype, cells in dtypes.items():
            assert {gpu: stored["operations"][operation][dtype][gpu] for gpu in cells} == cells
    assert set(found["operations"]) == {"attention", "layer_norm"}
    for kind, cells in found["kinds"].items():
        assert {gpu: stored["kinds"][kind][gpu] for gpu in cells} == cells


def test_held_out_reports_are_explained_as_the_docs_say(cudnn: int) -> None:
    if cudnn != 92800:
        pytest.skip("the figure is of cuDNN 9.28.0")
    last = run("-m", "tests.heldout_graphs").splitlines()[-1]
    found: Any = re.match(r"cuDNN 9.28.0: (\d+) of (\d+) messages name the cause", last)
    named, rejected = map(int, found.groups())
    assert rejected >= 15
    assert named / rejected >= 0.8
    words = " ".join((ROOT / "docs" / "errors.md").read_text(encoding="utf-8").split())
    assert f"{named} of {rejected} messages of the held-out list" in words
