"""The tables of measurements are those of the files in benchmarks/results/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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


def test_performance_pages_match_the_results() -> None:
    assert tool.main(["--check"]) == 0, "run python tools/performance_docs.py"
