"""Convolution and pooling of the reference: int8, memory, rounding and ties; loops are in tests/oracle."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from cudnn_ct import reference
from tests.conv_cases import int8_cases
from tests.layers import LayerCase

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@given(int8_cases())
def test_conv_of_int8_is_exact(case: LayerCase) -> None:
    x, w = (one.array() for one in case.operands if one)
    outs = {name: one.array() for name, one in case.outs.items()}
    wide = {name: out.astype(np.float64) for name, out in outs.items()}
    expected = reference.conv(x.astype(np.float64), w.astype(np.float64), **case.keywords, **wide)
    y = reference.conv(x, w, **case.keywords, **outs)
    assert y.dtype == (outs["out"].dtype if outs else np.int32)
    np.testing.assert_array_equal(y.astype(np.float64), np.rint(2 * expected) / 2)  # alpha may be a half


def test_conv_of_int8_wraps_around_when_the_sum_exceeds_int32() -> None:
    """All engines of cuDNN 9.19 wrap around, with any dtype of the result."""
    x, w = np.full((1, 140_000, 1), 127, np.int8), np.full((1, 140_000, 1), 127, np.int8)
    wrapped = 140_000 * 127**2 - 2**32
    assert reference.conv(x, w).tolist() == [[[wrapped]]]
    assert reference.conv(x, -w).tolist() == [[[-wrapped]]]
    out = np.empty((1, 1, 1), np.float32)
    assert reference.conv(x, w, out=out).tolist() == [[[float(np.float32(wrapped))]]]


def test_conv_reads_nan_in_out_only_when_beta_is_not_0() -> None:
    out, operands = np.full((1, 1, 1), np.nan), (np.ones((1, 1, 3)), np.ones((1, 1, 3)))
    assert np.isnan(reference.conv(*operands, beta=1, out=out)).all()
    assert reference.conv(*operands, out=out).item() == 3


def test_conv_accepts_the_input_as_out() -> None:
    x = np.arange(5.0).reshape(1, 1, 5)
    reference.conv(x, np.array([[[1.0, 0.0, 0.0]]]), padding=1, out=x)
    assert x.ravel().tolist() == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_conv_rounds_up_when_the_sum_is_just_over_a_tie(dtype: np.dtype[Any], sign: int) -> None:
    # 1 + half a unit in the last place + a trace: nearest is 1 + one unit, but rounding by way of float32
    # loses the trace, meets a tie, and answers 1.
    half = 2.0**-11 if dtype == np.float16 else 2.0**-8
    ones = np.ones((1, 2, 1), dtype)
    x = np.array([[[sign * half * 2**7], [sign * 2.0**-17]]]).astype(dtype)
    w = np.array([[[2.0**-7], [2.0**-23]]]).astype(dtype)
    out = (sign * ones[:, :1]).copy()
    assert reference.conv(x, w, beta=1, out=out).astype(np.float64).item() == sign * (1 + 2 * half)


def test_conv_of_a_photograph_needs_little_memory() -> None:
    x, w = np.ones((1, 3, 427, 640), np.float32), np.ones((18, 1, 7, 7), np.float32)
    tracemalloc.start()
    try:
        reference.conv(x, w, groups=3, padding="half")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200e6


def test_pool_backward_gives_the_gradient_to_the_first_of_equal_elements() -> None:
    x = np.ones((1, 1, 2, 2))
    dx = reference.pool_backward(np.array([[[[7.0]]]]), x, x[:, :, :1, :1], window=2)
    assert dx.tolist() == [[[[7, 0], [0, 0]]]]


def test_pool_backward_skips_the_padding_when_the_maximum_is_0() -> None:
    x = np.array([[[0.0, -1.0, -1.0]]])
    y = reference.pool(x, window=2, stride=1, padding=1)
    dx = reference.pool_backward(np.ones_like(y), x, y, window=2, stride=1, padding=1)
    np.testing.assert_array_equal(dx, [[[2, 1, 1]]])


@pytest.mark.parametrize("mode", ["max", "max_deterministic"])
def test_pool_of_int8_equals_pool_of_float64(mode: str) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (2, 3, 7, 5)).astype(np.int8)
    keywords: dict[str, Any] = {"window": (3, 2), "stride": 2, "padding": 1, "mode": mode}
    y = reference.pool(x, **keywords)
    assert y.dtype == np.int8
    np.testing.assert_array_equal(y, reference.pool(x.astype(float), **keywords))
