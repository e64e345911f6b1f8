"""Calls that are replayed on other memory, on the fakes: limits, leaks, and random sequences of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from tests.both.replays import values

from .cudnn import FakeCudnn
from .moved import runs_of

LAUNCH = "cuGraphLaunch"


@pytest.fixture(autouse=True)
def _soon(fake: FakeCudnn) -> Iterator[None]:
    with testing.replay_after(1):
        yield
    gc.collect()
    ct.empty_cache()


def relu_on_new_memory(seed: int) -> tuple[Any, Any]:
    x, y = ct.asarray(values(seed)), ct.zeros(values(0).shape)
    ct.activation(x, out=y)
    np.testing.assert_array_equal(y.numpy(), np.maximum(values(seed), 0))
    return x, y


@pytest.mark.parametrize("seed", range(6))
def test_random_sequences_have_the_results_and_the_memory_of_calls_without_replays(seed: int) -> None:
    expected, found, _ = runs_of(seed)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert one == other, f"python -m tests.fake.moved {seed} 1: step {number // 2}"
