"""Values that properties do not draw, in operations on tensors, reductions, layers and convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import cudnn_ct as ct
from cudnn_ct.errors import CudnnWarning
from tests.layers import FLOATS, Place, Tensor, compare
from tests.op_cases import ON_IMAGES, simple_call
from tests.strategies import lay_out
from tests.tensor_cases import (
    CONVERSIONS,
    check_in_place,
    check_over_operand,
    in_place_cases,
    over_operand_cases,
)

NAN, INF = float("nan"), float("inf")
OPS = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros")


def integers(shape: tuple[int, ...], dtype: str = "float32", largest: int = 3) -> np.ndarray:
    return Tensor(shape, dtype, np.random.default_rng(0).integers(-largest, largest + 1, shape)).array()


# --- in place ----------------------------------------------------------------------------------------------


@given(case=in_place_cases())
def test_scale_and_fill_change_the_array_in_place(place: Place, case: Any) -> None:
    check_in_place(case, place)


@given(case=over_operand_cases())
def test_op_tensor_writes_over_an_operand(place: Place, case: Any) -> None:
    check_over_operand(case, place)


IN_PLACE = ("activation", "activation_backward", "softmax", "softmax_backward", "add", "op_tensor")


@pytest.mark.parametrize("operation", ON_IMAGES)
def test_result_is_written_over_an_operand_or_rejected(place: Place, operation: str) -> None:
    values = np.random.default_rng(0).integers(1, 5, (2, 4, 3, 3)).astype(np.float32)
    x = ct.asarray(values)
    y = simple_call(operation, x).numpy()
    if operation in IN_PLACE:
        assert simple_call(operation, x, out=x) is x
        np.testing.assert_array_equal(x.numpy(), y)
    elif y.shape == x.shape:
        with pytest.raises(ValueError, match=r"^out overlaps"):
            simple_call(operation, x, out=x)
        np.testing.assert_array_equal(x.numpy(), values)


@pytest.mark.parametrize("value", [1 / 3, 1 + 2**-8 + 2**-40, -65504.0, 1e-7, INF, NAN])
@pytest.mark.parametrize("dtype", FLOATS)
def test_fill_rounds_once(place: Place, dtype: str, value: float) -> None:
    x = ct.empty((3, 5), dtype)
    expected = np.zeros((3, 5), x.dtype)
    compare(ct.fill(x, value), ct.reference.fill(expected, value), exact=True)


# --- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("propagate", [True, False])
def test_op_tensor_and_reduce_treat_nan_as_the_reference_does(
    place: Place, propagate: bool, dtype: str
) -> None:
    a = Tensor((2, 3), dtype, np.array([[NAN, 1, 2], [3, NAN, NAN]])).array()
    b = Tensor((2, 3), dtype, np.array([[0, NAN, 5], [NAN, NAN, 1]])).array()
    x, y = place(a), place(b)
    for op in ("min", "max", "add", "mul"):
        expected = ct.reference.op_tensor(a, b, op=op, propagate_nan=propagate)
        compare(ct.op_tensor(x, y, op=op, propagate_nan=propagate), expected, exact=True)
    for op in ("min", "max", "amax", "add", "mul", "avg", "norm1", "norm2"):
        for axes in (0, 1, (), None):
            expected = ct.reference.reduce(a, op=op, axis=axes, propagate_nan=propagate)
            compare(ct.reduce(x, op=op, axis=axes, propagate_nan=propagate), expected, exact=True)


@pytest.mark.parametrize("op", ["sqrt", "not"])
def test_op_tensor_of_one_operand(place: Place, op: str) -> None:
    a = np.array([0.0, 4.0, 9.0, INF], np.float32)
    for alpha1 in (1, 4):
        got = ct.op_tensor(place(a), op=op, alpha1=alpha1)
        compare(got, ct.reference.op_tensor(a, op=op, alpha1=alpha1))


@pytest.mark.parametrize(
    ("source", "target"), [(a, b) for a in CONVERSIONS for b in CONVERSIONS[a] if a != b]
)
def test_transform_rounds_once(place: Place, source: str, target: str) -> None:
    x = Tensor((3, 5, 7, 11), source, "floats").array()
    expected = ct.reference.transform(x, dtype=target)
    compare(ct.transform(place(x), dtype=target), expected, exact=True)
    compare(ct.transform(place(x), dtype=target, layout="nhwc"), expected, exact=True)
    tiny = ct.reference.transform(x, dtype=target, alpha=1e-3)
    compare(ct.transform(place(x), dtype=target, alpha=1e-3), tiny)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("coefficient", [0, -0.0, 0.5, 1, 2])
def test_gradient_of_elu_is_its_slope_on_both_sides_of_0(
    place: Place, coefficient: float, dtype: str
) -> None:
    at = np.array([-INF, -9, -1, -0.25, 0.25, 1, 9, INF])
    x = ct.asarray(at, dtype)
    y, dy = ct.activation(x, mode="elu", coefficient=coefficient), ct.full(x.shape, 2, dtype)
    dx = ct.activation_backward(dy, x, y, mode="elu", coefficient=coefficient).numpy().astype(float)
    slope = np.where(at > 0, 1, coefficient * np.exp(np.minimum(at, 0)))
    np.testing.assert_allclose(dx, 2 * slope, atol=2e-2)


# --- axes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_reduce_over_axes_of_length_1(place: Place, op: str, dtype: str) -> None:
    """Nothing is left to reduce, and cuDNN rejects it."""
    x, out = integers((2, 1, 5), dtype), integers((2, 5), dtype)
    for alpha in (2, -2):
        keywords: dict[str, Any] = {"op": op, "axis": 1, "alpha": alpha, "beta": 3}
        expected = ct.reference.reduce(x, **keywords, out=out.copy())
        compare(ct.reduce(place(x), **keywords, out=place(out.copy())), expected, exact=True)
    kept = ct.reduce(place(x), op=op, axis=(1,), keepdims=True)
    compare(kept, ct.reference.reduce(x, op=op, axis=(1,), keepdims=True), exact=True)
    if op in ("min", "max"):
        found = ct.reduce_with_indices(place(x), op=op, axis=1)
        compare(found.y, x[:, 0], exact=True)
        compare(found.indices, np.zeros((2, 5), np.int32))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 5, 6)])
def test_reduce_with_indices_finds_the_element(place: Place, op: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)
    for layout in ("nchw", "nhwc") if len(shape) == 4 else ("nchw",):
        placed = place(lay_out(x, layout, "packed"))
        for axes in (0, 1, tuple(range(1, len(shape)))):
            expected = ct.reference.reduce_with_indices(x, op=op, axis=axes)
            out = place(np.full((*expected.y.shape, 2), NAN, np.float32)[..., 0])
            for got in (
                ct.reduce_with_indices(placed, op=op, axis=axes),
                ct.reduce_with_indices(placed, op=op, axis=axes, out=out),
            ):
                compare(got.y, expected.y, exact=True)
                compare(got.indices, expected.indices)


def test_operations_on_eight_axes_that_cannot_be_joined(place: Place) -> None:
    a, b = integers((2, 3) * 4), integers((2, 1) * 4)
    compare(ct.add(place(a), place(b)), a + b, exact=True)
    for axes in ((0, 2, 4, 6), (1, 3, 5, 7), (0, 1, 2), None):
        compare(ct.reduce(place(a), axis=axes), ct.reference.reduce(a, axis=axes), exact=True)
    x, order = ct.asarray(a), (5, 2, 7, 0, 3, 6, 1, 4)
    shuffled, seen = x.transpose(order), a.transpose(order)
    compare(ct.transform(shuffled), seen, exact=True)
    compare(ct.reduce(shuffled, axis=(0, 3, 4)), seen.sum(axis=(0, 3, 4)), exact=True)
    compare(ct.add(shuffled, place(np.ascontiguousarray(seen))), 2 * seen, exact=True)
    compare(ct.scale(shuffled, alpha=3), 3 * seen, exact=True)


def test_operands_with_negative_strides_are_copied_with_a_warning(place: Place) -> None:
    turned = integers((4, 3, 5))[::-1, :, ::-1]
    images, w = integers((1, 3, 4, 5))[:, :, ::-1], np.ones((2, 3, 1, 1), np.float32)
    for call, expected in (
        (lambda: ct.reduce(place(turned), axis=(0, 2)), turned.sum(axis=(0, 2))),
        (lambda: ct.add(place(turned), place(integers((4, 3, 5)))), turned + integers((4, 3, 5))),
        (lambda: ct.transform(place(turned), alpha=2), 2 * turned),
        (lambda: ct.conv(place(images), ct.asarray(w)), ct.reference.conv(images, w)),
    ):
        with pytest.warns(CudnnWarning, match="copied through host memory"):
            compare(call(), expected, exact=True)
    for write in (lambda x: ct.scale(x, alpha=2), lambda x: ct.fill(x, 1)):
        with pytest.raises(ValueError, match=r"x has strides \(-15, 5, -1\); cuDNN writes only where"):
            write(place(turned))


# --- convolutions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0, 2])
def test_convolution_without_terms(place: Place, beta: float) -> None:
    x, w = ct.empty((2, 0, 4, 4)), ct.empty((3, 0, 2, 2))
    out = ct.full((2, 3, 3, 3), NAN if beta == 0 else 4.0)
    ct.conv(x, w, beta=beta, out=out)
    np.testing.assert_array_equal(out.numpy(), np.full((2, 3, 3, 3), 4.0 * beta))
    assert ct.conv(ct.empty((0, 2, 4, 4)), ct.zeros((3, 2, 2, 2))).shape == (0, 3, 3, 3)
    b = ct.asarray(np.arange(3, dtype=np.float32))
    y = ct.conv_bias_activation(x, w, b, activation="identity")
    np.testing.assert_array_equal(y.numpy(), np.broadcast_to([[[0]], [[1]], [[2]]], (2, 3, 3, 3)))
    assert ct.conv_bias_activation(ct.empty((0, 2, 4, 4)), ct.zeros((3, 2, 2, 2)), b).shape == (0, 3, 3, 3)
