"""Local response normalisation of the reference: windows, limits and errors; loops are in tests/oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct._bindings import constants
from cudnn_ct.shapes.lrn import LRN_MAX_CHANNELS, check_lrn_factors

shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3).flatmap(
    lambda size: st.tuples(st.integers(1, 2), st.integers(1, 7), *map(st.just, size))
)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"n": 0}, ValueError, "n must be between 1 and 16: got 0"),
        ({"n": 17}, ValueError, "n must be between 1 and 16: got 17"),
        ({"n": 2.0}, TypeError, "n must be an int: got 2.0"),
        ({"k": 0}, ValueError, "k must be at least 1e-05: got 0"),
        ({"lrn_beta": 0}, ValueError, "lrn_beta must be at least 0.01: got 0"),
        ({"lrn_alpha": "1"}, TypeError, "lrn_alpha must be a number"),
        ({"x": np.ones((2, 3))}, ValueError, r"x has shape \(2, 3\); expected \(N, C"),
        ({"x": np.ones((2, 3, 4), int)}, TypeError, "lrn takes .* not int64"),
        ({"beta": 1}, ValueError, "beta=1 needs out"),
    ],
)
def test_lrn_rejects_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.lrn(**({"x": np.ones((2, 3, 4))} | change))


def test_lrn_backward_rejects_bad_arguments() -> None:
    x = np.ones((1, 2, 3))
    with pytest.raises(ValueError, match=r"dy has shape \(1, 2, 1\); x has \(1, 2, 3\)"):
        reference.lrn_backward(x[..., :1], x, x)
    with pytest.raises(TypeError, match="x is float64 and y is float32"):
        reference.lrn_backward(x, x, x.astype(np.float32))


def test_lrn_limits_match_cudnn() -> None:
    assert LRN_MAX_CHANNELS == constants.CUDNN_LRN_MAX_N
    least = (0, constants.CUDNN_LRN_MIN_BETA, constants.CUDNN_LRN_MIN_K)
    assert check_lrn_factors(*least) == least
