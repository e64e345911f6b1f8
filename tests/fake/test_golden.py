"""Calls are computed as the golden files say: see tests/golden."""

from __future__ import annotations

import difflib

from tests.golden import answers


def test_calls_are_computed_as_before() -> None:
    before, now = answers.FILE.read_text().splitlines(), answers.answers().splitlines()
    changed = list(difflib.unified_diff(before, now, "golden", "now", n=0, lineterm=""))
    assert not changed, "\n".join([*changed[:60], "python -m tests.golden --write accepts intended changes"])
