"""The examples of what needs a device, on one."""

from __future__ import annotations

import doctest

import pytest

from tests.docstrings import all_examples, run


@pytest.mark.parametrize("test", all_examples(), ids=lambda test: test.name)
def test_examples(test: doctest.DocTest) -> None:
    run(test)
