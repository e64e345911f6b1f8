"""Values that properties do not draw, in operations on tensors, layers, convolutions and networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import cudnn_ct as ct
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import rnn_spec
from tests.layers import FLOATS, LayerCase, Place, Tensor, check_layer, compare
from tests.op_cases import ON_IMAGES, simple_call
from tests.rnn_cases import RNNCase, check_weights
from tests.strategies import VIEWS
from tests.tensor_cases import CONVERSIONS, check_in_place, in_place_cases

NAN, INF = float("nan"), float("inf")


def integers(shape: tuple[int, ...], dtype: str = "float32", largest: int = 3) -> np.ndarray:
    return Tensor(shape, dtype, np.random.default_rng(0).integers(-largest, largest + 1, shape)).array()


# --- in place ----------------------------------------------------------------------------------------------


@given(case=in_place_cases())
def test_scale_and_fill_change_the_array_in_place(place: Place, case: Any) -> None:
    check_in_place(case, place)


@pytest.mark.parametrize("over", ["a", "b"])
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
def test_op_tensor_writes_over_an_operand(place: Place, op: str, over: str) -> None:
    arrays = {"a": integers((3, 4, 5)), "b": integers((3, 4, 5))[::-1].copy()}
    keywords = {"op": op, "alpha1": 2, "alpha2": -1, "beta": 3}
    expected = ct.reference.op_tensor(*arrays.values(), **keywords, out=arrays[over].copy())
    placed = {name: place(array) for name, array in arrays.items()}
    ct.op_tensor(*placed.values(), **keywords, out=placed[over])
    for name, array in placed.items():
        compare(array, expected if name == over else arrays[name], exact=True)


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


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_conv_backward_bias_writes_a_strided_out(place: Place, layout: str, dtype: str) -> None:
    dy = Tensor((2, 6, 3, 4), dtype, np.random.default_rng(0).integers(-3, 4, (2, 6, 3, 4)), layout).array()
    for keywords in ({}, {"alpha": -2, "beta": 0.5}):
        whole = np.arange(18).reshape(6, 3).astype(dy.dtype)
        expected = ct.reference.conv_backward_bias(dy, **keywords, out=whole[:, 1].copy())
        out = place(whole[:, 1])
        compare(ct.conv_backward_bias(place(dy), **keywords, out=out), expected, exact=True)
        compare(out, expected, exact=True)


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
    for op in ("min", "max", "amax", "add", "mul", "average", "norm1", "norm2"):
        for axes in (0, 1, (), None):
            expected = ct.reference.reduce(a, op=op, axis=axes, propagate_nan=propagate)
            compare(ct.reduce(x, op=op, axis=axes, propagate_nan=propagate), expected, exact=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_reduce_that_ignores_nan_returns_nan_when_all_elements_are(place: Place, dtype: str) -> None:
    rows = [[NAN] * 4, [NAN, -INF, 2, NAN], [INF, 5, NAN, 7], [NAN] * 4, [-INF, INF, NAN, 3], [2, NAN, -7, 1]]
    x = Tensor((6, 4), dtype, np.array(rows)).array()
    for op in ("min", "max", "amax"):
        for axes in (0, 1, (0, 1)):
            for array in (x, np.ascontiguousarray(np.full_like(x, np.nan))):
                keywords = {"op": op, "axis": axes, "propagate_nan": False}
                compare(
                    ct.reduce(place(array), **keywords), ct.reference.reduce(array, **keywords), exact=True
                )
        out = np.arange(6).astype(x.dtype)
        keywords = {"op": op, "axis": 1, "propagate_nan": False, "alpha": -2, "beta": 0.5}
        expected = ct.reference.reduce(x, **keywords, out=out.copy())
        compare(ct.reduce(place(x), **keywords, out=place(out)), expected, exact=True)
        infinite = Tensor((2, 3), dtype, np.array([[NAN, INF, INF], [-INF, -INF, NAN]])).array()
        assert not np.isnan(ct.reduce(place(infinite), op=op, axis=1, propagate_nan=False).numpy()).any()


@pytest.mark.parametrize("op", ["min", "max"])
def test_reduce_with_indices_that_ignores_nan_returns_nan_when_all_elements_are(
    place: Place, op: str
) -> None:
    x = Tensor((3, 3), "float32", np.array([[NAN] * 3, [4, NAN, 5], [3, 1, 2]])).array()
    y, indices = ct.reduce_with_indices(place(x), op=op, axis=1, propagate_nan=False)
    expected = ct.reference.reduce(x, op=op, axis=1, propagate_nan=False)
    compare(y, expected, exact=True)
    assert x[[1, 2], indices.numpy()[1:]].tolist() == expected[1:].tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinity_and_nan_times_0_are_nan(place: Place, dtype: str) -> None:
    """cuDNN does not read operands whose factors are all 0."""
    a = Tensor((2, 5), dtype, np.array([[INF, -INF, NAN, 1, -2], [0, 3, 1, INF, 5]])).array()
    b = Tensor((2, 1), dtype, np.array([[4], [NAN]])).array()
    for alpha in (0.0, -0.0):
        scaled = a.copy()
        compare(ct.scale(place(a.copy()), alpha=alpha), ct.reference.scale(scaled, alpha=alpha), exact=True)
        compare(ct.add(place(a), place(b), alpha=alpha), ct.reference.add(a, b, alpha=alpha), exact=True)
    for target in CONVERSIONS[dtype]:
        expected = ct.reference.transform(a, dtype=target, alpha=0)
        compare(ct.transform(place(a), dtype=target, alpha=0), expected, exact=True)
    for op, propagate in (("add", True), ("mul", True), ("min", True), ("max", False)):
        for factors in ((0, 0), (0, 2), (2, 0)):
            out = np.full_like(a, 7)
            keywords = dict(zip(("alpha1", "alpha2"), factors, strict=True))
            keywords |= {"op": op, "propagate_nan": propagate, "beta": 3}
            expected = ct.reference.op_tensor(a, b, **keywords, out=out.copy())
            compare(ct.op_tensor(place(a), place(b), **keywords, out=place(out)), expected, exact=True)
    for op in ("sqrt", "not"):
        expected = ct.reference.op_tensor(a, op=op, alpha1=0)
        compare(ct.op_tensor(place(a), op=op, alpha1=0, alpha2=0), expected, exact=True)


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
def test_grid_sample_and_its_gradient_are_0_at_infinite_and_large_coordinates(
    place: Place, dtype: str
) -> None:
    rng, far = np.random.default_rng(0), (4.5, 1e4, 6e4, INF if dtype == "float16" else 1e20, INF)
    points = [(sign * n, 0.25) for n in far for sign in (1, -1)]
    points += [(y, x) for x, y in points] + [(INF, -INF), (3e4, INF), (0.5, -0.25), (-1.0, 1.0)]
    grid = Tensor((1, 1, len(points), 2), dtype, np.array(points).reshape(1, 1, -1, 2)).array()
    grid = np.concatenate([grid, grid[:, :, ::-1]])
    x = Tensor((2, 3, 5, 4), dtype, rng.integers(-4, 5, (2, 3, 5, 4))).array()
    dy = Tensor((2, 3, 1, len(points)), dtype, rng.integers(-4, 5, (2, 3, 1, len(points)))).array()
    expected = ct.reference.grid_sample(x, grid)
    assert not expected[0, :, 0, :-2].any()
    compare(ct.grid_sample(place(x), place(grid)), expected)
    wanted = ct.reference.grid_sample_backward(dy, x, grid)
    for ours, theirs in zip(ct.grid_sample_backward(place(dy), place(x), place(grid)), wanted, strict=True):
        compare(ours, theirs)


def test_grid_sample_has_an_axis_of_one_pixel_at_every_position(place: Place) -> None:
    x = np.array([[[[2.0, 4.0]]]], np.float32)
    grid = np.array([[[[1, y] for y in (-7, 0, 1e30, INF)]]], np.float32)
    assert ct.reference.grid_sample(x, grid).tolist() == [[[[4, 4, 4, 4]]]]
    compare(ct.grid_sample(place(x), place(grid)), ct.reference.grid_sample(x, grid))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("coefficient", [0, -0.0, 0.5, 1, 2])
def test_gradient_of_elu_is_its_slope_on_both_sides_of_0(
    place: Place, coefficient: float, dtype: str
) -> None:
    check_gradient_of_elu(coefficient, dtype, 8)


def check_gradient_of_elu(coefficient: float, dtype: str, size: int) -> None:
    at = np.resize([-INF, -9, -1, -0.25, 0.25, 1, 9, INF], size)
    x = ct.asarray(at, dtype)
    y, dy = ct.activation(x, mode="elu", coefficient=coefficient), ct.full(x.shape, 2, dtype)
    dx = ct.activation_backward(dy, x, y, mode="elu", coefficient=coefficient).numpy().astype(float)
    slope = np.where(at > 0, 1, coefficient * np.exp(np.minimum(at, 0)))
    np.testing.assert_allclose(dx, 2 * slope, atol=2e-2)


# --- axes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["min", "max"])
def test_reduce_with_indices_counts_in_c_order_when_memory_is_in_another(place: Place, op: str) -> None:
    """The memory of the operand, or that of the indices, which have any int32 in it before."""
    x = Tensor((3, 4, 5, 6), "float32", "distinct", "nhwc")
    for axes in (0, 1, (1, 2, 3)):
        check_indices(x, op, axes, place)
        shape = ct.shapes.tensor.reduced_shape(x.shape, axes, keepdims=True)
        for view in VIEWS:
            check_indices(x, op, axes, place, Tensor(shape, "int32", "integers", "nhwc", view))


def check_indices(x: Tensor, op: str, axis: Any, place: Place, *memory: Tensor) -> None:
    keywords = {"op": op, "axis": axis, "keepdims": bool(memory)}
    check_layer(LayerCase("reduce_with_indices", (x,), keywords, exact=True, more=memory), place)


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


def test_operands_with_negative_strides_are_copied(place: Place) -> None:
    turned = integers((4, 3, 5))[::-1, :, ::-1]
    images, w = integers((1, 3, 4, 5))[:, :, ::-1], np.ones((2, 3, 1, 1), np.float32)
    for call, expected in (
        (lambda: ct.reduce(place(turned), axis=(0, 2)), turned.sum(axis=(0, 2))),
        (lambda: ct.add(place(turned), place(integers((4, 3, 5)))), turned + integers((4, 3, 5))),
        (lambda: ct.transform(place(turned), alpha=2), 2 * turned),
        (lambda: ct.conv(place(images), ct.asarray(w)), ct.reference.conv(images, w)),
    ):
        compare(call(), expected, exact=True)
    for write in (lambda x: ct.scale(x, alpha=2), lambda x: ct.fill(x, 1)):
        with pytest.raises(ValueError, match=r"x has strides \(-15, 5, -1\); cuDNN writes only where"):
            write(place(turned))


# --- convolutions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0, 2])
def test_convolution_without_terms_scales_its_result(place: Place, beta: float) -> None:
    x, w = ct.empty((2, 0, 4, 4)), ct.empty((3, 0, 2, 2))
    out = ct.full((2, 3, 3, 3), NAN if beta == 0 else 4.0)
    ct.conv(x, w, beta=beta, out=out)
    np.testing.assert_array_equal(out.numpy(), np.full((2, 3, 3, 3), 4.0 * beta))
    assert ct.conv(ct.empty((0, 2, 4, 4)), ct.zeros((3, 2, 2, 2))).shape == (0, 3, 3, 3)
    b = ct.asarray(np.arange(3, dtype=np.float32))
    y = ct.conv_bias_activation(x, w, b, activation="identity")
    np.testing.assert_array_equal(y.numpy(), np.broadcast_to([[[0]], [[1]], [[2]]], (2, 3, 3, 3)))
    assert ct.conv_bias_activation(ct.empty((0, 2, 4, 4)), ct.zeros((3, 2, 2, 2)), b).shape == (0, 3, 3, 3)


# --- recurrent networks ------------------------------------------------------------------------------------


def test_rnn_takes_missing_gradients_as_0(place: Place) -> None:
    spec = rnn_spec("lstm", 5, 4, 2, direction="bidirectional", dtype="float64")
    case = RNNCase(spec, 3, (3, 1), False, 0)
    net, x, w = case.operands()
    dhy = np.ones((4, 2, 4))
    wanted = rnn_backward(case.x, case.tame, spec, dhy=dhy, lengths=case.lengths)
    done = net.forward(x, w, lengths=case.lengths, training=True)
    assert net.forward(x, w).reserve is None
    back = net.backward_data(None, done.reserve, ct.asarray(dhy))
    for got, want in zip(back, wanted[:3], strict=True):
        compare(got, want)
    dw = ct.full((net.weight_size,), NAN, "float64")
    assert net.backward_weights(done.reserve, out=dw) is dw
    check_weights(dw, spec, wanted.dweights, 1e-11)


def test_rnn_dropout_repeats_from_a_seed_and_from_a_saved_state(place: Place) -> None:
    case = RNNCase(rnn_spec("gru", 32, 64, 3, dropout=0.5), 6, (6, 6, 4), False, 0)
    net, x, w = case.operands(seed=5)
    twin, *_ = case.operands(seed=5)
    plain = net.forward(x, w).y
    compare(plain, rnn(case.x, case.tame, case.spec).y, tolerance=3e-5)
    first, saved = net.forward(x, w, training=True).y.numpy(), net.dropout_state.save()
    second = net.forward(x, w, training=True).y.numpy()
    np.testing.assert_array_equal(twin.forward(x, w, training=True).y.numpy(), first)
    assert (first != plain.numpy()).any()
    assert (first != second).any()
    net.dropout_state.restore(saved)
    np.testing.assert_array_equal(net.forward(x, w, training=True).y.numpy(), second)
