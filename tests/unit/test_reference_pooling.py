"""Pooling of the reference: dtypes, ties, NaN and errors; tests/oracle compares its values with loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_ct import reference
from cudnn_ct._bindings.enums import PoolingMode

MAXIMA = ("max", "max_deterministic")


def test_pool_backward_gives_the_gradient_to_the_first_of_equal_elements() -> None:
    x = np.ones((1, 1, 2, 2))
    dx = reference.pool_backward(np.array([[[[7.0]]]]), x, x[:, :, :1, :1], window=2)
    assert dx.tolist() == [[[[7, 0], [0, 0]]]]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("average", "average_inc_pad"),
        (PoolingMode.MAX, "max"),
        (PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING, "average_inc_pad"),
        (PoolingMode.AVERAGE_COUNT_EXCLUDE_PADDING, "average_exc_pad"),
    ],
)
def test_pool_accepts_several_names_of_modes(name: Any, mode: str) -> None:
    x = np.arange(5.0).reshape(1, 1, 5)
    by_name = reference.pool(x, window=3, padding=1, mode=name)
    np.testing.assert_array_equal(by_name, reference.pool(x, window=3, padding=1, mode=mode))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"window": 9}, ValueError, "window of 9 is larger than spatial axis 0: the input has 5 .* 0 = 5"),
        ({"window": (3, 3, 3)}, ValueError, r"window \(3, 3, 3\) has 3 axes; x of shape .* has 2 spatial"),
        ({"window": 0}, ValueError, "window must be between 1"),
        ({"window": "all"}, ValueError, "or 'global': got 'all'"),
        ({"window": 2.5}, TypeError, "window must be an int"),
        (
            {"padding": 2},
            ValueError,
            r"padding \(2, 2\) of spatial axis 0 must be smaller than the window, 2",
        ),
        ({"padding": ((0, 0), (0, 2))}, ValueError, r"padding \(0, 2\) of spatial axis 1"),
        ({"padding": -1}, ValueError, "padding must be between 0"),
        ({"stride": 0}, ValueError, "stride must be between 1"),
        ({"mode": "median"}, ValueError, "mode must be one of max, max_deterministic, average_inc_pad"),
        ({"propagate_nan": "ignore"}, TypeError, "propagate_nan must be True or False"),
        ({"x": np.ones((5, 5))}, ValueError, r"x has shape \(5, 5\); expected \(N, C"),
        ({"x": np.ones((1, 1, 0, 5))}, ValueError, "each spatial axis needs an element"),
        ({"x": np.ones((1, 1, 5, 5), int)}, TypeError, "pooling with mode='max' takes .* not int64"),
        ({"x": np.ones((1, 1, 5, 5), np.int8), "mode": "sum"}, TypeError, "mode='sum' takes .* not int8"),
        ({"beta": 1}, ValueError, "beta=1 needs out"),
        ({"out": np.ones((1, 1, 2, 3))}, ValueError, r"out has shape \(1, 1, 2, 3\)"),
    ],
)
def test_pool_rejects_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.pool(**({"x": np.ones((1, 1, 5, 5)), "window": 2} | change))


def test_pool_backward_rejects_bad_arguments() -> None:
    x, y = np.ones((1, 1, 6)), np.ones((1, 1, 3))
    with pytest.raises(
        ValueError, match=r"dy has shape \(1, 1, 6\); pooling x of shape .* gives \(1, 1, 3\)"
    ):
        reference.pool_backward(x, x, y, window=2)
    with pytest.raises(ValueError, match=r"y has shape \(1, 1, 6\)"):
        reference.pool_backward(y, x, x, window=2)
    with pytest.raises(TypeError, match="x is float64 and y is float32"):
        reference.pool_backward(y, x, y.astype(np.float32), window=2)


# --- the independent implementation ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MAXIMA)
def test_pool_of_int8_equals_pool_of_float64(mode: str) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (2, 3, 7, 5)).astype(np.int8)
    y = reference.pool(x, window=(3, 2), stride=2, padding=1, mode=mode)
    assert y.dtype == np.int8
    np.testing.assert_array_equal(
        y, reference.pool(x.astype(float), window=(3, 2), stride=2, padding=1, mode=mode)
    )


def test_pool_backward_skips_the_padding_when_the_maximum_is_0() -> None:
    x = np.full((1, 1, 3), -1.0)
    x[0, 0, 0] = 0
    y = reference.pool(x, window=2, stride=1, padding=1)
    dx = reference.pool_backward(x=x, y=y, dy=np.ones_like(y), window=2, stride=1, padding=1)
    np.testing.assert_array_equal(dx, [[[2, 1, 1]]])
