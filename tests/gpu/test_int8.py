"""Convolution of int8 on a GPU against the reference: sums of integers are exact, or they are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.errors import NotSupportedError
from tests.conv_cases import int8_cases
from tests.layers import LayerCase, Tensor, check_layer
from tests.strategies import VIEWS, placing

from .conftest import check_drawn, examples, place

SUMS = ("int32", "float32")
LAYOUTS = ("nchw", "nhwc")
EXAMPLES = examples(200)


def any_bytes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def blank(shape: tuple[int, ...], dtype: str, layout: str = "nchw") -> ct.DeviceArray:
    """Return memory in which an element that is not written shows."""
    return ct.full(shape, np.nan if dtype == "float32" else -1_515_870_811, dtype, layout=layout)


@settings(max_examples=EXAMPLES)
@given(case=int8_cases(channels=(1, 2, 3, 4, 8, 16, 32)))
def test_int8_convolution_equals_reference(case: LayerCase) -> None:
    check_drawn(case)


@settings(max_examples=examples(50))
@given(case=int8_cases(VIEWS, asymmetric=False))
def test_int8_convolution_equals_reference_or_is_rejected_when_operands_are_not_contiguous(
    case: LayerCase,
) -> None:
    """Engines take no operands with gaps, and the legacy calls copy them only for float32."""
    try:
        check_drawn(case)
    except NotSupportedError as error:
        given = (*case.operands, *case.outs.values())
        assert {one.view for one in given if one} != {"packed"}, error
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
    if not usable and _lib.load().kind != "full":
        pytest.skip(str(table))
    assert usable, str(table)
    for row in usable:
        y = ct.conv(*placed, **keywords, algo=row, out=blank(expected.shape, result, layout))
        np.testing.assert_array_equal(y.numpy(), expected, err_msg=str(row))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_int8_sums_are_exact_when_float32_cannot_hold_them(layout: str) -> None:
    x, w = np.full((1, 2048, 1, 2), 127, np.int8), np.full((8, 2048, 1, 1), 127, np.int8)
    x[..., 1], w[:, 0] = -128, 4  # 2047 * 127 * 127 + 4 * 127 is odd
    placed = ct.asarray(x, layout=layout), ct.asarray(w, layout=layout)
    expected = ct.reference.conv(x, w)
    assert (expected % 2 == 1).any()
    assert abs(expected).min() > 2**24
    np.testing.assert_array_equal(ct.conv(*placed).numpy(), expected)
    nearest = ct.conv(*placed, out=blank(expected.shape, "float32", layout)).numpy()
    np.testing.assert_array_equal(nearest, expected.astype(np.float32))


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


@pytest.mark.parametrize("result", SUMS)
@pytest.mark.parametrize("offset", [0, 1, 4, 8])
def test_int8_convolution_equals_reference_when_x_is_misaligned(offset: int, result: str) -> None:
    operands = Tensor((2, 16, 9, 10), "int8", "bytes"), Tensor((8, 16, 3, 3), "int8", "bytes", seed=1)
    case = LayerCase("conv", operands, outs={"out": Tensor((2, 8, 7, 8), result)}, exact=True)
    check_layer(case, placing(place, 0, offset, 0))  # out, x and w
