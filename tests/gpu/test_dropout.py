"""Dropout on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudnn_ct as ct
from tests.dropout_properties import check_dropout, tensors
from tests.layers import Tensor

from .conftest import place


@settings(max_examples=max(200, settings.default.max_examples))
@given(pair=tensors(), probability=st.sampled_from((0.5, 0.0, 0.25)))
def test_dropout_scales_kept_elements(pair: tuple[Tensor, Tensor], probability: float) -> None:
    check_dropout(*pair, probability, place)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout_drops_the_given_share(probability: float) -> None:
    x = ct.full((1000, 1000), 1.0)
    y = ct.dropout(x, ct.DropoutState(probability, seed=1)).y.numpy()
    assert abs((y == 0).mean() - probability) < 5e-3
    np.testing.assert_allclose(y[y != 0], 1 / (1 - probability), rtol=1e-6)
    assert abs((y == 0).mean(axis=0) - probability).max() < 0.1


@pytest.mark.parametrize("batch", [65_535, 65_537])
def test_batches_around_16_bits(batch: int) -> None:
    x, state = ct.full((batch, 3, 2, 2), 1.0), ct.DropoutState(0.5)
    y, mask = ct.dropout(x, state)
    np.testing.assert_array_equal(ct.dropout_backward(x, mask, state).numpy(), y.numpy())
