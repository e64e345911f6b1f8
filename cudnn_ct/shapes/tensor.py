"""Shape rules of whole-tensor operations: broadcasting, reductions, layout conversions."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

from ..dtypes import as_dtype
from .checks import FLOATS, some_axes
from .parse import as_bool, as_choice
from .specs import MAX_AXES, Shape, TensorSpec, check_shape, nearest_layout

T = TypeVar("T")
OP_TENSOR_OPS = ("add", "mul", "min", "max", "sqrt", "not")
_UNARY = ("sqrt", "not")


REDUCE_OPS = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros")
_INDEXED = ("min", "max")
_DEFINED_FOR_EMPTY = ("add", "mul", "norm1", "norm2", "mul_no_zeros")  # ops with a value for zero elements


class IndexedReduction(NamedTuple, Generic[T]):
    """Smallest or largest elements, and their int32 positions in C order of the reduced axes."""

    y: T
    indices: T


def op_tensor_op(op: Any, has_b: bool) -> str:
    """Return the name of the operation in :data:`OP_TENSOR_OPS`; raise unless its operand count matches."""
    name = as_choice(op, OP_TENSOR_OPS, "op")
    if has_b and name in _UNARY:
        raise ValueError(f"op={name!r} takes one tensor: got a and b, expected b=None")
    if not has_b and name not in _UNARY:
        raise ValueError(f"op={name!r} needs b: got None, expected a tensor that broadcasts to a")
    return name


def check_broadcast(a_shape: Iterable[int], b_shape: Iterable[int]) -> Shape:
    """Return the shape of ``a``, to which ``b`` broadcasts: each of its axes is as long, or of length 1.

    >>> check_broadcast((8, 3, 4, 4), (1, 3, 1, 1))
    (8, 3, 4, 4)
    """
    a, b = check_shape(a_shape, "a_shape"), check_shape(b_shape, "b_shape")
    if len(a) != len(b) or any(m not in (1, n) for n, m in zip(a, b, strict=True)):
        raise ValueError(f"b has shape {b}; a of shape {a} needs as many axes, each as long or of length 1")
    return a


def reduce_axes(x_shape: Iterable[int], axis: Any = None) -> Shape:
    """The axes that a reduction takes away, in order: all, if ``axis`` is None.

    >>> reduce_axes((2, 3, 4), (-1, 0))
    (0, 2)
    """
    x = check_shape(x_shape, "x_shape")
    if len(x) > MAX_AXES:
        raise ValueError(f"x has shape {x}; a reduction takes at most {MAX_AXES} axes")
    return tuple(range(len(x))) if axis is None else tuple(sorted(some_axes(axis, len(x), "axis")))


def reduced_shape(x_shape: Iterable[int], axis: Any = None, keepdims: bool = False) -> Shape:
    """Shape of ``reduce(x)``: without the axes, or with 1 for each of them.

    >>> reduced_shape((2, 3, 4), (0, 2)), reduced_shape((2, 3, 4), (0, 2), keepdims=True)
    ((3,), (1, 3, 1))
    """
    x = check_shape(x_shape, "x_shape")
    gone = reduce_axes(x, axis)
    if as_bool(keepdims, "keepdims"):
        return tuple(1 if axis in gone else n for axis, n in enumerate(x))
    return tuple(n for axis, n in enumerate(x) if axis not in gone)


def reduce_op(op: Any, x_shape: Iterable[int], axis: Any = None, indices: bool = False) -> str:
    """The operation by its name in :data:`REDUCE_OPS`; raise unless it has an answer for the axes."""
    name, x = as_choice(op, REDUCE_OPS, "op"), check_shape(x_shape, "x_shape")
    if indices and name not in _INDEXED:
        expected = " or ".join(map(repr, _INDEXED))
        raise ValueError(f"op has no indices: got {name!r}, expected {expected}; use reduce for the others")
    gone = reduce_axes(x, axis)
    empty = prod(x[axis] for axis in gone) == 0
    if empty and name not in _DEFINED_FOR_EMPTY and 0 not in reduced_shape(x, gone):
        raise ValueError(f"cannot take op={name!r} over axes {gone}: x of shape {x} has no elements there")
    return name


def transformed_spec(
    x: TensorSpec, layout: str | None = None, strides: Any = None, dtype: Any = None
) -> TensorSpec:
    """Return the spec of ``transform(x)``: the shape of x, with other strides or another dtype.

    With neither layout nor strides, the elements lie packed in the layout of x, or that nearest to it.

    >>> transformed_spec(TensorSpec.packed((2, 3, 4, 5)), layout="nhwc", dtype="float16")
    TensorSpec(shape=(2, 3, 4, 5), strides=(60, 1, 15, 3), dtype='float16')
    """
    result = x.dtype if dtype is None else as_dtype(dtype).name
    if not (x.dtype in FLOATS and result in FLOATS) and not x.dtype == result == "int8":
        raise TypeError(
            f"transform converts between {', '.join(FLOATS)}, or int8 to int8: got {x.dtype} to {result}"
        )
    if strides is None:
        name = layout or nearest_layout(x)
        return TensorSpec.packed(x.shape, result, name)
    if layout is not None:
        raise ValueError(f"layout and strides are exclusive: got {layout!r} and {strides!r}; pass one")
    try:
        # Unlike a length, a stride may exceed a C int: plans run once for each slice that a descriptor holds.
        spec = TensorSpec(x.shape, tuple(operator.index(stride) for stride in strides), result)
    except TypeError:
        raise ValueError(f"strides must be positive ints, in elements: got {strides!r}") from None
    if min(spec.strides, default=0) < 0:
        raise ValueError(f"strides must be positive ints, in elements: got {strides!r}")
    if len(spec.strides) != len(x.shape):
        raise ValueError(f"strides {spec.strides} do not fit x of shape {x.shape}: expected one per axis")
    if not spec.describable or spec.overlaps_itself:
        raise ValueError(f"strides {spec.strides} overlap: elements of shape {x.shape} would share memory")
    return spec
