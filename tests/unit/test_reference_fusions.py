"""The reference of convolutions fused with a batch normalisation, against its operations one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_ct import reference as r

GEOMETRY: dict[str, Any] = {"padding": 1, "stride": 2}
RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 8, 7, 6)).astype(np.float16)
W = RNG.standard_normal((4, 8, 3, 3)).astype(np.float16)
DY = RNG.standard_normal((3, 4, 4, 3)).astype(np.float16)
SCALE, BIAS = (RNG.uniform(0.5, 2, 8).astype(np.float32) * sign for sign in (-1, 1))


def wide(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array, np.float64)


def near(got: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(wide(got), wide(wanted), rtol=0, atol=tolerance * np.abs(wanted).max())


def channels(array: Any) -> np.ndarray[Any, Any]:
    return wide(array).reshape(1, -1, 1, 1)


def test_conv_scale_bias_activation_is_a_convolution_and_a_batch_norm() -> None:
    x, w = X.astype(np.float32), W.astype(np.float32)
    mean, var = (RNG.uniform(0.5, 2, 4) for _ in range(2))
    scale, bias = SCALE[:4], BIAS[:4]
    factor = scale / np.sqrt(var + 1e-3)
    got = r.conv_scale_bias_activation(
        x, w, factor.astype(np.float32), (bias - mean * factor).astype(np.float32), **GEOMETRY
    )
    y = r.conv(wide(x), wide(w), **GEOMETRY)
    normed = r.batch_norm_inference(y, wide(scale), wide(bias), mean, var, epsilon=1e-3)
    near(got, np.maximum(normed, 0))


@pytest.mark.parametrize("eq_dtype", ["float16", "float32"])
def test_statistics_and_finalize_are_a_batch_norm_in_training(eq_dtype: str) -> None:
    y, sums, squares = r.conv_batch_norm_statistics(X, W, **GEOMETRY)
    exact = r.conv(wide(X), wide(W), **GEOMETRY)
    near(y, exact, 1e-3)
    running = [RNG.uniform(0.5, 2, 4) for _ in range(2)]
    scale, bias = wide(SCALE[:4]), wide(BIAS[:4])
    single: Any = [array.astype(np.float32) for array in (scale, bias, *running)]
    got = r.batch_norm_finalize(sums, squares, *single, exact.size // 4, momentum=0.3, eq_dtype=eq_dtype)
    wanted = r.batch_norm_training(
        exact, scale, bias, running_mean=running[0], running_var=running[1], momentum=0.3
    )
    near(got.mean, wanted.mean.reshape(-1))
    near(got.invstd, wanted.invstd.reshape(-1))
    near(got.running_mean, running[0])  # which were updated
    near(got.running_var, running[1])
    tolerance = 2e-3 if eq_dtype == "float16" else 1e-5
    near(exact * channels(got.eq_scale) + channels(got.eq_bias), wanted.y, tolerance)


def test_data_gradient_is_that_of_a_relu_and_a_batch_norm() -> None:
    x, scale, bias = wide(X), wide(SCALE), wide(BIAS)
    step = r.batch_norm_training(x, scale, bias, activation="relu")
    statistics: Any = [one.astype(np.float32).reshape(-1) for one in (step.mean, step.invstd)]
    got = r.conv_backward_data_relu_batch_norm(DY, W, X, *statistics, SCALE, BIAS, **GEOMETRY)
    slope = r.conv_backward_data(wide(DY), wide(W), x.shape, **GEOMETRY)
    wanted = r.batch_norm_backward(
        slope, x, scale, mean=step.mean, invstd=step.invstd, activation="relu", y=step.y
    )
    near(got.dz, wanted.dz, 1e-3)
    near(got.dscale, wanted.dscale.reshape(-1))
    near(got.dbias, wanted.dbias.reshape(-1))
    dx = wide(wanted.dz) * channels(got.eq_dz_scale) + x * channels(got.eq_x_scale) + channels(got.eq_bias)
    near(dx, wanted.dx)


def test_prologue_is_a_scaled_relu_before_the_convolution() -> None:
    scale, bias = SCALE.astype(np.float16), BIAS.astype(np.float16)
    data = np.maximum(wide(X) * channels(scale) + channels(bias), 0).astype(np.float16)
    y = r.conv_batch_norm_statistics(X, W, scale=scale, bias=bias, **GEOMETRY)
    near(y.y, r.conv(data, W, **GEOMETRY), 1e-6)
    near(y.square_sums, (r.conv(wide(data), wide(W), **GEOMETRY) ** 2).sum((0, 2, 3)))
    dw = r.conv_backward_filter_scale_bias_relu(DY, X, scale, bias, W.shape, **GEOMETRY)
    near(dw, r.conv_backward_filter(DY, data, W.shape, **GEOMETRY), 1e-6)
