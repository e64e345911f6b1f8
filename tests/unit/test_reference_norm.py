"""Batch normalisation against loops over channels, against torch where it is installed, and its gradients."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct._bindings import constants
from cudnn_ct._bindings.enums import BatchNormMode
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.norm import (
    NORM_MIN_EPSILON,
    NORM_MODES,
    norm_axes,
    norm_parameter_dtype,
    norm_parameter_shape,
    norm_samples,
)
from tests.gradients import assert_gradient

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-6, "float64": 1e-12}

shapes = st.lists(st.integers(1, 3), min_size=0, max_size=5).map(lambda rest: (3, *rest))
modes = st.sampled_from(NORM_MODES)


def random(shape: tuple[int, ...], seed: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(as_dtype(dtype).numpy)


def parameters(x: np.ndarray, mode: str, flat: bool = False) -> tuple[np.ndarray, np.ndarray]:
    shape = norm_parameter_shape(x.shape, mode)
    shape = shape[1:2] if flat and mode == "spatial" and x.ndim > 1 else shape
    dtype = norm_parameter_dtype(x.dtype)
    return random(shape, 1, dtype), random(shape, 2, dtype)


def groups(shape: tuple[int, ...], mode: str) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """For each parameter, the elements of x that it is for."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for index in np.ndindex(*shape):
        own = (0, *index[1:]) if mode == "per_activation" else (0, *index[1:2], *[0] * (len(shape) - 2))
        found.setdefault(own, []).append(index)
    return found


@given(shape=shapes, mode=modes, dtype=st.sampled_from(FLOATS), flat=st.booleans())
def test_a_parameter_at_a_time(shape: tuple[int, ...], mode: str, dtype: str, flat: bool) -> None:
    x = random(shape, 0, dtype)
    scale, bias = parameters(x, mode, flat)
    mean0, var0 = np.full_like(scale, 3), np.full_like(scale, 5)
    y, mean, invstd = reference.batch_norm_training(
        x, scale, bias, mode=mode, epsilon=1e-3, running_mean=mean0, running_var=var0, momentum=0.25
    )
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    kept = norm_parameter_shape(shape, mode)
    assert mean.shape == invstd.shape == kept
    assert mean.dtype == invstd.dtype == scale.dtype
    tolerance = TOLERANCE[dtype]
    close = {"rtol": tolerance, "atol": tolerance}
    for own, elements in groups(shape, mode).items():
        values = [float(x[e]) for e in elements]
        center, var = statistics.fmean(values), statistics.pvariance(values)
        factor, shift = (float(p.reshape(kept)[own]) for p in (scale, bias))
        np.testing.assert_allclose(float(mean[own]), center, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(float(invstd[own]), (var + 1e-3) ** -0.5, rtol=1e-6)
        np.testing.assert_allclose(float(mean0.reshape(kept)[own]), 0.75 * 3 + 0.25 * center, rtol=1e-6)
        unbiased = statistics.variance(values)
        np.testing.assert_allclose(float(var0.reshape(kept)[own]), 0.75 * 5 + 0.25 * unbiased, rtol=1e-6)
        for element, value in zip(elements, values, strict=True):
            expected = factor * (value - center) / (var + 1e-3) ** 0.5 + shift
            np.testing.assert_allclose(float(y[element]), expected, **close)


@given(shape=shapes, mode=modes, dtype=st.sampled_from(FLOATS), flat=st.booleans())
def test_inference_by_the_statistics_of_the_batch_is_training(
    shape: tuple[int, ...], mode: str, dtype: str, flat: bool
) -> None:
    x = random(shape, 0, dtype)
    scale, bias = parameters(x, mode, flat)
    y, mean, invstd = reference.batch_norm_training(x, scale, bias, mode=mode, epsilon=0.5)
    mean, var = (a.reshape(scale.shape) for a in (mean, (1 / invstd**2 - 0.5).astype(scale.dtype)))
    inferred = reference.batch_norm_inference(x, scale, bias, mean, var, mode=mode, epsilon=0.5)
    tolerance = max(TOLERANCE[dtype], 1e-5) if dtype != "float64" else 1e-12
    np.testing.assert_allclose(inferred.astype(float), y.astype(float), rtol=tolerance, atol=tolerance)


@given(shape=shapes, mode=modes, relu=st.booleans(), residual=st.booleans(), saved=st.booleans())
def test_gradients_by_differences(
    shape: tuple[int, ...], mode: str, relu: bool, residual: bool, saved: bool
) -> None:
    x, dy, z = random(shape, 0), random(shape, 3), random(shape, 4) if residual else None
    scale, bias = parameters(x, mode)
    activation = "relu" if relu else None
    options: dict[str, Any] = {"mode": mode, "epsilon": 0.1, "activation": activation}

    def forward(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, z: Any) -> np.ndarray:
        return reference.batch_norm_training(x, scale, bias, **options, z=z).y

    y, mean, invstd = reference.batch_norm_training(x, scale, bias, **options, z=z)
    assume(not relu or np.abs(y[y > 0]).min(initial=1) > 1e-3)  # too near the bend for differences
    statistics_ = (mean, invstd) if saved else ()
    gradients = reference.batch_norm_backward(dy, x, scale, *statistics_, **options, y=y if relu else None)
    assert_gradient(gradients.dx, lambda v: forward(v, scale, bias, z), x, dy, 1e-6)
    assert_gradient(gradients.dscale, lambda v: forward(x, v, bias, z), scale, dy, 1e-6)
    assert_gradient(gradients.dbias, lambda v: forward(x, scale, v, z), bias, dy, 1e-6)
    assert (gradients.dz is None) == (not relu)
    if relu and residual:
        assert_gradient(gradients.dz, lambda v: forward(x, scale, bias, v), z, dy, 1e-6)


@pytest.mark.parametrize("mode", NORM_MODES)
def test_gradients_of_inference_by_finite_differences(mode: str) -> None:
    x, dy = random((3, 2, 4), 0), random((3, 2, 4), 1)
    shape = (1, 2, 4) if mode == "per_activation" else (2,)
    scale, bias, mean = (random(shape, seed) for seed in (2, 3, 4))
    options: dict[str, Any] = {"mode": mode, "epsilon": 0.1}
    statistics_ = (mean, random(shape, 5) ** 2)

    def forward(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return reference.batch_norm_inference(x, scale, bias, *statistics_, **options)

    found = reference.batch_norm_inference_backward(dy, x, scale, *statistics_, **options)
    assert_gradient(found.dx, lambda v: forward(v, scale, bias), x, dy, 1e-6)
    assert_gradient(found.dscale, lambda v: forward(x, v, bias), scale, dy, 1e-6)
    assert_gradient(found.dbias, lambda v: forward(x, scale, v), bias, dy, 1e-6)
    assert found.dz is None


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_against_torch(rank: int, relu: bool) -> None:
    torch = pytest.importorskip("torch")
    shape = (4, 3, 5, 2, 3)[:rank]
    x, z = (torch.from_numpy(random(shape, seed)).requires_grad_() for seed in (0, 1))
    scale, bias = (torch.from_numpy(random((3,), seed)).requires_grad_() for seed in (2, 3))
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    y = torch.nn.functional.batch_norm(x, mean, var, scale, bias, training=True, momentum=0.3, eps=1e-2)
    y = torch.relu(y + z) if relu else y
    dy = torch.from_numpy(random(shape, 4))
    y.backward(dy)

    mean0, var0 = np.zeros(3), np.ones(3)
    activation = "relu" if relu else None
    ours = reference.batch_norm_training(
        *(t.detach().numpy() for t in (x, scale, bias)), z=z.detach().numpy() if relu else None,
        activation=activation, epsilon=1e-2, running_mean=mean0, running_var=var0, momentum=0.3,
    )  # fmt: skip
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(ours.y, y.detach().numpy(), **close)
    np.testing.assert_allclose(mean0, mean.numpy(), **close)
    np.testing.assert_allclose(var0, var.numpy(), **close)
    gradients = reference.batch_norm_backward(
        dy.numpy(), x.detach().numpy(), scale.detach().numpy(), ours.mean, ours.invstd,
        activation=activation, y=ours.y,
    )  # fmt: skip
    for got, tensor in zip(gradients, (x, scale, bias, z), strict=True):
        if got is not None:
            np.testing.assert_allclose(got, tensor.grad.numpy(), **close)


def test_results_scale_and_add() -> None:
    x, out = random((4, 3), 0), np.ones((4, 3))
    scale, bias = parameters(x, "spatial")
    plain = reference.batch_norm_training(x, scale, bias).y
    result = reference.batch_norm_training(x, scale, bias, alpha=2, beta=-1, out=out)
    assert result.y is out
    np.testing.assert_allclose(out, 2 * plain - 1, rtol=1e-13)
    dy = random((4, 3), 5)
    plain_gradients = reference.batch_norm_backward(dy, x, scale)
    wanted = 2 * plain_gradients.dx + dy
    scaled = reference.batch_norm_backward(dy, x, scale, alpha=2, beta=1, out=dy)
    assert scaled.dx is dy
    np.testing.assert_allclose(dy, wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(scaled.dscale, plain_gradients.dscale)


def test_gradients_have_the_shape_of_their_parameters() -> None:
    x = random((2, 3, 4), 0, "float16")
    for shape in ((3,), (1, 3, 1)):
        scale = np.ones(shape, np.float32)
        gradients = reference.batch_norm_backward(x, x, scale)
        assert gradients.dscale.shape == gradients.dbias.shape == shape
        assert gradients.dscale.dtype == np.float32


def test_the_persistent_mode_is_spatial() -> None:
    x = random((4, 3, 2), 0)
    scale, bias = parameters(x, "spatial")
    y = reference.batch_norm_training(x, scale, bias, mode=BatchNormMode.SPATIAL_PERSISTENT).y
    np.testing.assert_array_equal(y, reference.batch_norm_training(x, scale, bias).y)


@pytest.mark.parametrize("mode", NORM_MODES)
def test_one_axis_is_a_batch_of_numbers(mode: str) -> None:
    x = np.array([1.0, 3.0])
    y, mean, _ = reference.batch_norm_training(x, np.ones(1), np.zeros(1), mode=mode, epsilon=0)
    assert y.tolist() == [-1, 1]
    assert mean.tolist() == [2]


def test_one_sample_is_its_own_mean() -> None:
    x = random((1, 3), 0)
    scale, bias = parameters(x, "spatial")
    y = reference.batch_norm_training(x, scale, bias)
    np.testing.assert_array_equal(y.y, bias)
    assert not reference.batch_norm_backward(x, x, scale).dx.any()
    says = r"unbiased variance, which one sample .* x of shape \(1, 3\) with mode='spatial' has one"
    with pytest.raises(ValueError, match=says):
        reference.batch_norm_training(x, scale, bias, running_mean=scale.copy(), running_var=scale.copy())


@pytest.mark.parametrize("mode", NORM_MODES)
def test_an_empty_batch_has_no_mean(mode: str) -> None:
    x = np.ones((0, 3, 2), np.float32)
    scale, bias = parameters(x, mode)
    mean0, var0 = np.full_like(scale, 3), np.full_like(scale, 5)
    y, mean, invstd = reference.batch_norm_training(
        x, scale, bias, mode=mode, running_mean=mean0, running_var=var0
    )
    assert y.shape == x.shape
    assert np.isnan(mean).all()
    assert np.isnan(invstd).all()
    assert (mean0 == 3).all()
    assert (var0 == 5).all()
    gradients = reference.batch_norm_backward(x, x, scale, mode=mode)
    assert gradients.dx.shape == x.shape
    assert not gradients.dscale.any()
    assert not gradients.dbias.any()
    assert reference.batch_norm_inference(x, scale, bias, mean0, var0, mode=mode).shape == x.shape


def test_what_is_not_finite_stays_in_its_channel() -> None:
    x = np.array([[1.0, np.inf, np.nan], [3.0, 1.0, 1.0]])
    y = reference.batch_norm_training(x, np.zeros(3), np.ones(3)).y
    assert np.isnan(y).tolist() == [[False, True, True], [False, True, True]]


def test_a_refused_call_updates_nothing() -> None:
    x, one = random((4, 3), 0), np.ones(3)
    mean0, var0 = np.zeros(3), np.ones(3)
    with pytest.raises(ValueError, match="out has shape"):
        reference.batch_norm_training(x, one, one, running_mean=mean0, running_var=var0, out=np.ones(3))
    assert not mean0.any()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"scale": np.ones(4)}, ValueError, r"scale has shape \(4,\); x of .* needs \(1, 3, 1\) or \(3,\)"),
        ({"bias": np.ones(3), "mode": "per_activation"}, ValueError, r"needs \(1, 3, 5\)"),
        ({"bias": np.ones(3, np.float32)}, TypeError, "bias is float32; x of float64 needs float64"),
        ({"x": np.ones((2, 3, 5), np.float16)}, TypeError, "scale is float64; x of float16 needs float32"),
        ({"x": np.ones((2, 3, 5), int)}, TypeError, "batch normalisation takes .* not int64"),
        ({"x": np.ones((1,) * 7)}, ValueError, "batch normalisation takes 1 to 6 axes"),
        ({"epsilon": -1e-9}, ValueError, "epsilon must be at least 0 and finite: got -1e-09"),
        ({"epsilon": "small"}, TypeError, "epsilon must be a number"),
        ({"momentum": 1.5}, ValueError, "momentum must be between 0 and 1: got 1.5"),
        ({"mode": "layer"}, ValueError, "mode must be one of per_activation, spatial"),
        ({"activation": "tanh"}, ValueError, "activation must be one of relu: got 'tanh'"),
        ({"running_mean": np.ones(3)}, ValueError, "running_mean is given without running_var"),
        ({"running_var": np.ones(3)}, ValueError, "running_var is given without running_mean"),
        ({"running_mean": [1, 1, 1], "running_var": np.ones(3)}, TypeError, "running_mean is updated in pl"),
        ({"running_mean": np.ones(2), "running_var": np.ones(3)}, ValueError, "running_mean has shape"),
        ({"z": np.ones((2, 3, 1))}, ValueError, r"z has shape \(2, 3, 1\); x has \(2, 3, 5\)"),
        ({"z": np.ones((2, 3, 5), np.float32)}, TypeError, "x is float64 and z is float32"),
        ({"beta": 1}, ValueError, "beta=1 needs out"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    good: dict[str, Any] = {"x": np.ones((2, 3, 5)), "scale": np.ones(3), "bias": np.ones(3)}
    with pytest.raises(error, match=says):
        reference.batch_norm_training(**(good | change))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"mean": np.ones(3)}, ValueError, "mean and invstd must both be given"),
        ({"activation": "relu"}, ValueError, "activation='relu' needs y"),
        ({"activation": "relu", "y": np.ones((2, 3))}, ValueError, r"y has shape \(2, 3\)"),
        ({"dy": np.ones((2, 3))}, ValueError, r"dy has shape \(2, 3\); x has \(2, 3, 5\)"),
        ({"dy": np.ones((2, 3, 5), np.float32)}, TypeError, "x is float64 and dy is float32"),
        ({"mean": np.ones(3), "invstd": np.ones(2)}, ValueError, "invstd has shape"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(
    change: dict[str, Any], error: type[Exception], says: str
) -> None:
    good: dict[str, Any] = {"x": np.ones((2, 3, 5)), "dy": np.ones((2, 3, 5)), "scale": np.ones(3)}
    with pytest.raises(error, match=says):
        reference.batch_norm_backward(**(good | change))


def test_the_least_epsilon_is_that_of_cudnn() -> None:
    assert constants.CUDNN_BN_MIN_EPSILON == NORM_MIN_EPSILON


def test_the_rules_of_shapes() -> None:
    assert norm_axes((2, 3, 4, 5, 6, 7), "spatial") == (0, 2, 3, 4, 5)
    assert norm_samples((2, 3, 4), "per_activation") == 2
    assert [norm_parameter_dtype(dtype) for dtype in FLOATS] == ["float32", "float32", "float32", "float64"]
