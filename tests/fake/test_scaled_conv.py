"""Convolution of float8 on the fake cuDNN: copies, results without elements, and rejected arguments."""

from __future__ import annotations

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.typing import Layout
from tests.float8_conv_cases import CASES, check
from tests.strategies import own

pytestmark = pytest.mark.usefixtures("fake")

KIND = "float8_e4m3"
X, W = (2, 32, 5, 6), (48, 32, 3, 3)


def ones(shape: tuple[int, ...], dtype: str = KIND, layout: Layout = "nhwc") -> ct.DeviceArray:
    return ct.full(shape, 1, dtype, layout=layout)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_scaled_conv_copies_only_operands_without_channels_last(layout: Layout) -> None:
    y, amax = ct.scaled_conv(ones(X, layout=layout), ones(W), amax=True, out_dtype="float32")
    assert y.spec == ct.TensorSpec.packed((2, 48, 3, 4), "float32", layout)
    assert np.all(y.numpy() == 288)
    assert amax.numpy().tolist() == [288.0]
    assert ("2 operands copied" in ct.last_plan().plan) == (layout == "nchw")
    assert ("copied" in ct.last_plan().plan) == (layout == "nchw")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("amax", [True, False])
def test_scaled_conv_writes_each_dtype_scaled_and_amax_before_the_scale(dtype: str, amax: bool) -> None:
    scales = {"descale_x": ct.full((1,), 0.5), "descale_w": ct.full((), 0.25), "scale": ct.full((1, 1), 2)}
    out = ct.full((2, 48, 4, 5), float("nan"), dtype, layout="nhwc")
    w = ones((48, 32, 2, 2), "float8_e5m2")
    y, largest = ct.scaled_conv(ones(X), w, **scales, amax=amax, out=out)
    assert y.pointer == out.pointer
    assert np.all(y.numpy().astype(float) == 32)
    assert (largest is not None) == amax
    assert largest is None or largest.numpy().tolist() == [16.0]


def test_scaled_conv_of_an_empty_batch_has_an_amax_of_0() -> None:
    y, amax = ct.scaled_conv(ct.zeros((0, 16, 5, 5), KIND), ones((16, 16, 3, 3)), amax=True)
    assert y.shape == (0, 16, 3, 3)
    assert amax.numpy().tolist() == [0.0]


@pytest.mark.parametrize("name", CASES)
def test_scaled_conv_equals_reference_for_the_cases_of_the_gpu(name: str) -> None:
    check(CASES[name], own)
