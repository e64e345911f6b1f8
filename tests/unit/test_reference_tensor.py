"""Operations on whole tensors and reductions against plain Python, element by element."""

from __future__ import annotations

import math
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
from cudnn_ct.shapes.tensor import MAX_AXES, OP_TENSOR_OPS, REDUCE_OPS, transformed_spec

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


@given(shapes=shapes_to_broadcast(), dtype=floats)
def test_add_equals_op_tensor_add(shapes: Any, dtype: str) -> None:
    a, b = integers(shapes[0], 0, dtype), integers(shapes[1], 1, dtype)
    out = integers(shapes[0], 2, dtype)
    expected = 2 * (a.astype(float) + b.astype(float)) - out.astype(float)
    np.testing.assert_array_equal(reference.add(a, b), reference.op_tensor(a, b))
    assert reference.add(a, b, alpha=2, beta=-1, out=out) is out
    np.testing.assert_array_equal(out.astype(float), expected)


@pytest.mark.parametrize("op", OpTensorOp)
def test_op_tensor_accepts_enums(op: OpTensorOp) -> None:
    a, name = np.array([4.0, 9.0]), op.name.lower()
    b = a[:1] if name in BINARY else None
    np.testing.assert_array_equal(reference.op_tensor(a, b, op=op), reference.op_tensor(a, b, op=name))


def test_scale_and_fill_work_in_place() -> None:
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
def test_op_tensor_rejects_bad_arguments(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


# --- layouts -----------------------------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(0, 4), min_size=3, max_size=5).map(tuple),
    layout=st.sampled_from((None, "nchw", "nhwc")), source=st.sampled_from(("nchw", "nhwc")),
    dtypes=st.tuples(floats, floats),
)  # fmt: skip
def test_transform_keeps_elements(shape: Any, layout: Any, source: str, dtypes: Any) -> None:
    x = reference.transform(integers(shape, 0, dtypes[0]), layout=source)
    y = reference.transform(x, layout=layout, dtype=dtypes[1])
    assert y.shape == shape
    assert y.dtype == as_dtype(dtypes[1]).numpy
    assert (layout or source) in TensorSpec(shape, elements(y), dtypes[1]).layouts
    np.testing.assert_array_equal(y.astype(float), integers(shape))


@given(shape=shapes, gap=st.integers(0, 3), order=st.randoms(use_true_random=False))
def test_transform_accepts_strides_without_overlap(shape: Any, gap: int, order: Any) -> None:
    axes = list(range(len(shape)))
    order.shuffle(axes)
    strides, step = [0] * len(shape), 1 + gap
    for axis in axes:
        strides[axis], step = step, step * shape[axis] + gap
    y = reference.transform(integers(shape), strides=tuple(strides))
    np.testing.assert_array_equal(y, integers(shape))
    assert all(n == 1 or a == b for n, a, b in zip(shape, elements(y), strides, strict=True))


def test_transform_keeps_integers() -> None:
    x = integers((1, 3, 2, 2)).astype(np.int8)
    y = reference.transform(x, layout="nhwc")
    assert y.dtype == np.int8
    np.testing.assert_array_equal(y, x)
    large = reference.transform(x, alpha=100)
    np.testing.assert_array_equal(large, np.clip(100.0 * x, -128, 127))


def test_transform_packs_a_view() -> None:
    x = integers((2, 6, 4, 4))[:, ::2]
    assert elements(reference.transform(x)) == packed_strides((2, 3, 4, 4))


def test_transform_keeps_the_strides_of_out() -> None:
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
def test_transform_rejects_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.transform(**({"x": np.ones((2, 2, 2))} | change))


def test_transformed_spec_accepts_strides_that_exceed_a_c_int() -> None:
    x = TensorSpec((2, 3), (4, 1), "int8")
    assert transformed_spec(x, strides=(2**31, 1)) == TensorSpec((2, 3), (2**31, 1), "int8")


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


@pytest.mark.parametrize("op", ReduceTensorOp)
def test_reduce_accepts_enums(op: ReduceTensorOp) -> None:
    x = integers((3, 4))
    np.testing.assert_array_equal(
        reference.reduce(x, op=op, axis=0), reference.reduce(x, op=op.name.lower(), axis=0)
    )


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
def test_reduce_rejects_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reference.reduce(**({"x": np.ones((2, 3, 4)), "axis": 1} | change))


def test_op_tables_match_cudnn() -> None:
    assert [op.name.lower() for op in OpTensorOp] == list(OP_TENSOR_OPS)
    assert [op.name.lower() for op in ReduceTensorOp] == list(REDUCE_OPS)
    assert constants.CUDNN_DIM_MAX == MAX_AXES
