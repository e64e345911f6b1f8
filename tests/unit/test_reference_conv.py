"""The reference against scipy.signal, which shares no line with it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from scipy import signal

from cudnn_ct import reference
from tests.strategies import ConvCase, conv_cases

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@given(conv_cases())
def test_small_integers_are_exact_in_every_dtype(case: ConvCase) -> None:
    x, w, out = case.operands()
    expected = expected_conv(case, x, w, out)
    y = reference.conv(x, w, **case.keywords, out=out)
    assert y.dtype == x.dtype
    assert y.shape == case.y_shape
    np.testing.assert_array_equal(y.astype(np.float64), expected)


@given(conv_cases(dtypes=("int8",), out_dtypes=("int32", "float32")))
def test_sums_of_any_bytes_are_exact(case: ConvCase) -> None:
    x, w, out = case.operands("bytes")
    expected = expected_conv(case, x.astype(np.float64), w.astype(np.float64), out)
    y = reference.conv(x, w, **case.keywords, out=out)
    assert y.dtype == case.out_dtype
    np.testing.assert_array_equal(y.astype(np.float64), np.rint(2 * expected) / 2)  # alpha may be a half


def test_a_sum_that_int32_has_not_wraps_around() -> None:
    """As all engines of cuDNN 9.19 have it, whatever the dtype of the result."""
    x, w = np.full((1, 140_000, 1), 127, np.int8), np.full((1, 140_000, 1), 127, np.int8)
    wrapped = 140_000 * 127**2 - 2**32
    assert reference.conv(x, w).tolist() == [[[wrapped]]]
    assert reference.conv(x, -w).tolist() == [[[-wrapped]]]
    out = np.empty((1, 1, 1), np.float32)
    assert reference.conv(x, w, out=out).tolist() == [[[float(np.float32(wrapped))]]]


@given(conv_cases(dtypes=("float64",)))
def test_float64_agrees_to_rounding(case: ConvCase) -> None:
    x, w, out = case.operands("floats")
    expected = expected_conv(case, x, w, out)
    np.testing.assert_allclose(reference.conv(x, w, **case.keywords, out=out), expected, rtol=0, atol=1e-12)


@given(conv_cases(dtypes=("float32", "float16")))
def test_narrow_dtypes_are_rounded_once_from_float64(case: ConvCase) -> None:
    x, w, out = case.operands("floats")
    wide_out = None if out is None else out.astype(np.float64)
    wide = reference.conv(x.astype(np.float64), w.astype(np.float64), **case.keywords, out=wide_out)
    np.testing.assert_array_equal(reference.conv(x, w, **case.keywords, out=out), wide.astype(x.dtype))


@given(conv_cases(dtypes=("float64",)))
def test_gradients_are_the_adjoint_maps(case: ConvCase) -> None:
    """conv is linear in x and in w: <conv(x, w), dy> is <x, dx> and <w, dw>, by what gradients are."""
    x, w, _ = case.operands()
    dy = np.random.default_rng(case.seed).integers(-3, 4, case.y_shape).astype(np.float64)
    product = (reference.conv(x, w, **case.geometry) * dy).sum()
    dx = reference.conv_backward_data(dy, w, case.x_shape, **case.geometry)
    dw = reference.conv_backward_filter(dy, x, case.w_shape, **case.geometry)
    assert (dx.shape, dw.shape) == (x.shape, w.shape)
    assert (x * dx).sum() == product == (w * dw).sum()


@given(conv_cases(dtypes=("float64", "float16")))
def test_gradients_scale_and_add(case: ConvCase) -> None:
    x, w, _ = case.operands()
    dy = np.random.default_rng(case.seed).integers(-1, 2, case.y_shape).astype(x.dtype)
    for operation, inputs in (
        ("conv_backward_data", (dy, w, x.shape)),
        ("conv_backward_filter", (dy, x, w.shape)),
    ):
        plain = getattr(reference, operation)(*inputs, **case.geometry)
        out = np.full(plain.shape, 3.0).astype(x.dtype)
        got = getattr(reference, operation)(*inputs, **case.geometry, alpha=2, beta=0.5, out=out)
        assert got is out
        np.testing.assert_array_equal(got, (2 * plain.astype(float) + 1.5).astype(x.dtype))


def test_transposed_convolution_is_the_data_gradient() -> None:
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


def test_gradient_shapes_that_no_convolution_has() -> None:
    dy = np.zeros((1, 2, 3))
    with pytest.raises(ValueError, match=r"dy has shape \(1, 2, 3\); x of \(1, 1, 9\) with w of \(2, 1, 3\)"):
        reference.conv_backward_data(dy, np.zeros((2, 1, 3)), (1, 1, 9))
    with pytest.raises(TypeError, match="dy is float32 and x is float64"):
        reference.conv_backward_filter(dy.astype(np.float32), np.zeros((1, 1, 5)), (2, 1, 3))


@given(conv_cases(dtypes=("float64",)))
def test_groups_are_separate_convolutions(case: ConvCase) -> None:
    x, w, _ = case.operands()
    single = {**case.geometry, "groups": 1}
    parts = [
        reference.conv(x_part, w_part, **single)
        for x_part, w_part in zip(
            np.split(x, case.groups, axis=1), np.split(w, case.groups, axis=0), strict=True
        )
    ]
    np.testing.assert_array_equal(reference.conv(x, w, **case.geometry), np.concatenate(parts, axis=1))


@given(conv_cases(dtypes=("float64",)))
def test_dilation_is_a_window_with_zeros_between(case: ConvCase) -> None:
    x, w, _ = case.operands()
    spread = with_zeros_between(w, per_axis(case.dilation, len(case.window)))
    spread_case = replace(case, window=spread.shape[2:], dilation=1)
    np.testing.assert_array_equal(
        reference.conv(x, w, **case.geometry), reference.conv(x, spread, **spread_case.geometry)
    )


@given(conv_cases(dtypes=("float64",)))
def test_stride_leaves_positions_out(case: ConvCase) -> None:
    x, w, _ = case.operands()
    dense = reference.conv(x, w, **{**case.geometry, "stride": 1})
    steps = tuple(slice(None, None, s) for s in per_axis(case.stride, len(case.window)))
    np.testing.assert_array_equal(reference.conv(x, w, **case.geometry), dense[(..., *steps)])


@given(conv_cases())
def test_the_operands_are_only_read(case: ConvCase) -> None:
    x, w, _ = case.operands()
    before = x.copy(), w.copy()
    reference.conv(x, w, **case.geometry)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(w, before[1])


@given(conv_cases())
def test_the_shape_is_the_one_foretold(case: ConvCase) -> None:
    foretold = reference.conv_output_shape(case.x_shape, case.w_shape, **case.geometry)
    assert foretold == expected_shape(case)


def test_out_is_written_and_returned() -> None:
    x, w, out = np.ones((1, 1, 3)), np.ones((1, 1, 3)), np.full((1, 1, 1), 5.0)
    assert reference.conv(x, w, alpha=2, beta=10, out=out) is out
    assert out.item() == 2 * 3 + 10 * 5


def test_nan_in_out_does_not_leak_through_beta_zero() -> None:
    out = np.full((1, 1, 1), np.nan)
    reference.conv(np.ones((1, 1, 3)), np.ones((1, 1, 3)), out=out)
    assert out.item() == 3


def test_nan_in_out_counts_where_beta_does() -> None:
    out = np.full((1, 1, 1), np.nan)
    assert np.isnan(reference.conv(np.ones((1, 1, 3)), np.ones((1, 1, 3)), beta=1, out=out)).all()


def test_out_may_be_the_input() -> None:
    x = np.arange(5.0).reshape(1, 1, 5)
    reference.conv(x, np.array([[[1.0, 0.0, 0.0]]]), padding=1, out=x)
    assert x.ravel().tolist() == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "y_shape"),
    [
        ((0, 2, 5), (3, 2, 3), (0, 3, 3)),
        ((2, 0, 5), (3, 0, 3), (2, 3, 3)),
        ((2, 2, 5, 5), (0, 2, 3, 3), (2, 0, 3, 3)),
        ((0, 0, 5, 5, 5), (0, 0, 3, 3, 3), (0, 0, 3, 3, 3)),
    ],
)
def test_a_sum_over_nothing_is_zero(x_shape: Any, w_shape: Any, y_shape: Any) -> None:
    y = reference.conv(np.ones(x_shape), np.ones(w_shape))
    np.testing.assert_array_equal(y, np.zeros(y_shape))


def test_without_channels_beta_times_out_remains() -> None:
    out = np.full((1, 1, 3), 7.0)
    reference.conv(np.ones((1, 0, 5)), np.ones((1, 0, 3)), beta=2, out=out)
    np.testing.assert_array_equal(out, np.full((1, 1, 3), 14.0))


def test_too_large_is_infinite_and_silent() -> None:
    x, w = np.full((1, 1, 1), 60000, np.float16), np.full((1, 1, 1), -2, np.float16)
    assert reference.conv(x, w).item() == -np.inf


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_just_over_a_tie_rounds_away_from_it(dtype: np.dtype[Any], sign: int) -> None:
    # 1 + half a unit in the last place + a trace: nearest is 1 + one unit, but rounding by way of float32
    # loses the trace, meets a tie, and answers 1.
    half = 2.0**-11 if dtype == np.float16 else 2.0**-8
    ones = np.ones((1, 2, 1), dtype)
    x = np.array([[[sign * half * 2**7], [sign * 2.0**-17]]]).astype(dtype)
    w = np.array([[[2.0**-7], [2.0**-23]]]).astype(dtype)
    out = (sign * ones[:, :1]).copy()
    assert reference.conv(x, w, beta=1, out=out).astype(np.float64).item() == sign * (1 + 2 * half)


@given(conv_cases(dtypes=("bfloat16",)))
def test_bfloat16_is_rounded_to_nearest(case: ConvCase) -> None:
    x, w, _ = case.operands("floats")
    wide = reference.conv(x.astype(np.float64), w.astype(np.float64), **case.geometry)
    y = reference.conv(x, w, **case.geometry)
    distance = np.abs(y.astype(np.float64) - wide)
    bits = y.view(np.uint16)
    for neighbour in (bits + np.uint16(1), bits - np.uint16(1)):
        other = np.abs(neighbour.view(BFLOAT16).astype(np.float64) - wide)
        assert np.all((distance <= other) | np.isnan(other))


def test_a_photograph_needs_little_memory() -> None:
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
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    good: dict[str, Any] = {"x": np.ones((1, 3, 5), np.float32), "w": np.ones((4, 3, 3), np.float32)}
    with pytest.raises(error, match=says):
        reference.conv(**(good | change))


# --- the independent implementation ------------------------------------------------------------------------


def expected_conv(case: ConvCase, x: np.ndarray, w: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """``alpha * conv(x, w) + beta * out`` in float64: loops over images, filters, channels around scipy."""
    slide = {"cross_correlation": signal.correlate, "convolution": signal.convolve}[case.mode]
    axes = len(case.window)
    spread = with_zeros_between(w.astype(np.float64), per_axis(case.dilation, axes))
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pairs_of(case)])
    steps = tuple(slice(None, None, s) for s in per_axis(case.stride, axes))

    y = np.zeros(expected_shape(case))
    for n in range(case.batch):
        for k in range(y.shape[1]):
            first = k // case.filters_per_group * case.channels_per_group
            for c in range(case.channels_per_group):
                whole = slide(padded[n, first + c], spread[k, c], mode="valid", method="direct")
                y[n, k] += whole[steps]
    y *= case.alpha
    return y if case.beta == 0 or out is None else y + case.beta * out.astype(np.float64)


def expected_shape(case: ConvCase) -> tuple[int, ...]:
    axes = len(case.window)
    spatial = []
    for n, k, (before, after), s, d in zip(
        case.size, case.window, pairs_of(case), per_axis(case.stride, axes),
        per_axis(case.dilation, axes), strict=True,
    ):  # fmt: skip
        positions = range(-before, n + after - (k - 1) * d)
        spatial.append(len(positions[::s]))
    return (case.batch, case.groups * case.filters_per_group, *spatial)


def with_zeros_between(w: np.ndarray, dilation: tuple[int, ...]) -> np.ndarray:
    shape = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    spread = np.zeros((*w.shape[:2], *shape), w.dtype)
    spread[(..., *(slice(None, None, d) for d in dilation))] = w
    return spread


def pairs_of(case: ConvCase) -> list[tuple[int, int]]:
    dilations = per_axis(case.dilation, len(case.window))
    spread = [(k - 1) * d + 1 for k, d in zip(case.window, dilations, strict=True)]
    if isinstance(case.padding, str):
        sides = {"valid": lambda n: 0, "half": lambda n: n // 2, "full": lambda n: n - 1}
        return [(sides[case.padding](n),) * 2 for n in spread]
    given_ = per_axis(case.padding, len(spread))
    return [(p, p) if isinstance(p, int) else p for p in given_]


def per_axis(value: Any, axes: int) -> tuple[Any, ...]:
    return (value,) * axes if isinstance(value, int) else value
