"""Operations on whole tensors and reductions against plain Python, element by element."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct._bindings import constants
from cudnn_ct._bindings.enums import OpTensorOp, ReduceTensorOp
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.specs import TensorSpec, packed_strides
from cudnn_ct.shapes.tensor import MAX_AXES, OP_TENSOR_OPS, REDUCE_OPS, reduced_shape

BINARY = ("add", "mul", "min", "max")

shapes = st.lists(st.integers(1, 4), min_size=0, max_size=5).map(tuple)
floats = st.sampled_from(FLOATS)


def integers(shape: tuple[int, ...], seed: int = 0, dtype: str = "float64") -> np.ndarray:
    values = np.random.default_rng(seed).integers(-3, 4, shape)
    return np.asarray(values).astype(as_dtype(dtype).numpy)


@st.composite
def shapes_to_broadcast(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(shapes)
    return shape, tuple(n if draw(st.booleans()) else 1 for n in shape)


# --- element by element ------------------------------------------------------------------------------------


def one(op: str, a: float, b: float) -> float:
    return {"add": a + b, "mul": a * b, "min": min(a, b), "max": max(a, b)}[op]


@given(
    shapes=shapes_to_broadcast(), op=st.sampled_from(BINARY), dtype=floats, factors=st.sampled_from(
        ((1, 1, 0), (2, -1, 0), (1, 0.5, -2))
    ),
)  # fmt: skip
def test_two_operands(shapes: Any, op: str, dtype: str, factors: tuple[float, float, float]) -> None:
    a, b = integers(shapes[0], 0, dtype), integers(shapes[1], 1, dtype)
    alpha1, alpha2, beta = factors
    out = integers(shapes[0], 2, dtype)
    before = out.astype(float)
    y = reference.op_tensor(a, b, op=op, alpha1=alpha1, alpha2=alpha2, beta=beta, out=out)
    assert y is out
    for index in np.ndindex(*shapes[0]):
        other = tuple(0 if n == 1 else i for i, n in zip(index, shapes[1], strict=True))
        expected = one(op, alpha1 * float(a[index]), alpha2 * float(b[other])) + beta * before[index]
        assert float(y[index]) == expected


@given(shapes=shapes_to_broadcast(), dtype=floats)
def test_a_sum_is_the_operation_add(shapes: Any, dtype: str) -> None:
    a, b = integers(shapes[0], 0, dtype), integers(shapes[1], 1, dtype)
    out = integers(shapes[0], 2, dtype)
    expected = 2 * (a.astype(float) + b.astype(float)) - out.astype(float)
    np.testing.assert_array_equal(reference.add(a, b), reference.op_tensor(a, b))
    assert reference.add(a, b, alpha=2, beta=-1, out=out) is out
    np.testing.assert_array_equal(out.astype(float), expected)


@given(shape=shapes, dtype=floats)
def test_one_operand(shape: tuple[int, ...], dtype: str) -> None:
    a = np.abs(integers(shape, 0, dtype))
    roots, inverse = reference.op_tensor(a, op="sqrt", alpha1=4), reference.op_tensor(a, op="not", alpha1=2)
    assert roots.dtype == inverse.dtype == a.dtype
    for index in np.ndindex(*shape):
        np.testing.assert_allclose(float(roots[index]), 2 * math.sqrt(float(a[index])), rtol=4e-3)
        assert float(inverse[index]) == 1 - 2 * float(a[index])


def test_roots_of_less_than_nothing_are_nan_in_silence() -> None:
    assert np.isnan(reference.op_tensor(np.array([-1.0]), op="sqrt")).all()


@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins_or_loses(op: str) -> None:
    a, b = np.array([np.nan, 1, np.nan]), np.array([2, np.nan, np.nan])
    assert np.isnan(reference.op_tensor(a, b, op=op)).all()
    lost = reference.op_tensor(a, b, op=op, propagate_nan=False)
    np.testing.assert_array_equal(lost, [2, 1, np.nan])
    assert np.isnan(reference.op_tensor(a, b, op="add", propagate_nan=False)).all()


@pytest.mark.parametrize("op", OpTensorOp)
def test_operations_by_enum(op: OpTensorOp) -> None:
    a, name = np.array([4.0, 9.0]), op.name.lower()
    b = a[:1] if name in BINARY else None
    np.testing.assert_array_equal(reference.op_tensor(a, b, op=op), reference.op_tensor(a, b, op=name))


def test_in_place() -> None:
    x = np.array([1.0, 2.0, 3.0])
    assert reference.op_tensor(x, x, op="mul", out=x) is x
    assert reference.scale(x, alpha=0.5) is x
    assert x.tolist() == [0.5, 2, 4.5]
    half = np.zeros(2, as_dtype("bfloat16").numpy)
    assert reference.fill(half, 1 + 2**-8 + 2**-30) is half
    assert half.astype(float).tolist() == [1 + 2**-7] * 2


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: reference.op_tensor(np.ones(2)), ValueError, "op='add' needs b"),
        (
            lambda: reference.op_tensor(np.ones(2), np.ones(2), op="not"),
            ValueError,
            "op='not' takes one tensor",
        ),
        (lambda: reference.op_tensor(np.ones(2), op="exp"), ValueError, "op must be one of add, mul, min"),
        (lambda: reference.op_tensor(np.ones(2), np.ones(2), propagate_nan=2), TypeError, "propagate_nan"),
        (lambda: reference.op_tensor(np.ones(2, int), op="not"), TypeError, "op_tensor takes .* not int64"),
        (
            lambda: reference.op_tensor(np.ones(2), op="not", alpha1=None),
            TypeError,
            "alpha1 must be a number",
        ),
        (lambda: reference.op_tensor(np.ones(2), op="not", alpha1="a"), TypeError, "alpha1 must be a number"),
        (lambda: reference.op_tensor(*np.ones((2, 3)), alpha2=np.ones(3)), TypeError, "alpha2 must be a num"),
        (lambda: reference.add(np.ones((2, 3)), np.ones((2, 2))), ValueError, r"b has shape \(2, 2\); a of"),
        (lambda: reference.add(np.ones((2, 1)), np.ones((2, 3))), ValueError, r"b has shape \(2, 3\)"),
        (lambda: reference.add(np.ones((2, 3)), np.ones(3)), ValueError, "needs as many axes"),
        (lambda: reference.add(np.ones(2), np.ones(2, np.float32)), TypeError, "a is float64 and b is"),
        (lambda: reference.add(np.ones(2), np.ones(2), beta=1), ValueError, "beta=1 needs out"),
        (lambda: reference.scale([1.0], alpha=2), TypeError, "x must be an array, not"),
        (lambda: reference.scale(np.ones(2), alpha="2"), TypeError, "alpha must be a number"),
        (lambda: reference.fill(np.ones(2, int), 2), TypeError, "fill takes .* not int64"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


# --- layouts -----------------------------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(0, 4), min_size=3, max_size=5).map(tuple),
    layout=st.sampled_from((None, "nchw", "nhwc")), source=st.sampled_from(("nchw", "nhwc")),
    dtypes=st.tuples(floats, floats),
)  # fmt: skip
def test_moved_elements_are_the_same(shape: Any, layout: Any, source: str, dtypes: Any) -> None:
    x = reference.transform(integers(shape, 0, dtypes[0]), layout=source)
    y = reference.transform(x, layout=layout, dtype=dtypes[1])
    assert y.shape == shape
    assert y.dtype == as_dtype(dtypes[1]).numpy
    assert (layout or source) in TensorSpec(shape, elements(y), dtypes[1]).layouts
    np.testing.assert_array_equal(y.astype(float), integers(shape))


@given(shape=shapes, gap=st.integers(0, 3), order=st.randoms(use_true_random=False))
def test_any_strides_in_which_elements_have_their_places(shape: Any, gap: int, order: Any) -> None:
    axes = list(range(len(shape)))
    order.shuffle(axes)
    strides, step = [0] * len(shape), 1 + gap
    for axis in axes:
        strides[axis], step = step, step * shape[axis] + gap
    y = reference.transform(integers(shape), strides=tuple(strides))
    np.testing.assert_array_equal(y, integers(shape))
    assert all(n == 1 or a == b for n, a, b in zip(shape, elements(y), strides, strict=True))


def test_integers_stay_what_they_are() -> None:
    x = integers((1, 3, 2, 2)).astype(np.int8)
    y = reference.transform(x, layout="nhwc")
    assert y.dtype == np.int8
    np.testing.assert_array_equal(y, x)
    large = reference.transform(x, alpha=100)
    np.testing.assert_array_equal(large, np.clip(100.0 * x, -128, 127))


def test_a_view_is_packed() -> None:
    x = integers((2, 6, 4, 4))[:, ::2]
    assert elements(reference.transform(x)) == packed_strides((2, 3, 4, 4))


def test_out_keeps_its_strides() -> None:
    x, out = integers((1, 3, 2, 2)), np.ones((1, 2, 2, 3)).transpose(0, 3, 1, 2)
    assert reference.transform(x, alpha=2, beta=1, out=out) is out
    np.testing.assert_array_equal(out, 2 * x + 1)
    assert reference.transform(x, layout="nhwc", out=out) is out
    with pytest.raises(ValueError, match=r"out has the wrong strides: got \(12, 1, 6, 3\), expected \(12, 4"):
        reference.transform(x, layout="nchw", out=out)
    with pytest.raises(TypeError, match="out is float64; the result is float32"):
        reference.transform(x, dtype="float32", out=out)
    with pytest.raises(ValueError, match="out has shape"):
        reference.transform(x, layout="nchw", out=out[0])
    empty = out[:0]
    assert reference.transform(x[:0], layout="nchw", out=empty) is empty  # whose strides reach nothing


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"layout": "chwn"}, ValueError, "layout must be one of nchw, nhwc"),
        ({"layout": "nhwc", "strides": (4, 2, 1)}, ValueError, "pass one"),
        ({"strides": (4, 1)}, ValueError, r"strides \(4, 1\) do not fit x of shape \(2, 2, 2\)"),
        ({"strides": (2, 2, 1)}, ValueError, r"strides \(2, 2, 1\) overlap"),
        ({"strides": (0, 2, 1)}, ValueError, "would share memory"),
        ({"strides": (4, 2, -1)}, ValueError, "strides must be positive ints"),
        ({"dtype": "int8"}, TypeError, "got float64 to int8"),
        ({"x": np.ones((2, 2, 2), np.int8), "dtype": "float32"}, TypeError, "got int8 to float32"),
        ({"x": np.ones((2, 2), np.int64)}, TypeError, "got int64 to int64"),
    ],
)
def test_moves_that_do_not_fit_are_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.transform(**({"x": np.ones((2, 2, 2))} | change))


def elements(x: np.ndarray) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


# --- reductions --------------------------------------------------------------------------------------------


@st.composite
def reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, tuple[int, ...]]:
    """A shape of up to 8 axes, axes as a caller may write them, and which those are."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3)), min_size=0, max_size=8)))
    shape = shape if math.prod(shape) <= 300 else tuple(min(n, 2) for n in shape)
    everything = tuple(range(len(shape)))
    gone = tuple(axis for axis in everything if draw(st.booleans()))
    written = tuple(a - len(shape) if draw(st.booleans()) else a for a in draw(st.permutations(gone)))
    if gone == everything and draw(st.booleans()):
        return shape, None, gone
    return shape, written[0] if len(written) == 1 and draw(st.booleans()) else written, gone


def fold(op: str, values: list[float]) -> float:
    return {
        "add": math.fsum,
        "mul": math.prod,
        "min": min,
        "max": max,
        "amax": lambda v: max(map(abs, v)),
        "avg": lambda v: math.fsum(v) / len(v),
        "norm1": lambda v: math.fsum(map(abs, v)),
        "norm2": lambda v: math.sqrt(math.fsum(n * n for n in v)),
        "mul_no_zeros": lambda v: math.prod(n for n in v if n),
    }[op](values)


def taken_together(shape: tuple[int, ...], gone: tuple[int, ...]) -> dict[tuple[int, ...], list[Any]]:
    """For each element of a result with kept axes, the elements that it is made of, in C order."""
    return {
        place: list(product(*(range(n) if a in gone else [p]
                              for a, (n, p) in enumerate(zip(shape, place, strict=True)))))
        for place in np.ndindex(*reduced_shape(shape, gone, keepdims=True))
    }  # fmt: skip


@given(problem=reductions(), op=st.sampled_from(REDUCE_OPS), dtype=floats, keepdims=st.booleans())
def test_elements_taken_together(problem: Any, op: str, dtype: str, keepdims: bool) -> None:
    shape, axes, gone = problem
    x = integers(shape, 0, dtype)
    if "mul" in op:  # so that all products are exact in every dtype
        x = np.where(np.abs(x.astype(float)) > 1, 1, x.astype(float)).astype(x.dtype)
    y = reference.reduce(x, op=op, axis=axes, keepdims=keepdims)
    assert y.dtype == x.dtype
    assert y.shape == reduced_shape(shape, axes, keepdims)
    y = y.reshape(reduced_shape(shape, axes, keepdims=True)).astype(float)
    for place, elements_ in taken_together(shape, gone).items():
        expected = fold(op, [float(x[e]) for e in elements_])
        if op in ("avg", "norm2") or dtype == "bfloat16":
            np.testing.assert_allclose(y[place], expected, rtol=8e-3)
        else:
            assert y[place] == expected


@given(problem=reductions(), op=st.sampled_from(("min", "max")), keepdims=st.booleans())
def test_positions_are_those_of_the_first(problem: Any, op: str, keepdims: bool) -> None:
    shape, axes, gone = problem
    x = integers(shape)
    y, indices = reference.reduce_with_indices(x, op=op, axis=axes, keepdims=keepdims)
    assert indices.dtype == np.int32
    assert indices.shape == y.shape == reduced_shape(shape, axes, keepdims)
    np.testing.assert_array_equal(y, reference.reduce(x, op=op, axis=axes, keepdims=keepdims))
    indices = indices.reshape(reduced_shape(shape, axes, keepdims=True))
    for place, elements_ in taken_together(shape, gone).items():
        values = [float(x[e]) for e in elements_]
        assert indices[place] == values.index(fold(op, values))


@given(problem=reductions(), op=st.sampled_from(REDUCE_OPS))
def test_float64_agrees_to_rounding(problem: Any, op: str) -> None:
    shape, axes, gone = problem
    x = np.asarray(np.random.default_rng(0).standard_normal(shape))
    y = reference.reduce(x, op=op, axis=axes, keepdims=True)
    for place, elements_ in taken_together(shape, gone).items():
        np.testing.assert_allclose(
            y[place], fold(op, [float(x[e]) for e in elements_]), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("op", REDUCE_OPS)
def test_one_element_is_its_own_reduction(op: str) -> None:
    x = np.array([[-2.0], [3.0]])
    for axes in (1, ()):
        y = reference.reduce(x, op=op, axis=axes, keepdims=True)
        np.testing.assert_array_equal(y, np.abs(x) if op in ("amax", "norm1", "norm2") else x)


def test_a_product_of_zeros_alone_has_no_factors() -> None:
    x = np.array([[0.0, 0.0], [0.0, 5.0]])
    assert reference.reduce(x, op="mul_no_zeros", axis=1).tolist() == [1, 5]


@pytest.mark.parametrize("op", ReduceTensorOp)
def test_reductions_by_enum(op: ReduceTensorOp) -> None:
    x = integers((3, 4))
    np.testing.assert_array_equal(
        reference.reduce(x, op=op, axis=0), reference.reduce(x, op=op.name.lower(), axis=0)
    )


def test_nan_is_smallest_and_largest_or_none() -> None:
    x = np.array([[2, np.nan, -3], [np.nan, np.nan, np.nan], [-np.inf, np.nan, np.inf]])
    for op, smallest in (("min", [-3, np.nan, -np.inf]), ("max", [2, np.nan, np.inf]),
                         ("amax", [3, np.nan, np.inf])):  # fmt: skip
        assert np.isnan(reference.reduce(x, op=op, axis=1)).all()
        y = reference.reduce(x, op=op, axis=1, propagate_nan=False)
        np.testing.assert_array_equal(y, smallest)
    won = reference.reduce_with_indices(x, op="min", axis=1)
    assert won.indices.tolist() == [1, 0, 1]
    lost = reference.reduce_with_indices(x, op="max", axis=1, propagate_nan=False)
    assert lost.indices.tolist() == [0, 0, 2]
    assert np.isnan(reference.reduce(x, op="add", axis=1, propagate_nan=False)).tolist() == [True] * 3


def test_reductions_scale_and_add() -> None:
    x, out = integers((3, 4)).astype(np.float16), np.ones(3, np.float16)
    assert reference.reduce(x, axis=1, alpha=2, beta=3, out=out) is out
    np.testing.assert_array_equal(out, 2 * x.sum(axis=1) + 3)
    y, _ = reference.reduce_with_indices(x, op="max", axis=1, alpha=2, beta=0, out=out)
    assert y is out


@pytest.mark.parametrize(
    ("op", "answer"), [("add", 0), ("mul", 1), ("norm1", 0), ("norm2", 0), ("mul_no_zeros", 1)]
)
def test_nothing_taken_together(op: str, answer: float) -> None:
    assert reference.reduce(np.ones((2, 0)), op=op, axis=1).tolist() == [answer] * 2


@pytest.mark.parametrize("op", REDUCE_OPS)
def test_an_empty_batch_gives_an_empty_result(op: str) -> None:
    for shape in ((0, 3), (0, 0)):
        assert reference.reduce(np.ones(shape), op=op, axis=1).shape == (0,)
    if op in ("min", "max"):
        y, indices = reference.reduce_with_indices(np.ones((0, 3)), op=op, axis=1)
        assert y.shape == indices.shape == (0,)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"op": "std"}, ValueError, "op must be one of add, mul, min, max, amax, avg"),
        ({"axis": 3}, ValueError, "axis is out of range: got 3, expected -3 to 2"),
        ({"axis": (0, -3)}, ValueError, r"axis contains an axis twice: got \(0, -3\)"),
        ({"axis": "all"}, TypeError, "axis must be an int or a tuple of ints: got 'all'"),
        ({"op": "max", "x": np.ones((2, 0, 3)), "axis": 1}, ValueError, r"op='max' over axes \(1,\): x"),
        ({"op": "avg", "x": np.ones((0,)), "axis": None}, ValueError, "has no elements there"),
        ({"x": np.ones((1,) * 9)}, ValueError, "a reduction takes at most 8 axes"),
        ({"x": np.ones((2, 3, 4), int)}, TypeError, "reduce takes .* not int64"),
        ({"out": np.ones((2, 1, 4))}, ValueError, r"out has shape \(2, 1, 4\); the result has \(2, 4\)"),
        ({"beta": 1}, ValueError, "beta=1 needs out"),
    ],
)
def test_reductions_that_do_not_fit_are_refused(
    change: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        reference.reduce(**({"x": np.ones((2, 3, 4)), "axis": 1} | change))


def test_against_torch() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    theirs = torch.from_numpy(x)
    for op, function in (
        ("add", torch.sum),
        ("avg", torch.mean),
        ("min", torch.amin),
        ("max", torch.amax),
        ("norm2", torch.linalg.vector_norm),
        ("norm1", lambda v, dim: torch.linalg.vector_norm(v, 1, dim)),
    ):
        ours = reference.reduce(x, op=op, axis=(0, 2))
        np.testing.assert_allclose(ours, function(theirs, dim=(0, 2)).numpy(), rtol=1e-12, atol=1e-13)
    y, indices = reference.reduce_with_indices(x, op="max", axis=1)
    best = theirs.max(dim=1)
    np.testing.assert_array_equal(y, best.values.numpy())
    np.testing.assert_array_equal(indices, best.indices.numpy())


def test_the_tables_are_those_of_cudnn() -> None:
    assert [op.name.lower() for op in OpTensorOp] == list(OP_TENSOR_OPS)
    assert [op.name.lower() for op in ReduceTensorOp] == list(REDUCE_OPS)
    assert constants.CUDNN_DIM_MAX == MAX_AXES
