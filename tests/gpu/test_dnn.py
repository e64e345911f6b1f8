"""`cudnn_ct.dnn` against the reference, row by row, on a GPU."""

from __future__ import annotations

import pytest

from tests.dnn_cases import ROWS

from .conftest import place


# Which algorithm cuDNN has for a problem is its affair here.
@pytest.mark.filterwarnings("ignore:algo=.* fell back:cudnn_ct.errors.CudnnWarning")
@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    ROWS[name](place)
