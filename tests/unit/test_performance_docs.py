"""The tables of measurements are those of the files in benchmarks/results/."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "performance_docs.py"

if not (TOOL.is_file() and (ROOT / "benchmarks" / "results").is_dir() and (ROOT / "docs").is_dir()):
    pytest.skip("tools, benchmarks and docs are not beside these tests", allow_module_level=True)


def loaded() -> ModuleType:
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("performance_docs", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = path  # the benchmarks' modules have everyday names
    return module


tool = loaded()


def conv_row(kind: str, direction: str, ours: float) -> dict[str, Any]:
    times = {"time": ours, "guess": 2 * ours, "torch": 100.0, "torch_benchmark": 80.0}
    return {
        "section": "rows",
        "id": f"{kind} {direction}",
        "kind": kind,
        "direction": direction,
        "times": times,
    }


def test_the_pages_are_made_from_the_results() -> None:
    assert tool.main(["--check"]) == 0, "run python tools/performance_docs.py"


def test_tables_of_a_benchmark_without_a_file_stay(tmp_path: Path) -> None:
    for page, text in tool.written(tmp_path).items():
        assert text == page.read_text()


def test_convolutions_are_taken_when_their_file_is_there(tmp_path: Path) -> None:
    about = {
        "section": "about",
        "id": "x",
        "date": "2030-01-02T03",
        "device": "GPU",
        "driver": "1",
        "torch": "2",
    }
    records = [
        about | {"cudnn": 91900},
        conv_row("fp16", "forward", 40),
        conv_row("fp16", "backward_data", 160),
    ]
    whole = {"benchmark": "conv", "records": records}
    (tmp_path / "conv.json").write_text(json.dumps(whole, indent=1))
    pages = {page.name: text for page, text in tool.written(tmp_path).items()}
    assert "| 1.00 | - | - | - | - | - |" in pages["README.md"]  # the mean of a half and two
    full = pages["performance.md"]
    assert "GPU, driver 1, cuDNN 9.19.0, PyTorch 2, 2030-01-02." in full
    assert "| fp16 NHWC, forward | 1 | 0.50 | 0.50 | 0.80 | 0.80 | 2.00 |" in full
    assert "| all | 2 | 1.00 | 2.00 | 1.60 | 3.20 | 2.00 |" in full


def test_every_mark_has_a_table() -> None:
    marks = {(place, name) for name, _, place, _ in tool.TABLES}
    for place in {place for place, _ in marks}:
        found = re.findall(
            r"<!-- begin: ([\w-]+) \(python tools/performance_docs", (ROOT / place).read_text()
        )
        assert sorted(found) == sorted(name for page, name in marks if page == place)


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.874, "0.87"), (9.996, "10.00"), (23.6, "24")])
def test_ratios(value: float | None, text: str) -> None:
    assert tool.ratio(value) == text
