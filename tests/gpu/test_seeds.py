"""What the module meant that this package descends from, row by row, on a GPU."""

from __future__ import annotations

import pytest

from tests.seeds import ROWS


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    ROWS[name]()
