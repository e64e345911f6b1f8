"""Convolution of the reference: int8, memory, rounding and errors; loops are in tests/oracle."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from cudnn_ct import reference
from tests.strategies import ConvCase, conv_cases

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@given(conv_cases(dtypes=("int8",), out_dtypes=("int32", "float32")))
def test_conv_of_int8_is_exact(case: ConvCase) -> None:
    x, w, out = case.operands("bytes")
    wide_out = None if out is None else out.astype(np.float64)
    expected = reference.conv(x.astype(np.float64), w.astype(np.float64), **case.keywords, out=wide_out)
    y = reference.conv(x, w, **case.keywords, out=out)
    assert y.dtype == case.out_dtype
    np.testing.assert_array_equal(y.astype(np.float64), np.rint(2 * expected) / 2)  # alpha may be a half


def test_conv_of_int8_wraps_around_when_the_sum_exceeds_int32() -> None:
    """As all engines of cuDNN 9.19 have it, whatever the dtype of the result."""
    x, w = np.full((1, 140_000, 1), 127, np.int8), np.full((1, 140_000, 1), 127, np.int8)
    wrapped = 140_000 * 127**2 - 2**32
    assert reference.conv(x, w).tolist() == [[[wrapped]]]
    assert reference.conv(x, -w).tolist() == [[[-wrapped]]]
    out = np.empty((1, 1, 1), np.float32)
    assert reference.conv(x, w, out=out).tolist() == [[[float(np.float32(wrapped))]]]


def test_conv_transpose_equals_the_data_gradient() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (2, 4, 5)).astype(float), rng.integers(-2, 3, (4, 3, 3)).astype(float)
    for stride, padding, extra in ((1, 0, 0), (2, 1, 1), (3, 0, 2)):
        y = reference.conv_transpose(x, w, stride=stride, padding=padding, output_padding=extra)
        assert y.shape[2] == (5 - 1) * stride - 2 * padding + 3 + extra
        np.testing.assert_array_equal(
            y, reference.conv_backward_data(x, w, y.shape, stride=stride, padding=padding)
        )
    with pytest.raises(ValueError, match=r"output_padding \(2,\) must be less than the stride \(2,\)"):
        reference.conv_transpose(x, w, stride=2, output_padding=2)
    with pytest.raises(ValueError, match="x has 4 channels; w of shape"):
        reference.conv_transpose(x, w[:3])


def test_conv_backward_rejects_shapes_that_do_not_fit() -> None:
    dy = np.zeros((1, 2, 3))
    with pytest.raises(ValueError, match=r"dy has shape \(1, 2, 3\); x of \(1, 1, 9\) with w of \(2, 1, 3\)"):
        reference.conv_backward_data(dy, np.zeros((2, 1, 3)), (1, 1, 9))
    with pytest.raises(TypeError, match="dy is float32 and x is float64"):
        reference.conv_backward_filter(dy.astype(np.float32), np.zeros((1, 1, 5)), (2, 1, 3))


def test_conv_ignores_nan_in_out_when_beta_is_0() -> None:
    out = np.full((1, 1, 1), np.nan)
    reference.conv(np.ones((1, 1, 3)), np.ones((1, 1, 3)), out=out)
    assert out.item() == 3


def test_conv_propagates_nan_in_out_when_beta_is_not_0() -> None:
    out = np.full((1, 1, 1), np.nan)
    assert np.isnan(reference.conv(np.ones((1, 1, 3)), np.ones((1, 1, 3)), beta=1, out=out)).all()


def test_conv_accepts_the_input_as_out() -> None:
    x = np.arange(5.0).reshape(1, 1, 5)
    reference.conv(x, np.array([[[1.0, 0.0, 0.0]]]), padding=1, out=x)
    assert x.ravel().tolist() == [0, 0, 1, 2, 3]


def test_conv_overflows_to_infinity_without_warning() -> None:
    x, w = np.full((1, 1, 1), 60000, np.float16), np.full((1, 1, 1), -2, np.float16)
    assert reference.conv(x, w).item() == -np.inf


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


@given(conv_cases(dtypes=("bfloat16",)))
def test_conv_rounds_bfloat16_to_nearest(case: ConvCase) -> None:
    x, w, _ = case.operands("floats")
    wide = reference.conv(x.astype(np.float64), w.astype(np.float64), **case.geometry)
    y = reference.conv(x, w, **case.geometry)
    distance = np.abs(y.astype(np.float64) - wide)
    bits = y.view(np.uint16)
    for neighbour in (bits + np.uint16(1), bits - np.uint16(1)):
        other = np.abs(neighbour.view(BFLOAT16).astype(np.float64) - wide)
        assert np.all((distance <= other) | np.isnan(other))


def test_conv_of_a_photograph_needs_little_memory() -> None:
    x, w = np.ones((1, 3, 427, 640), np.float32), np.ones((18, 1, 7, 7), np.float32)
    tracemalloc.start()
    try:
        reference.conv(x, w, groups=3, padding="half")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200e6


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"w": np.ones((4, 3, 3), np.float16)}, TypeError, "x is float32 and w is float16"),
        ({"x": np.ones((1, 3, 5), int), "w": np.ones((4, 3, 3), int)}, TypeError, "not int64"),
        ({"x": np.ones((1, 3, 5), complex)}, TypeError, "complex128"),
        ({"w": np.ones((4, 2, 3), np.float32)}, ValueError, "x has 3 channels; w expects 2 x groups 1 = 2"),
        ({"groups": 3, "w": np.ones((4, 1, 3), np.float32)}, ValueError, "w has 4 filters, which 3 groups"),
        ({"padding": -1}, ValueError, "padding must be between 0"),
        ({"padding": "same"}, ValueError, "padding must be one of valid, half, full"),
        ({"stride": 0}, ValueError, "stride must be between 1"),
        ({"dilation": (1, 1)}, ValueError, "dilation"),
        ({"dilation": 3}, ValueError, "empty along spatial axis 0: the input has 5"),
        ({"x": np.ones((1, 3, 0), np.float32)}, ValueError, "empty along spatial axis 0: the input has 0"),
        ({"mode": "flip"}, ValueError, "mode must be one of"),
        ({"beta": 1}, ValueError, "beta=1 needs out"),
        ({"out": np.ones((1, 4, 4), np.float32)}, ValueError, r"out has shape \(1, 4, 4\)"),
        ({"out": np.ones((1, 4, 3))}, TypeError, "out is float64"),
    ],
)
def test_conv_rejects_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    good: dict[str, Any] = {"x": np.ones((1, 3, 5), np.float32), "w": np.ones((4, 3, 3), np.float32)}
    with pytest.raises(error, match=says):
        reference.conv(**(good | change))


# --- the independent implementation ------------------------------------------------------------------------
