"""Cases of `cudnn_ct.dnn` on a GPU."""

from __future__ import annotations

import pytest

from tests.dnn_cases import ROWS

from .conftest import place


# These tests do not depend on the algorithm that cuDNN supports for a problem.
@pytest.mark.filterwarnings("ignore:algo=.* fell back:cudnn_ct.errors.CudnnWarning")
@pytest.mark.parametrize("name", ROWS)
def test_dnn_case(name: str) -> None:
    ROWS[name](place)
