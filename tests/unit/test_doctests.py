"""The examples in docstrings that need neither cuDNN nor a GPU."""

from __future__ import annotations

import doctest
import importlib

import pytest

# Those listed must have examples; a module that gets its first one is added here.
WITH_EXAMPLES = (
    "_config",
    "dnn.flags",
    "dtypes",
    "shapes.activation",
    "shapes.parse",
    "shapes.conv",
    "shapes.ctc",
    "shapes.dropout",
    "shapes.lrn",
    "shapes.norm",
    "shapes.checks",
    "shapes.pooling",
    "shapes.rnn",
    "shapes.sequences",
    "shapes.rnn_params",
    "shapes.rnn_weights",
    "shapes.softmax",
    "shapes.spatial",
    "shapes.specs",
    "shapes.tensor",
    "reference.conv",
    "reference.ctc",
    "reference.dropout",
    "reference.rnn",
    "reference.sequences",
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"cudnn_ct.{name}")
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0
