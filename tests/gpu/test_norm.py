"""Normalisations on a GPU: at the sizes of networks, beyond limits, and of values with large means."""

from __future__ import annotations

from typing import Any

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


# --- means that are large next to the deviation ------------------------------------------------------------

MEANS = (1.0, 100.0, 1000.0, -10_000.0)  # in deviations
ROUNDED = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
IN_PASSES = 24  # roundings of the mean that engines which compute the variance in two passes make
ROWS = ((64, 768), (33, 1000), (4, 128, 64), (5, 3))
IMAGES = (8, 64, 32, 32)

Values = np.ndarray[Any, np.dtype[np.float64]]


def drawn(shape: tuple[int, ...], dtype: str, mean: float = 0.0, seed: int = 0) -> ct.DeviceArray:
    values = np.random.default_rng(seed).standard_normal(shape) + mean
    return ct.asarray(values.astype(np.float32), dtype)


def wide(array: ct.DeviceArray) -> Values:
    """Return the numbers of an array on the device in float64."""
    return array.numpy().astype(np.float64)


def check_large_mean(
    step: Any, x: Values, scale: Values, bias: Values, axes: tuple[int, ...], *, centred: bool = True
) -> None:
    """Compare a normalisation of values with a deviation of about 1 with float64."""
    mean = x.mean(axes, keepdims=True) * centred
    invstd = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 1e-5)
    y = (x - mean) * invstd * scale + bias
    dtype = str(step.y.spec.dtype)
    rounding = IN_PASSES * 2.0**-24 * np.abs(mean).max()
    assert np.abs(wide(step.y) - y).max() <= ROUNDED[dtype] * np.abs(y).max() + rounding * np.abs(scale).max()
    found = step._asdict()
    if centred:
        np.testing.assert_allclose(
            wide(found["mean"]).reshape(mean.shape), mean, rtol=0, atol=1e-5 + rounding
        )
    got = wide(found.get("invstd", found.get("invrms"))).reshape(invstd.shape)
    np.testing.assert_allclose(got, invstd, rtol=1e-5 + rounding)


def check_gradients(
    found: Any,
    operands: tuple[Values, ...],
    axes: tuple[int, ...],
    summed: tuple[int, ...],
    *,
    centred: bool = True,
) -> None:
    """Compare gradients with those that float64 has for the same statistics."""
    dy, x, scale, mean, invstd = operands
    n, g = (x - mean) * invstd, dy * scale
    within = g.mean(axes, keepdims=True) * centred
    dx = invstd * (g - within - n * (g * n).mean(axes, keepdims=True))
    terms = {"dx": dx, "dscale": (dy * n).sum(summed, keepdims=True), "dbias": dy.sum(summed, keepdims=True)}
    for name, wanted in terms.items():
        got = wide(getattr(found, name)).reshape(wanted.shape)
        assert np.abs(got - wanted).max() <= 2e-4 * max(np.abs(wanted).max(), 1.0), name


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("operation", ["layer_norm", "rms_norm", "ada_layer_norm"])
def test_row_norm_and_gradients_equal_float64_when_the_mean_is_large(
    operation: str, shape: tuple[int, ...], mean: float
) -> None:
    adaptive = operation == "ada_layer_norm"
    shape = (2, *shape[-2:]) if adaptive else shape
    parameter = (shape[0], shape[-1]) if adaptive else shape[-1:]
    x, dy = drawn(shape, "float32", mean), drawn(shape, "float32", seed=1)
    scale, bias = (drawn(parameter, "float32", seed=seed) for seed in (2, 3))
    step = getattr(ct, operation)(x, scale, bias)
    scales, biases = (wide(one)[:, None] if adaptive else wide(one) for one in (scale, bias))
    centred, last = operation != "rms_norm", (len(shape) - 1,)
    check_large_mean(step, wide(x), scales, biases, last, centred=centred)
    alone = getattr(ct, operation)(x, scale, bias, training=False)
    np.testing.assert_allclose(alone.y.numpy(), step.y.numpy(), atol=1e-3 + abs(mean) * 2e-6)
    keywords = {} if centred else {"bias_gradient": True}
    found = getattr(ct, f"{operation}_backward")(dy, x, scale, *step[1:], **keywords)
    moments = [wide(one) for one in step[1:]] if centred else [np.zeros(1), wide(step[1])]
    summed = (1,) if adaptive else tuple(range(len(shape) - 1))
    operands = (wide(dy), wide(x), scales, *moments)
    check_gradients(found, operands, last, summed, centred=centred)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("operation", ["layer_norm", "rms_norm"])
def test_row_norm_of_half_precision_equals_float64_when_the_mean_is_large(operation: str, dtype: str) -> None:
    x = drawn((64, 768), dtype, 30.0)  # more, and the values have few digits left
    scale, bias = (drawn((768,), dtype, seed=seed) for seed in (2, 3))
    step = getattr(ct, operation)(x, scale, bias)
    check_large_mean(step, wide(x), wide(scale), wide(bias), (1,), centred=operation != "rms_norm")


@pytest.mark.parametrize("algo", ["heuristic", "autotune"])
@pytest.mark.parametrize("columns", [1000, 1024])
def test_layer_norm_into_out_equals_float64_when_the_mean_is_large(algo: Any, columns: int) -> None:
    x, scale, bias = (
        drawn((512, columns), "float32", 1000.0),
        *(drawn((columns,), "float32", seed=s) for s in (2, 3)),
    )
    out = ct.empty((512, columns)), ct.empty((1024, 1))[::2], ct.empty((512, 1))
    for _ in range(4):  # the last ones are replays
        step = ct.layer_norm(x, scale, bias, algo=algo, out=out)
        check_large_mean(step, wide(x), wide(scale), wide(bias), (1,))
    misaligned = ct.empty((512 * columns + 1,))[1:].reshape((512, columns))
    ct.transform(x, out=misaligned)
    check_large_mean(
        ct.layer_norm(misaligned, scale, bias, algo=algo), wide(x), wide(scale), wide(bias), (1,)
    )


@pytest.mark.parametrize("columns", [1000, 1024])
def test_captured_layer_norm_equals_float64_when_the_mean_is_large(columns: int) -> None:
    x, scale, bias = (
        drawn((512, columns), "float32", 1000.0),
        *(drawn((columns,), "float32", seed=s) for s in (2, 3)),
    )
    captured = ct.capture(ct.layer_norm)
    for _ in range(3):
        check_large_mean(captured(x, scale, bias), wide(x), wide(scale), wide(bias), (1,))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("operation", ["batch_norm", "instance_norm"])
def test_norm_of_channels_and_gradients_equal_float64_when_the_mean_is_large(
    operation: str, layout: Any, mean: float
) -> None:
    x, dy = (drawn(IMAGES, "float32", m, seed).packed(layout) for seed, m in enumerate((mean, 0.0)))
    scale, bias = (drawn((64,), "float32", seed=seed) for seed in (2, 3))
    forward = ct.batch_norm_training if operation == "batch_norm" else ct.instance_norm
    step = forward(x, scale, bias)
    axes, images = (0, 2, 3) if operation == "batch_norm" else (2, 3), (64, 1, 1)
    parameters = (wide(scale).reshape(images), wide(bias).reshape(images))
    check_large_mean(step, wide(x), *parameters, axes)
    found = getattr(ct, f"{operation}_backward")(dy, x, scale, step.mean, step.invstd)
    kept = (1, 64, 1, 1) if operation == "batch_norm" else (IMAGES[0], 64, 1, 1)
    moments = (wide(one).reshape(kept) for one in (step.mean, step.invstd))
    check_gradients(found, (wide(dy), wide(x), parameters[0], *moments), axes, (0, 2, 3))
