"""Operations element by element, changes of layout and dtype, and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import as_dtype
from ..shapes.checks import one_dtype
from ..shapes.elementwise import check_broadcast, op_tensor_op, transformed_spec
from ..shapes.parse import as_bool, as_float
from ..shapes.reduction import IndexedReduction, reduce_axes, reduce_op, reduced_shape
from ..shapes.specs import TensorSpec, equivalent_strides
from ..typing import DTypeLike, Layout, OpTensorOp, ReduceOp
from ._cast import (
    Array,
    Float64,
    Outs,
    deliver,
    deliver_each,
    given_out,
    operands,
    required,
    round_once,
    wide,
    writable,
)

_UNARY: dict[str, Callable[[Any], Any]] = {"sqrt": np.sqrt, "not": lambda a: 1 - a}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
_IGNORING_NAN: dict[str, Callable[[Any, Any], Any]] = {"min": np.fmin, "max": np.fmax}


def op_tensor(
    a: ArrayLike,
    b: ArrayLike | None = None,
    *,
    op: OpTensorOp = "add",
    alpha1: float = 1,
    alpha2: float = 1,
    beta: float = 0,
    propagate_nan: bool = True,
    out: Array | None = None,
) -> Array:
    """Compute ``op(alpha1 * a, alpha2 * b) + beta * out``. See :func:`cudnn_ct.op_tensor`."""
    name, propagate = op_tensor_op(op, b is not None), as_bool(propagate_nan, "propagate_nan")
    dtype, (a, *others) = operands("op_tensor", a=a, **({} if b is None else {"b": b}))
    a = as_float(alpha1, "alpha1") * a
    factor = as_float(alpha2, "alpha2")
    if not others:
        return deliver(np.asarray(_UNARY[name](a)), dtype, 1, beta, out)
    check_broadcast(a.shape, others[0].shape)
    function = _BINARY[name] if propagate else (_BINARY | _IGNORING_NAN)[name]
    return deliver(np.asarray(function(a, factor * others[0])), dtype, 1, beta, out)


def add(a: ArrayLike, b: ArrayLike, *, alpha: float = 1, beta: float = 0, out: Array | None = None) -> Array:
    """Compute ``alpha * (a + b) + beta * out``. See :func:`cudnn_ct.add`."""
    dtype, (a, b) = operands("add", a=a, b=b)
    check_broadcast(a.shape, b.shape)
    return deliver(a + b, dtype, alpha, beta, out)


def scale(x: Array, *, alpha: float) -> Array:
    """Compute ``x * alpha`` in place. See :func:`cudnn_ct.scale`."""
    _check_in_place(x, "scale")
    return deliver(wide(x), x.dtype, alpha, 0, x)


def fill(x: Array, value: float) -> Array:
    """Set every element of x to a number. See :func:`cudnn_ct.fill`."""
    _check_in_place(x, "fill")
    x[...] = round_once(np.full((), as_float(value, "value")), x.dtype)
    return x


def transform(
    x: ArrayLike,
    *,
    layout: Layout | None = None,
    strides: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * x + beta * out`` with other strides or dtype. See :func:`cudnn_ct.transform`."""
    x = required(x=x)["x"]
    spec = transformed_spec(_spec(x), layout, strides, dtype)
    if out is not None and given_out(out).shape == x.shape and (layout is not None or strides is not None):
        given = _spec(out)
        if not equivalent_strides(given.shape, given.strides, spec.strides):
            raise ValueError(f"out has the wrong strides: got {given.strides}, expected {spec.strides}")
    y = deliver(wide(x), as_dtype(spec.dtype).numpy, alpha, beta, out)
    if out is not None:
        return out
    memory = np.zeros(max(spec.extent[1], 1), y.dtype)
    result: Array = np.ndarray(
        spec.shape, y.dtype, buffer=memory, strides=tuple(s * y.itemsize for s in spec.strides)
    )
    result[...] = y
    return result


def _check_in_place(x: object, operation: str) -> None:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{operation} works in place; x must be an array, not {x!r}")
    one_dtype(operation, x=x.dtype)
    writable(x, "x")


def _spec(x: Array) -> TensorSpec:
    return TensorSpec(x.shape, tuple(s // x.itemsize for s in x.strides), as_dtype(x.dtype).name)


# --- reductions --------------------------------------------------------------------------------------------


def reduce(
    x: ArrayLike,
    *,
    op: ReduceOp = "add",
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * (op over some axes of x) + beta * out``. See :func:`cudnn_ct.reduce`."""
    dtype, (x,) = operands("reduce", x=x)
    name = reduce_op(op, x.shape, axis)
    values = reduced(joined(x, axis), name, as_bool(propagate_nan, "propagate_nan"))
    return deliver(values.reshape(reduced_shape(x.shape, axis, keepdims)), dtype, alpha, beta, out)


def reduce_with_indices(
    x: ArrayLike,
    *,
    op: Literal["min", "max"],
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Outs | None = None,
) -> IndexedReduction[Array]:
    """Compute :func:`reduce` and the first positions. See :func:`cudnn_ct.reduce_with_indices`."""
    dtype, (x,) = operands("reduce", x=x)
    name = reduce_op(op, x.shape, axis, indices=True)
    rows, shape = joined(x, axis), reduced_shape(x.shape, axis, keepdims)
    values = reduced(rows, name, as_bool(propagate_nan, "propagate_nan"))
    found = (rows == values[..., None]) | (np.isnan(rows) & np.isnan(values[..., None]))
    first = found.argmax(axis=-1) if rows.shape[-1] else np.zeros(values.shape)
    results = (values.reshape(shape), dtype), (wide(first).reshape(shape), np.dtype(np.int32))
    return deliver_each(IndexedReduction[Array], results, alpha, beta, out)


def joined(x: Float64, axis: Any) -> Float64:
    """Move the reduced axes behind the others and join them to one."""
    gone = reduce_axes(x.shape, axis)
    kept = [i for i in range(x.ndim) if i not in gone]
    shape = [x.shape[i] for i in kept]
    return x.transpose(*kept, *gone).reshape(*shape, prod(x.shape[i] for i in gone))


_FOLDS: dict[str, Callable[[Float64], Any]] = {
    "add": lambda rows: rows.sum(axis=-1),
    "mul": lambda rows: rows.prod(axis=-1),
    "avg": lambda rows: rows.sum(axis=-1) / rows.shape[-1],
    "norm1": lambda rows: np.abs(rows).sum(axis=-1),
    "norm2": lambda rows: np.sqrt((rows * rows).sum(axis=-1)),
    "mul_no_zeros": lambda rows: np.where(rows == 0, 1, rows).prod(axis=-1),
}


def reduced(rows: Float64, op: str, propagate_nan: bool) -> Float64:
    """Return the reduction of the last axis."""
    if op in _FOLDS:
        return np.asarray(_FOLDS[op](rows))
    if not rows.size:  # the result is empty, too
        return np.zeros(rows.shape[:-1])
    smaller, larger = (np.minimum, np.maximum) if propagate_nan else (np.fmin, np.fmax)
    values = np.abs(rows) if op == "amax" else rows
    return np.asarray((smaller if op == "min" else larger).reduce(values, axis=-1))
