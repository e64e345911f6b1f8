"""Operations on whole tensors and reductions as values that all tiers share."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.shapes.tensor import REDUCE_OPS
from tests.layers import FLOATS, LayerCase, Place, Tensor, compare, lying, scales_and_out
from tests.strategies import SCALES, in_memory_of

# What cuDNN converts: to itself, and through float32.
CONVERSIONS = {
    "float16": ("float16", "float32", "bfloat16"),
    "bfloat16": ("bfloat16", "float32", "float16"),
    "float32": ("float32", "float16", "bfloat16"),
    "float64": ("float64",),
    "int8": ("int8",),
}


def _shapes(draw: st.DrawFn, *, most: int = 6, longest: int = 4) -> tuple[int, ...]:
    shape = tuple(draw(st.lists(st.integers(1, longest), min_size=0, max_size=most)))
    return (draw(st.sampled_from((shape[0], shape[0], 0))), *shape[1:]) if shape else shape


@st.composite
def op_tensor_cases(draw: st.DrawFn, *, dtypes: Sequence[str] = FLOATS) -> LayerCase:
    """An operation on two tensors, the second of which may be stretched; on one; or a plain sum."""
    shape, dtype = _shapes(draw), draw(st.sampled_from(dtypes))
    a = lying(draw, shape, dtype)
    operation = draw(st.sampled_from(("add", "op_tensor")))
    b = lying(draw, tuple(n if draw(st.booleans()) else 1 for n in shape), dtype)
    if operation == "add":
        scales, outs = scales_and_out(draw, shape, dtype)
        return LayerCase("add", (a, b), scales, outs, exact=True)
    scales, outs = scales_and_out(draw, shape, dtype)
    keywords = {name: value for name, value in scales.items() if name == "beta"}
    op = draw(st.sampled_from(("add", "mul", "min", "max", "not", "sqrt")))
    factors = {"alpha1": draw(st.sampled_from(SCALES))}
    if op in ("not", "sqrt"):
        if op == "sqrt":
            a, factors = a._replace(values="positive"), {"alpha1": abs(factors["alpha1"])}
        return LayerCase("op_tensor", (a,), {"op": op} | factors | keywords, outs, exact=op == "not")
    factors["alpha2"] = draw(st.sampled_from(SCALES))
    return LayerCase("op_tensor", (a, b), {"op": op} | factors | keywords, outs, exact=True)


@st.composite
def transform_cases(draw: st.DrawFn) -> LayerCase:
    """A move to another layout, to other strides, or into another dtype."""
    shape, dtype = _shapes(draw), draw(st.sampled_from((*FLOATS, "int8")))
    result = draw(st.sampled_from(CONVERSIONS[dtype]))
    keywords: dict[str, Any] = {} if result == dtype else {"dtype": result}
    x = lying(draw, shape, dtype)
    if dtype == "int8":
        scales, outs = {"alpha": draw(st.sampled_from((1, -2)))}, {}
    else:
        scales, outs = scales_and_out(draw, shape, result)
    if not outs:
        form = draw(st.sampled_from(("as it is", "layout", "strides")))
        if form == "layout":
            layouts = ("nchw", "nhwc") if 3 <= len(shape) <= 5 else ("nchw",)
            keywords["layout"] = draw(st.sampled_from(layouts))
        elif form == "strides":
            keywords["strides"] = _strides(draw, shape)
    return LayerCase("transform", (x,), keywords | scales, outs, exact=True)


def _strides(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in any order of the axes, with gaps between the elements of some."""
    strides, step = [1] * len(shape), 1
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis] = step * draw(st.integers(1, 2))
        step = strides[axis] * max(shape[axis], 1)
    return tuple(strides)


REDUCTIONS = tuple("average" if op == "avg" else op for op in REDUCE_OPS)
EXACT = ("add", "mul", "min", "max", "amax", "norm1", "mul_no_zeros")


@st.composite
def reduce_cases(draw: st.DrawFn, *, dtypes: Sequence[str] = FLOATS) -> LayerCase:
    """A reduction over any axes, some of which may have one element or none."""
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=0, max_size=8)))
    op = draw(st.sampled_from((*EXACT, "average", "norm2")))
    if op in ("mul", "mul_no_zeros"):
        shape = shape[:4]  # a product that float32 does not hold is NaN times an alpha of 0, and 0 in float64
    if shape and op in ("add", "mul", "norm1", "norm2", "mul_no_zeros"):
        shape = (draw(st.sampled_from((shape[0], shape[0], 0))), *shape[1:])
    axes = tuple(axis for axis in range(len(shape)) if draw(st.booleans()))
    keywords: dict[str, Any] = {"op": op, "axis": draw(st.sampled_from((axes, axes, axes, None)))}
    keywords["keepdims"] = draw(st.booleans())
    dtype = draw(st.sampled_from(dtypes))
    gone = range(len(shape)) if keywords["axis"] is None else axes
    result = tuple(
        1 if axis in gone else n for axis, n in enumerate(shape) if keywords["keepdims"] or axis not in gone
    )
    scales, outs = scales_and_out(draw, result, dtype)
    indexed = op in ("min", "max") and draw(st.booleans())
    values: Any = "distinct" if indexed and prod(shape) < 128 else "integers"
    if op in ("mul", "mul_no_zeros"):
        values = "positive"
    x = lying(draw, shape, dtype, values)
    sums = op in ("add", "norm1") and prod(shape) > 32  # beyond what each dtype holds
    exact = op in EXACT and values != "positive" and not sums
    operation = "reduce_with_indices" if indexed else "reduce"
    return LayerCase(operation, (x,), keywords | scales, outs, exact=exact)


@st.composite
def in_place_cases(draw: st.DrawFn) -> tuple[str, Tensor, float]:
    """A scaling or a filling of an array of any rank and strides, by or with a number."""
    x = lying(draw, _shapes(draw), draw(st.sampled_from(FLOATS)))
    number = draw(st.sampled_from((*SCALES, 1 + 2**-8 + 2**-40, 1e-3)))
    return draw(st.sampled_from(("scale", "fill"))), x, number


def check_in_place(case: tuple[str, Tensor, float], place: Place) -> None:
    """The array itself comes back, changed as the reference changes it."""
    operation, tensor, number = case
    expected = tensor.array()
    x = place(tensor.array())
    keywords = {"alpha": number} if operation == "scale" else {"value": number}
    getattr(ct.reference, operation)(expected, **keywords)
    assert in_memory_of(getattr(ct, operation)(x, **keywords), x)
    compare(x, expected, exact=operation == "fill" or number in SCALES)
