"""Batch normalisation on a GPU against the reference, differences, and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.norm import norm_parameter_dtype, norm_parameter_shape
from tests.layers import TOLERANCE, compare


def random(shape: tuple[int, ...], seed: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(as_dtype(dtype).numpy)


def parameters(shape: tuple[int, ...], mode: str, dtype: str, count: int) -> list[np.ndarray]:
    """Parameters from 0.5 to 2, which do for variances too."""
    rng, kept = np.random.default_rng(9), norm_parameter_shape(shape, mode)
    wanted = as_dtype(norm_parameter_dtype(dtype)).numpy
    return [rng.uniform(0.5, 2, kept).astype(wanted) for _ in range(count)]


def check_step(
    shape: tuple[int, ...], dtype: str, layout: str | None, mode: str = "spatial", **options: Any
) -> None:
    """A training step with running statistics, its gradient, and inference by what ran along."""
    x, dy = random(shape, 0, dtype), random(shape, 1, dtype)
    scale, bias, mean, var = parameters(shape, mode, dtype, 4)
    host = {"running_mean": mean.copy(), "running_var": var.copy()}
    wanted = ct.reference.batch_norm_training(x, scale, bias, mode=mode, **options, **host)
    x_, dy_ = (ct.asarray(array, layout=layout) for array in (x, dy))
    scale_, bias_, mean_, var_ = map(ct.asarray, (scale, bias, mean, var))
    running = {"running_mean": mean_, "running_var": var_}
    step = ct.batch_norm_training(x_, scale_, bias_, mode=mode, **options, **running)
    print(shape, dtype, layout, mode, ct.last_plan())
    tolerance = TOLERANCE[as_dtype(dtype).name]
    compare(step.y, wanted.y, tolerance=max(tolerance, 1e-5) if dtype != "float64" else tolerance)
    # Sums of many terms, in the dtype of the parameters.
    sums = 1e-10 if dtype == "float64" else 1e-4
    for got, expected in ((step.mean, wanted.mean), (step.invstd, wanted.invstd)):
        compare(got, expected, tolerance=sums)
    for name, array in running.items():
        compare(array, host[name], tolerance=sums)
    relu = {"activation": "relu", "y": wanted.y} if options.get("activation") else {}
    gradients = ct.reference.batch_norm_backward(dy, x, scale, wanted.mean, wanted.invstd, mode=mode, **relu)
    if relu:
        relu["y"] = ct.asarray(wanted.y, layout=layout)
    got = ct.batch_norm_backward(dy_, x_, scale_, step.mean, step.invstd, mode=mode, **relu)
    print(ct.last_plan())
    compare(got.dx, gradients.dx, tolerance=max(tolerance, sums))
    compare(got.dscale, gradients.dscale, tolerance=sums)
    compare(got.dbias, gradients.dbias, tolerance=sums)
    compare(got.dz, gradients.dz)
    y = ct.batch_norm_inference(x_, scale_, bias_, mean_, var_, mode=mode)
    print(ct.last_plan())
    expected = ct.reference.batch_norm_inference(x, scale, bias, *host.values(), mode=mode)
    compare(y, expected, tolerance=max(tolerance, sums))
    statistics = host.values()
    wanted = ct.reference.batch_norm_inference_backward(dy, x, scale, *statistics, mode=mode)
    got = ct.batch_norm_inference_backward(dy_, x_, scale_, mean_, var_, mode=mode)
    compare(got.dx, wanted.dx, tolerance=max(tolerance, sums))
    compare(got.dscale, wanted.dscale, tolerance=sums)
    compare(got.dbias, wanted.dbias, tolerance=sums)


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_batch_norm_equals_reference_at_the_size_of_a_network(
    dtype: str, layout: str, mode: str, activation: str | None
) -> None:
    """Large enough for the kernels that real layers get."""
    check_step((8, 64, 14, 14), dtype, layout, mode, activation=activation)


@pytest.mark.parametrize("batch", [65_535, 65_536, 65_537])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_batch_norm_equals_reference_when_the_batch_is_around_65536(batch: int, layout: str) -> None:
    check_step((batch, 3, 2, 2), "float32", layout)


@pytest.mark.parametrize("batch", [65_536, 131_071, 262_137, 880_802])
@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
def test_batch_norm_equals_reference_when_the_batch_exceeds_one_call(batch: int, mode: str) -> None:
    """Batches beyond what one or another of cuDNN's calls takes."""
    check_step((batch, 5), "float32", None, mode)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_batch_norm_equals_reference_with_many_channels(layout: str) -> None:
    check_step((2, 66_000, 3, 3), "float32", layout)
    check_step((4, 66_000, 2, 2), "float32", layout, "per_activation")


def test_batch_norm_overflow_detected_returns_after_the_work() -> None:
    """Once the work is over there is an answer; which one, only cuDNN knows."""
    x = ct.asarray(random((2, 3, 4, 4), 0))
    ct.batch_norm_training(x, ct.full(3, 1.0), ct.zeros(3))
    assert ct.batch_norm_overflow_detected() in (True, False, None)
    assert ct.batch_norm_overflow_detected(wait=True) in (True, False)


def test_batch_norm_keeps_nan_in_its_channel() -> None:
    x = random((4, 3, 5, 5), 0)
    x[0, 1, 2, 2] = np.nan
    step = ct.batch_norm_training(ct.asarray(x), ct.full(3, 1.0), ct.zeros(3))
    y = step.y.numpy()
    assert np.isnan(y[:, 1]).all()
    expected = ct.reference.batch_norm_training(x, np.ones(3, np.float32), np.zeros(3, np.float32)).y
    np.testing.assert_allclose(y[:, [0, 2]], expected[:, [0, 2]], atol=1e-5)
