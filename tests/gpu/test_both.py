"""Tests that the tiers share: operations on tensors, cases of `cudnn_ct.dnn`, and examples of docstrings."""

from __future__ import annotations

import doctest

import pytest

from cudnn_ct import _lib
from tests.both.tensors import *  # noqa: F403
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
    if ".causal_conv" in test.name and _lib.load().why_missing("cudnnCausalConv1dForward"):
        pytest.skip("this cuDNN has no causal convolutions")
    run(test)
