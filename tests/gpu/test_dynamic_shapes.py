"""Shapes that change on a GPU: the tests of `tests.both.dynamic_shapes`, and the cost of a new length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import pytest

import cudnn_ct as ct
from tests.both.dynamic_shapes import *  # noqa: F403

from .conftest import own_stream

pytestmark = pytest.mark.usefixtures("leave_memory_to_others")


@pytest.fixture
def two_streams() -> Sequence[Any]:
    return own_stream(), own_stream()


@pytest.mark.alone
def test_new_length_of_a_product_compiles_nothing() -> None:
    w = ct.full((512, 256), 1, "bfloat16")
    operands = [ct.full((rows, 512), 1, "bfloat16") for rows in (256, *range(300, 340))]
    seconds = []
    for a in operands:
        ct.synchronize()
        start = time.perf_counter()
        y = ct.matmul(a, w, activation="gelu")
        ct.synchronize()
        seconds.append(time.perf_counter() - start)
        assert y.shape == (a.shape[0], 256)
        plan = ct.last_plan()
        assert plan is not None
        assert "dynamic_shapes" in plan.plan
    print(f"first {1e3 * seconds[0]:.1f} ms, other lengths {1e3 * statistics.median(seconds[1:]):.2f} ms")
    assert statistics.median(seconds[1:]) < seconds[0] / 4
