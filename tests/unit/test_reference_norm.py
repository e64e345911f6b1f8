"""Batch normalisation of the reference: statistics, shapes and errors; loops are in tests/oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct._bindings import constants
from cudnn_ct._bindings.enums import BatchNormMode
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.norm import (
    NORM_MIN_EPSILON,
    norm_axes,
    norm_parameter_dtype,
    norm_parameter_shape,
    norm_samples,
)

shapes = st.lists(st.integers(1, 3), min_size=0, max_size=5).map(lambda rest: (3, *rest))


def random(shape: tuple[int, ...], seed: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(as_dtype(dtype).numpy)


def parameters(x: np.ndarray, mode: str, flat: bool = False) -> tuple[np.ndarray, np.ndarray]:
    shape = norm_parameter_shape(x.shape, mode)
    shape = shape[1:2] if flat and mode == "spatial" and x.ndim > 1 else shape
    dtype = norm_parameter_dtype(x.dtype)
    return random(shape, 1, dtype), random(shape, 2, dtype)


def test_batch_norm_persistent_mode_equals_spatial() -> None:
    x = random((4, 3, 2), 0)
    scale, bias = parameters(x, "spatial")
    y = reference.batch_norm_training(x, scale, bias, mode=BatchNormMode.SPATIAL_PERSISTENT).y
    np.testing.assert_array_equal(y, reference.batch_norm_training(x, scale, bias).y)


def test_batch_norm_of_one_sample_has_that_mean() -> None:
    x = random((1, 3), 0)
    scale, bias = parameters(x, "spatial")
    y = reference.batch_norm_training(x, scale, bias)
    np.testing.assert_array_equal(y.y, bias)
    assert not reference.batch_norm_backward(x, x, scale).dx.any()
    says = r"unbiased variance, which one sample .* x of shape \(1, 3\) with mode='spatial' has one"
    with pytest.raises(ValueError, match=says):
        reference.batch_norm_training(x, scale, bias, running_mean=scale.copy(), running_var=scale.copy())


def test_batch_norm_keeps_running_statistics_when_a_call_is_rejected() -> None:
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
def test_batch_norm_rejects_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
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
def test_batch_norm_backward_rejects_bad_arguments(
    change: dict[str, Any], error: type[Exception], says: str
) -> None:
    good: dict[str, Any] = {"x": np.ones((2, 3, 5)), "dy": np.ones((2, 3, 5)), "scale": np.ones(3)}
    with pytest.raises(error, match=says):
        reference.batch_norm_backward(**(good | change))


def test_batch_norm_smallest_epsilon_matches_cudnn() -> None:
    assert constants.CUDNN_BN_MIN_EPSILON == NORM_MIN_EPSILON


def test_batch_norm_parameter_shapes() -> None:
    assert norm_axes((2, 3, 4, 5, 6, 7), "spatial") == (0, 2, 3, 4, 5)
    assert norm_samples((2, 3, 4), "per_activation") == 2
    assert [norm_parameter_dtype(dtype) for dtype in FLOATS] == ["float32", "float32", "float32", "float64"]
