"""Activations of the reference: modes, NaN, corners and errors; loops are in tests/oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_ct import reference
from cudnn_ct._bindings.enums import ActivationMode
from cudnn_ct.shapes.activation import ACTIVATION_MODES, activation_spec


def test_swish_has_slope_1_by_default() -> None:
    x = np.linspace(-3, 3, 7)
    plain = reference.activation(x, mode="swish")
    np.testing.assert_allclose(plain, x / (1 + np.exp(-x)), rtol=1e-14)
    np.testing.assert_array_equal(plain, reference.activation(x, mode="swish", coefficient=1))
    assert activation_spec("swish", 0).coefficient == 1
    images, one = x.reshape(1, 1, 7), np.ones((1, 1, 1))
    for coefficient in (0, 1.5):
        fused = reference.conv_bias_activation(images, one, None, activation="swish", coefficient=coefficient)
        np.testing.assert_array_equal(fused.ravel(), plain)


@pytest.mark.parametrize("mode", ActivationMode)
def test_activation_accepts_enums(mode: ActivationMode) -> None:
    x = np.linspace(-2, 2, 5)
    expected = reference.activation(x, mode=mode.name.lower(), coefficient=1)
    np.testing.assert_array_equal(reference.activation(x, mode=mode, coefficient=1), expected)


@pytest.mark.parametrize("mode", ACTIVATION_MODES)
def test_activation_propagates_nan_unless_relu_may_drop_it(mode: str) -> None:
    x = np.array([np.nan, 1.0])
    assert np.isnan(reference.activation(x, mode=mode, coefficient=2)).tolist() == [True, False]
    lost = reference.activation(x, mode=mode, coefficient=2, propagate_nan=False)
    assert np.isnan(lost[0]) == (not mode.endswith("relu"))
    assert lost[0] == 0 or not mode.endswith("relu")


@pytest.mark.parametrize(
    ("mode", "bend", "slope"),
    [("relu", 0, 0), ("clipped_relu", 0, 0), ("clipped_relu", 1.5, 0), ("elu", 0, 1)],
)
def test_activation_backward_has_the_slope_of_cudnn_at_corners(mode: str, bend: float, slope: float) -> None:
    x = np.array([bend], float)
    y = reference.activation(x, mode=mode, coefficient=1.5)
    assert reference.activation_backward(np.ones(1), x, y, mode=mode, coefficient=1.5).item() == slope


def test_activation_in_place_scales_and_adds() -> None:
    x = np.array([-1.0, 2.0])
    assert reference.activation(x, alpha=3, beta=1, out=x) is x
    assert x.tolist() == [-1, 8]
    dy = np.array([1.0, 1.0])
    assert reference.activation_backward(dy, x, x, alpha=2, out=dy) is dy
    assert dy.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"mode": "gelu"}, ValueError, "mode must be one of identity, relu, .* swish: got 'gelu'"),
        ({"coefficient": "high"}, TypeError, "coefficient must be a number: got 'high'"),
        ({"propagate_nan": "keep"}, TypeError, "propagate_nan must be True or False"),
        ({"x": np.ones(2, int)}, TypeError, "an activation takes .* not int64"),
        ({"beta": 1}, ValueError, "beta=1 needs out"),
        ({"out": np.ones(3)}, ValueError, r"out has shape \(3,\)"),
    ],
)
def test_activation_rejects_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.activation(**({"x": np.ones(2)} | change))


def test_activation_backward_rejects_bad_arguments() -> None:
    x = np.ones(2)
    with pytest.raises(ValueError, match=r"dy has shape \(3,\); x has \(2,\)"):
        reference.activation_backward(np.ones(3), x, x)
    with pytest.raises(TypeError, match="x is float64 and y is float32"):
        reference.activation_backward(x, x, x.astype(np.float32))
