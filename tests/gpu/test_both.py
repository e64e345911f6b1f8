"""Tests that the tiers share: operations on tensors, cases of `cudnn_ct.dnn`, and examples of docstrings."""

from __future__ import annotations

import doctest

import pytest

from tests.both.tensors import *  # noqa: F403
from tests.causal_cases import unavailable
from tests.dnn_cases import ROWS
from tests.docstrings import all_examples, run

from .conftest import place


# These tests do not depend on the algorithm that cuDNN supports for a problem.
@pytest.mark.filterwarnings("ignore:algo=.* fell back:cudnn_ct.errors.CudnnWarning")
@pytest.mark.parametrize("name", ROWS)
def test_dnn_function_equals_reference(name: str) -> None:
    ROWS[name](place)


@pytest.mark.parametrize("test", all_examples(), ids=lambda test: test.name)
def test_docstring_example_runs(test: doctest.DocTest) -> None:
    name = test.name.rpartition(".")[2]
    if missing := unavailable(name):
        pytest.skip(f"{name} {missing}")
    run(test)
