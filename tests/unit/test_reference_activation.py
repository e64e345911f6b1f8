"""Activations against the math module, against torch where it is installed, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct._bindings.enums import ActivationMode
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.activation import ACTIVATION_MODES, activation_spec
from cudnn_ct.shapes.checks import FLOATS
from tests.gradients import assert_gradient

TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}
BENT = ("relu", "clipped_relu", "elu")

ONE: dict[str, Callable[[float, float], float]] = {
    "identity": lambda v, c: v,
    "relu": lambda v, c: v if v > 0 else 0,
    "clipped_relu": lambda v, c: 0 if v < 0 else min(v, c),
    "sigmoid": lambda v, c: 1 / (1 + math.exp(-v)),
    "tanh": lambda v, c: math.tanh(v),
    "elu": lambda v, c: v if v > 0 else c * (math.exp(v) - 1),
    "swish": lambda v, c: v / (1 + math.exp(-c * v)),
}

values = st.lists(st.floats(-8, 8), max_size=12).map(lambda some: [-2.5, 0.75, *some])


@pytest.mark.parametrize("mode", ACTIVATION_MODES)
@given(values=values, dtype=st.sampled_from(FLOATS), coefficient=st.sampled_from((1.5, 0.5, 2)))
def test_an_element_at_a_time(values: list[float], mode: str, dtype: str, coefficient: float) -> None:
    x = np.array(values).astype(as_dtype(dtype).numpy)
    y = reference.activation(x, mode=mode, coefficient=coefficient)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    expected = [ONE[mode](float(v), coefficient) for v in x]
    np.testing.assert_allclose(y.astype(float), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("mode", ACTIVATION_MODES)
@given(values=values, coefficient=st.sampled_from((1.5, 0, 0.5)))
def test_gradients_by_differences(values: list[float], mode: str, coefficient: float) -> None:
    smooth = [v for v in values if mode not in BENT or min(abs(v), abs(v - coefficient)) > 1e-3]
    x = np.array(smooth)
    dy = np.random.default_rng(0).standard_normal(x.shape)
    y = reference.activation(x, mode=mode, coefficient=coefficient)
    dx = reference.activation_backward(dy, x, y, mode=mode, coefficient=coefficient)
    assert_gradient(dx, lambda v: reference.activation(v, mode=mode, coefficient=coefficient), x, dy)


@pytest.mark.parametrize("mode", ACTIVATION_MODES)
def test_against_torch(mode: str) -> None:
    torch = pytest.importorskip("torch")
    curves = {
        "identity": lambda v: 1 * v,
        "relu": torch.relu,
        "clipped_relu": lambda v: torch.nn.functional.hardtanh(v, 0, 1.5),
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "elu": lambda v: torch.nn.functional.elu(v, 1.5),
        "swish": lambda v: v * torch.sigmoid(1.5 * v),
    }
    x = torch.linspace(-3, 3, 25, dtype=torch.float64, requires_grad=True)  # both bends are among them
    y = curves[mode](x)
    ours = reference.activation(x.detach().numpy(), mode=mode, coefficient=1.5)
    np.testing.assert_allclose(ours, y.detach().numpy(), rtol=0, atol=1e-14)
    y.backward(torch.arange(25, dtype=torch.float64))
    dx = reference.activation_backward(np.arange(25.0), x.detach().numpy(), ours, mode=mode, coefficient=1.5)
    same = (
        np.arange(25) != 12 if mode == "elu" else np.full(25, True)
    )  # at 0, torch's slope of elu is coefficient
    np.testing.assert_allclose(dx[same], x.grad.numpy()[same], rtol=0, atol=1e-13)


def test_swish_is_that_of_a_convolution_unless_told() -> None:
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
def test_modes_by_enum(mode: ActivationMode) -> None:
    x = np.linspace(-2, 2, 5)
    expected = reference.activation(x, mode=mode.name.lower(), coefficient=1)
    np.testing.assert_array_equal(reference.activation(x, mode=mode, coefficient=1), expected)


@pytest.mark.parametrize("mode", ACTIVATION_MODES)
def test_nan_is_told_unless_a_relu_may_lose_it(mode: str) -> None:
    x = np.array([np.nan, 1.0])
    assert np.isnan(reference.activation(x, mode=mode, coefficient=2)).tolist() == [True, False]
    lost = reference.activation(x, mode=mode, coefficient=2, propagate_nan=False)
    assert np.isnan(lost[0]) == (not mode.endswith("relu"))
    assert lost[0] == 0 or not mode.endswith("relu")


@pytest.mark.parametrize("mode", ACTIVATION_MODES)
def test_the_ends_of_the_scale_are_silent(mode: str) -> None:
    x = np.array([-np.inf, -1e300, 1e300, np.inf])
    y = reference.activation(x, mode=mode, coefficient=1)
    ends = {"identity": x, "relu": [0, 0, 1e300, np.inf], "clipped_relu": [0, 0, 1, 1],
            "sigmoid": [0, 0, 1, 1], "tanh": [-1, -1, 1, 1], "elu": [-1, -1, 1e300, np.inf],
            "swish": [np.nan, 0, 1e300, np.inf]}  # fmt: skip
    np.testing.assert_array_equal(y, ends[mode])
    reference.activation_backward(x, x, y, mode=mode, coefficient=1)


@pytest.mark.parametrize(
    ("mode", "bend", "slope"),
    [("relu", 0, 0), ("clipped_relu", 0, 0), ("clipped_relu", 1.5, 0), ("elu", 0, 1)],
)
def test_which_slope_a_bend_has(mode: str, bend: float, slope: float) -> None:
    x = np.array([bend], float)
    y = reference.activation(x, mode=mode, coefficient=1.5)
    assert reference.activation_backward(np.ones(1), x, y, mode=mode, coefficient=1.5).item() == slope


def test_elu_is_relu_when_its_coef_is_0() -> None:
    x = np.array([-1.0, -0.0, 0.0, 1.0, np.nan])
    for propagate in (True, False):  # which elu does not look at
        np.testing.assert_array_equal(
            reference.activation(x, mode="elu", propagate_nan=propagate), reference.activation(x)
        )
    got = reference.activation_backward(np.ones(5), x, x, mode="elu")
    np.testing.assert_array_equal(got, reference.activation_backward(np.ones(5), x, x))


def test_what_does_not_pass_is_zero_whatever_comes() -> None:
    x, dy = np.array([-1.0, 0.0, 1.0]), np.array([np.inf, np.nan, np.inf])
    dx = reference.activation_backward(dy, x, np.maximum(x, 0))
    assert dx.tolist() == [0, 0, np.inf]


def test_in_place_and_scaled() -> None:
    x = np.array([-1.0, 2.0])
    assert reference.activation(x, alpha=3, beta=1, out=x) is x
    assert x.tolist() == [-1, 8]
    dy = np.array([1.0, 1.0])
    assert reference.activation_backward(dy, x, x, alpha=2, out=dy) is dy
    assert dy.tolist() == [0, 2]


def test_nothing_in_nothing_out() -> None:
    x = np.ones((0, 3), np.float16)
    assert reference.activation(x).shape == (0, 3)
    assert reference.activation_backward(x, x, x).dtype == np.float16


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
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.activation(**({"x": np.ones(2)} | change))


def test_gradients_that_do_not_fit_are_refused() -> None:
    x = np.ones(2)
    with pytest.raises(ValueError, match=r"dy has shape \(3,\); x has \(2,\)"):
        reference.activation_backward(np.ones(3), x, x)
    with pytest.raises(TypeError, match="x is float64 and y is float32"):
        reference.activation_backward(x, x, x.astype(np.float32))
