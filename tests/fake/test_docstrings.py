"""The examples of what needs a device, on the fakes."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from tests.docstrings import all_examples, run

from . import cudnn
from .cudnn import FakeCudnn


@pytest.fixture(autouse=True)
def the_default_algorithm_of_dnn_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: Any = ("IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM", "DIRECT")
    monkeypatch.setattr(cudnn, "FORWARD", cudnn.FORWARD._replace(offered=offered))


@pytest.mark.parametrize("test", all_examples(), ids=lambda test: test.name)
def test_examples(fake: FakeCudnn, test: doctest.DocTest) -> None:
    run(test)
