"""The table of settings, and the page about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cudnn_ct._config import SETTINGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_settings_page_has_every_setting_with_its_variable_and_default() -> None:
    if not PAGE.is_file():
        pytest.skip("docs are not next to these tests")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(name, f"CUDNN_CT_{name.upper()}", str(row.default)) for name, row in SETTINGS.items()]
