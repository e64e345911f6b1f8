"""The figures of docs/reliability.md, and the commands that write them down."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "tools" / "reliability.py").is_file():
    pytest.skip("the tools are not beside the tests", allow_module_level=True)

sys.path.insert(0, str(ROOT / "tools"))
import reliability  # noqa: E402


def test_reliability_page_matches_the_results() -> None:
    page = reliability.PAGE.read_text(encoding="utf-8")
    assert reliability.page_with(page, reliability.read()) == page, "python tools/reliability.py writes it"
