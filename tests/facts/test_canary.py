"""The canary finds and computes problems of facts that are not about engines, here on the fakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from . import canary

ROWS = ("graph-clips", "native-broadcasts", "rnn-small-gradients")


@pytest.mark.nightly
def test_canary_computes_problems_of_each_kind_of_row(tmp_path: Path) -> None:
    file = tmp_path / "canary.json"
    assert canary.main(["--fakes", "--seconds", "8", "--json", str(file), "--rows", *ROWS]) == 0
    found = {one["row"]: one for one in json.loads(file.read_text())["rows"]}
    assert {name: one["verdict"] for name, one in found.items()} == dict.fromkeys(ROWS, "right now")
    assert min(one["problems"] for one in found.values()) >= 3
