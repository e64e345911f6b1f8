"""Batch normalisation end to end on the fakes: what a GPU shows too, and what only a fake can show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import ExecutionFailedError, NotSupportedError
from cudnn_ct.ops.norm import plans
from cudnn_ct.shapes.norm import norm_parameter_shape
from tests.layers import compare

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .norm import IN_PROGRESS, MODES, OVERFLOW, PER_ACTIVATION, PERSISTENT
from .test_conv import images

TRAINING = "cudnnBatchNormalizationForwardTrainingEx"
INFERENCE = "cudnnBatchNormalizationForwardInference"
BACKWARD = "cudnnBatchNormalizationBackward"


def parameters(x: ct.DeviceArray, mode: str = "spatial", count: int = 2) -> tuple[ct.DeviceArray, ...]:
    shape, rng = norm_parameter_shape(x.shape, mode), np.random.default_rng(3)
    dtype = "float64" if x.spec.dtype == "float64" else "float32"
    return tuple(ct.asarray(rng.uniform(0.5, 2, shape), dtype) for _ in range(count))


def steps(fake: FakeCudnn) -> list[str]:
    """The normalisations that were run, with their modes, in order."""
    names = ("per activation", "spatial", "persistent")
    return [
        f"{name.removeprefix('cudnnBatchNormalization').replace('TrainingEx', '')} {names[args[1]]}"
        for name, args in fake.calls
        if name in (TRAINING, INFERENCE, BACKWARD, f"{BACKWARD}Ex")
    ]


def numpy(*arrays: Any) -> list[np.ndarray]:
    return [array.numpy() for array in arrays]


MODES_IN_USE = {
    "none rejected": ("spatial", (), 0, "Forward persistent, BackwardEx persistent"),
    "persistent": ("spatial", (PERSISTENT,), 0, "Forward spatial, Backward persistent, Backward spatial"),
    "per activation": (
        *("per_activation", (PER_ACTIVATION,), 0),
        "Forward persistent, Backward per activation, Backward persistent",
    ),
    "reserve space": ("spatial", (), 60, "Forward persistent, Backward persistent"),
}


@pytest.mark.parametrize(("mode", "rejected", "reserve", "expected"), MODES_IN_USE.values(), ids=MODES_IN_USE)
def test_batch_norm_takes_the_next_mode_when_one_is_rejected(
    fake: FakeCudnn, mode: str, rejected: tuple[int, ...], reserve: int, expected: str
) -> None:
    fake.norm_refused, fake.norm_sizes = frozenset(rejected), (0, reserve)
    x = images(2, 4, 3, 3)
    scale, bias, mean, var = parameters(x, mode, 4)
    ct.batch_norm_training(x, scale, bias, mode=mode)
    ct.batch_norm_backward(x, x, scale, mean, var, mode=mode)
    assert ", ".join(steps(fake)) == expected
    told = f"it needs {reserve} bytes of reserve space of the forward pass"
    assert (told in ct.last_plan().plan) == bool(reserve)


def test_batch_norm_drops_a_mode_for_good_when_its_run_is_rejected(fake: FakeCudnn) -> None:
    x = images(2, 4, 3, 3)
    scale, bias, mean, var = parameters(x, count=4)
    running = {"running_mean": mean, "running_var": var}
    ct.batch_norm_training(x, scale, bias, **running)
    copies = dict(zip(running, numpy(mean, var), strict=True))
    expected = ct.reference.batch_norm_training(*numpy(x, scale, bias), **copies)
    fake.calls.clear()
    fake.fail_at = {1: 3000}
    compare(ct.batch_norm_training(x, scale, bias, **running).y, expected.y)
    for name, array in running.items():
        compare(array, copies[name])
    ct.batch_norm_training(x, scale, bias, **running)
    assert steps(fake) == ["Forward persistent", "Forward spatial", "Forward spatial"]


def test_batch_norm_lists_each_reason_once_when_no_mode_is_supported(fake: FakeCudnn) -> None:
    fake.norm_refused = frozenset(MODES)
    x = images(2, 4, 3, 3)
    with pytest.raises(NotSupportedError) as caught:
        ct.batch_norm_training(x, *parameters(x), epsilon=1e-3)
    message = str(caught.value)
    assert "does not support this batch normalisation in training: x float32[2, 4, 3, 3] nchw" in message
    assert "mode spatial, epsilon 0.001" in message
    assert "CUDNN_STATUS_NOT_SUPPORTED (3000)" in message
    assert len(message.splitlines()) == len(set(message.splitlines()))  # modes have one reason in common


@pytest.mark.parametrize(
    ("dtype", "layout", "channels", "fused"),
    [("float16", "nhwc", 4, True), ("float16", "nchw", 4, False), ("float16", "nhwc", 3, False)],
)
def test_batch_norm_training_fuses_an_activation_when_cudnn_can(
    fake: FakeCudnn, dtype: str, layout: str, channels: int, fused: bool
) -> None:
    values = np.random.default_rng(0).integers(-3, 4, (2, channels, 3, 3))
    x, z = (ct.asarray(array, dtype, layout=layout) for array in (values, values[::-1]))
    scale, bias = parameters(x)
    got = ct.batch_norm_training(x, scale, bias, activation="relu", residual=z)
    compare(
        got.y,
        ct.reference.batch_norm_training(*numpy(x, scale, bias), activation="relu", residual=z.numpy()).y,
    )
    assert ("cudnnActivationForward" in fake.names()) != fused
    assert ("bn add activation" in ct.last_plan().plan.splitlines()[0]) == fused


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_batch_norm_inference_takes_a_large_batch_as_pixels_of_one_image(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    for mode in plans._INFERENCE_LIMITS:
        monkeypatch.setitem(plans._INFERENCE_LIMITS, mode, 2)
    fake.norm_batch = 2
    values = np.arange(5 * 3 * 2 * 2.0).reshape(5, 3, 2, 2)
    x, out = ct.asarray(values, layout=layout), ct.asarray(values[::-1], layout=layout)
    arrays = parameters(x, count=4)
    expected = ct.reference.batch_norm_inference(*numpy(x, *arrays), beta=2, out=out.numpy())
    compare(ct.batch_norm_inference(x, *arrays, beta=2, out=out), expected)
    assert steps(fake) == ["ForwardInference spatial"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (2, 4, 3, 2), (2, 4, 1, 3, 2), (2, 4, 1, 1, 1, 2)])
def test_parameters_of_half_precision_are_converted_where_no_engine_takes_them(
    fake: FakeCudnn, shape: tuple[int, ...], dtype: str
) -> None:
    numbers = np.random.default_rng(0)
    x, out = (ct.asarray(numbers.integers(-3, 4, shape), dtype) for _ in range(2))
    arrays = [ct.asarray(numbers.integers(1, 4, (1, 4) + (1,) * (len(shape) - 2)), dtype) for _ in range(4)]
    expected = ct.reference.batch_norm_inference(*numpy(x, *arrays), alpha=0.5, beta=2, out=out.numpy())
    compare(ct.batch_norm_inference(x, *arrays, alpha=0.5, beta=2, out=out), expected)
    assert steps(fake) == ["ForwardInference spatial"]


@pytest.mark.parametrize(
    ("status", "wait", "expected"),
    [(0, False, False), (OVERFLOW, False, True), (IN_PROGRESS, False, None), (IN_PROGRESS, True, False)],
)
def test_batch_norm_overflow_detected_returns_the_state_of_the_device(
    fake: FakeCudnn, status: int, wait: bool, expected: bool | None
) -> None:
    fake.runtime_status = status
    assert ct.batch_norm_overflow_detected(wait=wait) is expected
    fake.runtime_status = 5000
    with pytest.raises(ExecutionFailedError, match="cudnnQueryRuntimeError returned"):
        ct.batch_norm_overflow_detected()


def test_batch_norm_training_tries_no_fallback_when_statistics_were_updated(fake: FakeCudnn) -> None:
    fake.fail["cudnnAddTensor"] = 3000
    x = images(2, 4, 3, 3)
    scale, bias, mean, var = parameters(x, count=4)
    with pytest.raises(ExecutionFailedError, match="so no fallback was tried") as caught:
        ct.batch_norm_training(x, scale, bias, running_mean=mean, running_var=var, residual=x)
    assert caught.value.function == "cudnnAddTensor"
    assert fake.names().count(TRAINING) == 1
    assert "momentum 0.1" in caught.value.__notes__[0]


def test_batch_norm_training_tries_no_fallback_when_a_result_was_copied(fake: FakeCudnn, host: Host) -> None:
    x = images(2, 3, 3, 3)
    scale, bias = parameters(x)
    mean, var = (ForeignArray(host, np.ones(9, np.float32)[::3]) for _ in range(2))
    running = {"running_mean": mean, "running_var": var}
    ct.batch_norm_training(x, scale, bias, **running)
    fake.calls.clear()
    ct.batch_norm_training(x, scale, bias, **running)
    copy = "cudnnTransformTensor"
    assert fake.names() == [copy, copy, TRAINING, copy, copy]
    fake.calls.clear()
    fake.fail_at = {5: 3000}
    with pytest.raises(ExecutionFailedError, match="so no fallback was tried"):
        ct.batch_norm_training(x, scale, bias, **running)
    assert fake.names().count(TRAINING) == 1
