"""Reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.parse import as_bool
from ..shapes.reduction import IndexedReduction, reduce_axes, reduce_op, reduced_shape
from ..typing import ReduceOp
from ._cast import Array, Float64, Outs, deliver, deliver_each, operands, wide


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


@np.errstate(all="ignore")
def reduced(rows: Float64, op: str, propagate_nan: bool) -> Float64:
    """Return the reduction of the last axis."""
    if op in _FOLDS:
        return np.asarray(_FOLDS[op](rows))
    if not rows.size:  # the result is empty, too
        return np.zeros(rows.shape[:-1])
    smaller, larger = (np.minimum, np.maximum) if propagate_nan else (np.fmin, np.fmax)
    values = np.abs(rows) if op == "amax" else rows
    return np.asarray((smaller if op == "min" else larger).reduce(values, axis=-1))
