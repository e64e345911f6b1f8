"""Convolution of int8 on a GPU against the reference: sums of integers are exact, or they are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.properties import check_conv
from tests.strategies import ConvCase, conv_cases

from .conftest import library, place

SUMS = ("int32", "float32")
LAYOUTS = ("nchw", "nhwc")
EXAMPLES = max(200, settings.default.max_examples)


def any_bytes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def blank(shape: tuple[int, ...], dtype: str, layout: str = "nchw") -> ct.DeviceArray:
    """Return memory in which an element that is not written shows."""
    return ct.full(shape, np.nan if dtype == "float32" else -1_515_870_811, dtype, layout=layout)


@settings(max_examples=EXAMPLES)
@given(
    case=conv_cases(dtypes=("int8",), out_dtypes=SUMS, views=("packed",), channels=(1, 2, 3, 4, 8, 16, 32))
)
@example(
    ConvCase(batch=2, channels_per_group=64, filters_per_group=32, size=(9, 10), window=(3, 3), dtype="int8")
)
def test_sums_of_any_bytes_are_exact(case: ConvCase) -> None:
    check_conv(case, place, kind="bytes")


@settings(max_examples=EXAMPLES // 4)
@given(case=conv_cases(dtypes=("int8",), out_dtypes=SUMS, asymmetric=False))
def test_bytes_that_lie_anyhow_are_summed_or_refused(case: ConvCase) -> None:
    """Engines take no operands with gaps, and the legacy calls copy them only for float32."""
    try:
        check_conv(case, place, kind="bytes")
    except NotSupportedError as error:
        assert {case.x_view, case.w_view, case.out_view} != {"packed"}, error
        assert "an operand is not contiguous" in str(error)


@pytest.mark.parametrize("result", SUMS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "keywords"),
    [
        ((2, 64, 9, 10), (32, 64, 3, 3), {"padding": 1}),
        ((2, 5, 9, 10), (7, 5, 3, 3), {"padding": 1}),
        ((8, 64, 28, 28), (64, 64, 3, 3), {"padding": 1, "stride": 2}),
        ((4, 256, 14, 14), (64, 256, 1, 1), {}),
        ((2, 64, 9, 10), (64, 16, 3, 3), {"padding": 2, "groups": 4, "dilation": 2}),
        ((2, 32, 9, 10), (32, 1, 3, 3), {"padding": 1, "groups": 32}),
        ((2, 8, 5, 6, 7), (4, 8, 3, 3, 3), {"padding": 1}),
    ],
)
def test_each_int8_algorithm_equals_reference(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], keywords: dict[str, Any], layout: str, result: str
) -> None:
    x, w = any_bytes(*x_shape), any_bytes(*w_shape, seed=1)
    expected = ct.reference.conv(x, w, **keywords)
    placed = ct.asarray(x, layout=layout), ct.asarray(w, layout=layout)
    table = ct.conv_algorithms(*placed, **keywords, out=blank(expected.shape, result, layout))
    usable = [row for row in table if not row.rejected]
    assert usable, str(table)
    for row in usable:
        y = ct.conv(*placed, **keywords, algo=row, out=blank(expected.shape, result, layout))
        np.testing.assert_array_equal(y.numpy(), expected, err_msg=str(row))


@pytest.mark.parametrize("algo", ["heuristic", "autotune"])
def test_by_default_sums_are_int32(algo: str) -> None:
    x, w = any_bytes(2, 16, 9, 10), any_bytes(8, 16, 3, 3, seed=1)
    for layout in LAYOUTS:
        y = ct.conv(ct.asarray(x, layout=layout), ct.asarray(w, layout=layout), padding=1, algo=algo)
        assert (y.spec.dtype, y.layout) == ("int32", layout)
        np.testing.assert_array_equal(y.numpy(), ct.reference.conv(x, w, padding=1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_that_float32_has_not(layout: str) -> None:
    """Sums over 2**24 that are odd: they are kept in int32 until they are written."""
    x, w = np.full((1, 2048, 1, 2), 127, np.int8), np.full((8, 2048, 1, 1), 127, np.int8)
    x[..., 1], w[:, 0] = -128, 4  # 2047 * 127 * 127 + 4 * 127 is odd
    placed = ct.asarray(x, layout=layout), ct.asarray(w, layout=layout)
    expected = ct.reference.conv(x, w)
    assert (expected % 2 == 1).any()
    assert abs(expected).min() > 2**24
    np.testing.assert_array_equal(ct.conv(*placed).numpy(), expected)
    nearest = ct.conv(*placed, out=blank(expected.shape, "float32", layout)).numpy()
    np.testing.assert_array_equal(nearest, expected.astype(np.float32))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float32_sums_have_factors(layout: str) -> None:
    x, w = any_bytes(2, 16, 9, 10), any_bytes(8, 16, 3, 3, seed=1)
    placed = ct.asarray(x, layout=layout), ct.asarray(w, layout=layout)
    sums = ct.reference.conv(x, w, padding=1)
    out = ct.asarray(np.full(sums.shape, 3, np.float32), layout=layout)
    ct.conv(*placed, padding=1, alpha=0.5, beta=2, out=out)
    np.testing.assert_array_equal(out.numpy(), sums / 2 + 6)


def test_int8_plan_writes_the_dtype_that_it_was_prepared_for() -> None:
    x, w = any_bytes(2, 16, 9, 10), any_bytes(8, 16, 3, 3, seed=1)
    placed = ct.asarray(x, layout="nhwc"), ct.asarray(w, layout="nhwc")
    expected = ct.reference.conv(x, w)
    for result in SUMS:
        plan = ct.conv_plan(*placed, out=blank(expected.shape, result, "nhwc"))
        for _ in range(2):
            out = blank(expected.shape, result, "nhwc")
            assert plan(*placed, out=out).pointer == ct.asarray(out).pointer
            np.testing.assert_array_equal(out.numpy(), expected)


def test_bytes_of_torch() -> None:
    torch = library("torch")
    x, w = any_bytes(2, 16, 9, 10), any_bytes(8, 16, 3, 3, seed=1)
    y = ct.conv(torch.tensor(x, device="cuda"), torch.tensor(w, device="cuda"))
    theirs = torch.from_dlpack(y)
    assert theirs.dtype == torch.int32
    np.testing.assert_array_equal(theirs.cpu().numpy(), ct.reference.conv(x, w))


def test_int8_convolution_equals_the_reference_when_x_is_misaligned() -> None:
    for offset in (0, 1, 4, 8):
        memory = np.zeros(offset + 2 * 16 * 9 * 10, np.int8)
        x = memory[offset:].reshape(2, 16, 9, 10)
        x[...] = any_bytes(2, 16, 9, 10)
        w = any_bytes(8, 16, 3, 3, seed=1)
        expected = ct.reference.conv(x, w)
        for result in SUMS:
            out = blank(expected.shape, result)
            ct.conv(place(x), ct.asarray(w), out=out)
            np.testing.assert_array_equal(out.numpy(), expected)


def test_int8_convolution_without_terms() -> None:
    x, w = ct.empty((2, 0, 4, 4), "int8"), ct.empty((3, 0, 2, 2), "int8")
    y = ct.conv(x, w, out=blank((2, 3, 3, 3), "int32"))
    np.testing.assert_array_equal(y.numpy(), np.zeros((2, 3, 3, 3), np.int32))
