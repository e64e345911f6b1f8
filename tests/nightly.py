"""Select a share of the problems of a long test; ``.ci/nightly`` computes all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

Value = TypeVar("Value")

NIGHTLY = os.environ.get("CUDNN_CT_HYPOTHESIS_PROFILE") == "nightly"


def share(values: Iterable[Value], of: int) -> list[Value]:
    """Return every ``of``-th value, or all of them at night."""
    return list(values)[:: 1 if NIGHTLY else of]


def some(rows: Iterable[Any], of: int) -> list[Any]:
    """Return rows of parameters, all but every ``of``-th one marked as nightly."""
    return [
        row
        if number % of == 0
        else pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.nightly)
        for number, row in enumerate(rows)
    ]
