"""Batch normalisation on a GPU against the reference, at the sizes of networks and beyond limits."""

from __future__ import annotations

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.shapes.norm import norm_parameter_dtype, norm_parameter_shape
from tests.layers import LayerCase, Tensor, check_layer

from .conftest import place


def check_steps(
    shape: tuple[int, ...], dtype: str, layout: str, mode: str = "spatial", activation: str | None = None
) -> None:
    """A training step with running statistics, inference, and the gradients of both."""
    kept, wide = norm_parameter_shape(shape, mode), norm_parameter_dtype(dtype)
    x, dy = (Tensor(shape, dtype, "floats", layout, seed=seed) for seed in range(2))
    scale, bias, mean, var = (Tensor(kept, wide, "positive", seed=seed) for seed in range(4))
    forward = {"mode": mode, "activation": activation}
    step = ct.reference.batch_norm_training(x.array(), scale.array(), bias.array(), **forward)
    saved = (Tensor(kept, wide, values) for values in (step.mean, step.invstd))
    y = {"y": Tensor(shape, dtype, step.y, layout)} if activation else {}
    parameters = (x, scale, bias)
    for case in (
        LayerCase("batch_norm_training", parameters, forward, {"running_mean": mean, "running_var": var}),
        LayerCase("batch_norm_backward", (dy, x, scale, *saved), forward, y),
        LayerCase("batch_norm_inference", (*parameters, mean, var), {"mode": mode}),
        LayerCase("batch_norm_inference_backward", (dy, x, scale, mean, var), {"mode": mode}),
    ):
        print(case.operation)
        # Most results are sums of many terms, in the dtype of the parameters; y of a training step is not.
        sums, elements = (1e-10, None) if dtype == "float64" else (1e-4, 1e-5)
        check_layer(case, place, tolerance=sums, y=elements)
        print(ct.last_plan())


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_batch_norm_equals_reference_at_the_size_of_a_network(
    dtype: str, layout: str, mode: str, activation: str | None
) -> None:
    """Large enough for the kernels that real layers get."""
    check_steps((8, 64, 14, 14), dtype, layout, mode, activation)


@pytest.mark.parametrize("batch", [65_535, 65_536, 65_537])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_batch_norm_equals_reference_when_the_batch_is_around_65536(batch: int, layout: str) -> None:
    check_steps((batch, 3, 2, 2), "float32", layout)


@pytest.mark.parametrize("batch", [65_536, 131_071, 262_137, 880_802])
@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
def test_batch_norm_equals_reference_when_the_batch_exceeds_one_call(batch: int, mode: str) -> None:
    """Batches beyond what one or another of cuDNN's calls takes."""
    check_steps((batch, 5), "float32", "nchw", mode)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_batch_norm_equals_reference_with_many_channels(layout: str) -> None:
    check_steps((2, 66_000, 3, 3), "float32", layout)
    check_steps((4, 66_000, 2, 2), "float32", layout, "per_activation")


def test_batch_norm_overflow_detected_returns_after_the_work() -> None:
    """Once the work is over there is an answer; which one, only cuDNN knows."""
    x = ct.full((2, 3, 4, 4), 1.0)
    ct.batch_norm_training(x, ct.full(3, 1.0), ct.zeros(3))
    assert ct.batch_norm_overflow_detected() in (True, False, None)
    assert ct.batch_norm_overflow_detected(wait=True) in (True, False)


def test_batch_norm_keeps_nan_in_its_channel() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 5, 5)).astype(np.float32)
    x[0, 1, 2, 2] = np.nan
    step = ct.batch_norm_training(ct.asarray(x), ct.full(3, 1.0), ct.zeros(3))
    y = step.y.numpy()
    assert np.isnan(y[:, 1]).all()
    expected = ct.reference.batch_norm_training(x, np.ones(3, np.float32), np.zeros(3, np.float32)).y
    np.testing.assert_allclose(y[:, [0, 2]], expected[:, [0, 2]], atol=1e-5)
