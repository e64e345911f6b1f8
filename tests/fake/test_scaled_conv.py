"""Convolution of float8 on the fake cuDNN: copies, results without elements, and rejected arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.typing import Layout
from tests.float8_conv_cases import CASES, check
from tests.strategies import own

from .cudnn import FakeCudnn

KIND = "float8_e4m3"
X, W = (2, 32, 5, 6), (48, 32, 3, 3)


def ones(shape: tuple[int, ...], dtype: str = KIND, layout: Layout = "nhwc") -> ct.DeviceArray:
    return ct.full(shape, 1, dtype, layout=layout)


def plan() -> str:
    described = ct.last_plan()
    assert described is not None
    return described.plan


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_scaled_conv_copies_only_operands_without_channels_last(fake: FakeCudnn, layout: Layout) -> None:
    y, amax = ct.scaled_conv(ones(X, layout=layout), ones(W), amax=True, out_dtype="float32")
    assert y.spec == ct.TensorSpec.packed((2, 48, 3, 4), "float32", layout)
    assert np.all(y.numpy() == 288)
    assert amax is not None
    assert amax.numpy().tolist() == [288.0]
    assert ("2 operands copied" in plan()) == (layout == "nchw")
    assert ("copied" in plan()) == (layout == "nchw")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("amax", [True, False])
def test_scaled_conv_writes_each_dtype_scaled_and_amax_before_the_scale(
    fake: FakeCudnn, dtype: str, amax: bool
) -> None:
    scales = {"descale_x": ct.full((1,), 0.5), "descale_w": ct.full((), 0.25), "scale": ct.full((1, 1), 2)}
    out = ct.full((2, 48, 4, 5), float("nan"), dtype, layout="nhwc")
    w = ones((48, 32, 2, 2), "float8_e5m2")
    y, largest = ct.scaled_conv(ones(X), w, **scales, amax=amax, out=out)
    assert y.pointer == out.pointer
    assert np.all(y.numpy().astype(float) == 32)
    assert (largest is not None) == amax
    assert largest is None or largest.numpy().tolist() == [16.0]


def test_scaled_conv_of_an_empty_batch_has_an_amax_of_0(fake: FakeCudnn) -> None:
    y, amax = ct.scaled_conv(ct.zeros((0, 16, 5, 5), KIND), ones((16, 16, 3, 3)), amax=True)
    assert y.shape == (0, 16, 3, 3)
    assert amax is not None
    assert amax.numpy().tolist() == [0.0]


REJECTED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "dtype of x": ({"x": lambda: ones(X, "float16")}, TypeError, "x has a wrong dtype: got float16"),
    "dtype of w": ({"w": lambda: ones(W, "int8")}, TypeError, "w has a wrong dtype: got int8"),
    "channels": (
        {"x": lambda: ones((2, 24, 5, 6)), "w": lambda: ones((48, 24, 3, 3))},
        NotSupportedError,
        "multiples of 16: each group has 24 channels and 48 filters; pad with zeros",
    ),
    "filters": (
        {"w": lambda: ones((20, 32, 3, 3))},
        NotSupportedError,
        "each group has 32 channels and 20 filters",
    ),
    "depthwise": (
        {"w": lambda: ones((32, 1, 3, 3)), "groups": 32},
        NotSupportedError,
        "each group has 1 channels and 1 filters",
    ),
    "amax of groups": (
        {"w": lambda: ones((48, 16, 3, 3)), "groups": 2, "amax": True},
        NotSupportedError,
        "no engine for amax of a convolution of float8 with groups: got groups 2; compute it",
    ),
    "no channels": (
        {"x": lambda: ct.zeros((2, 0, 5, 6), KIND), "w": lambda: ct.zeros((16, 0, 3, 3), KIND)},
        NotSupportedError,
        "have no terms",
    ),
    "result": ({"out_dtype": "float64"}, TypeError, "out_dtype is not supported: got float64, expected one"),
    "bias": (
        {"bias": lambda: ct.zeros(32)},
        ValueError,
        r"bias has a wrong shape: got \(32,\), expected \(48",
    ),
    "dtype of bias": (
        {"bias": lambda: ct.zeros(48, "bfloat16"), "out_dtype": "float16"},
        TypeError,
        "bias has a wrong dtype: got bfloat16, expected float16 or float32",
    ),
    "scale": ({"scale": lambda: ct.zeros(2)}, ValueError, "scale is not a float32 array of one element"),
    "activation": ({"activation": "elu"}, ValueError, "activation must be one of identity, relu, gelu"),
    "algo": ({"algo": "winograd"}, ValueError, "algo is unknown: got 'winograd'"),
    "amax of out": ({"out": (None, 0)}, ValueError, "out has amax, but amax is not set"),
    "size": ({"dilation": 3}, ValueError, "the output would be empty along spatial axis 0"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_scaled_conv_rejects(fake: FakeCudnn, name: str) -> None:
    changes, error, message = REJECTED[name]
    arguments: dict[str, Any] = {"x": lambda: ones(X), "w": lambda: ones(W)} | changes
    given = {key: value() if callable(value) else value for key, value in arguments.items()}
    with pytest.raises(error, match=message):
        ct.scaled_conv(**given)


def test_conv_of_float8_is_rejected_with_the_name_of_scaled_conv(fake: FakeCudnn) -> None:
    with pytest.raises(TypeError, match=r"convolutions of float8 are ct\.scaled_conv"):
        ct.conv(ones(X), ones(W))


@pytest.mark.parametrize("name", CASES)
def test_scaled_conv_equals_reference_for_the_cases_of_the_gpu(fake: FakeCudnn, name: str) -> None:
    check(CASES[name], own)
