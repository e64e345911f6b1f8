"""Properties of dropout, for all tiers."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.reference import dropout as reference
from tests.layers import FLOATS, Place, Tensor, compare, lying


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """An x without zeros, and a gradient of the same shape in another memory layout."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    shape = (draw(st.sampled_from((*shape[:1], 0))), *shape[1:])
    dtype = draw(st.sampled_from(FLOATS))
    values = np.random.default_rng(draw(st.integers(0, 99))).choice((-3, -2, -1, 1, 2, 3), shape)
    return lying(draw, shape, dtype, values), lying(draw, shape, dtype, values + 4)


def check_dropout(x: Tensor, dy: Tensor, probability: float, place: Place) -> None:
    """Kept elements are divided, dropped ones are 0, and the gradient does the same to dy."""
    state = ct.DropoutState(probability, seed=3)
    values, gradients = x.array(), dy.array()
    y, mask = ct.dropout(place(values), state)
    assert mask.like.is_dense
    kept = y.numpy() != 0
    compare(y, reference.dropout(values, kept, probability))
    dx = ct.dropout_backward(place(gradients), mask, state)
    compare(dx, reference.dropout(gradients, kept, probability))
