"""The examples in docstrings that need neither cuDNN nor a GPU."""

from __future__ import annotations

import doctest
import importlib

import pytest

# Those listed must have examples; a module that gets its first one is added here.
WITH_EXAMPLES = (
    "_config",
    "_flags",
    "dtypes",
    "problem.activation",
    "problem.arguments",
    "problem.conv",
    "problem.ctc",
    "problem.dropout",
    "problem.lrn",
    "problem.norm",
    "problem.operands",
    "problem.pooling",
    "problem.rnn",
    "problem.rnn_data",
    "problem.rnn_table",
    "problem.rnn_weights",
    "problem.softmax",
    "problem.spatial",
    "problem.specs",
    "problem.tensor",
    "reference.activation",
    "reference.conv",
    "reference.ctc",
    "reference.dropout",
    "reference.fused",
    "reference.lrn",
    "reference.norm",
    "reference.pooling",
    "reference.reduction",
    "reference.rnn",
    "reference.sequences",
    "reference.softmax",
    "reference.spatial",
    "reference.tensor",
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"cudnn_ct.{name}")
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0
