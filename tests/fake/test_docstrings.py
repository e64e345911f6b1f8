"""The examples of what needs a device, and the first page of the documentation, on the fakes."""

from __future__ import annotations

import doctest

import pytest

from tests.docstrings import all_examples, run

from .cudnn import FakeCudnn


@pytest.mark.parametrize("test", all_examples(), ids=lambda test: test.name)
def test_docstring_example_runs_on_the_fakes(fake: FakeCudnn, test: doctest.DocTest) -> None:
    fake.engines = "attention" in test.name  # a graph, which no legacy call replaces
    run(test)
