"""What the module meant that this package descends from, row by row, on the fakes."""

from __future__ import annotations

import pytest

from tests.seeds import ROWS

from .cudnn import FakeCudnn


@pytest.mark.parametrize("name", ROWS)
def test_row(fake: FakeCudnn, name: str) -> None:
    ROWS[name]()
