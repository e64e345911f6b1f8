"""The meaning of reductions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.checks import one_dtype
from ..shapes.parse import as_bool
from ..shapes.tensor import IndexedReduction, reduce_axes, reduce_op, reduced_shape
from ._cast import Array, Float64, deliver, wide

__all__ = ["reduce", "reduce_with_indices"]


def reduce(
    x: npt.ArrayLike,
    *,
    op: Any = "add",
    axis: Any = None,
    keepdims: bool = False,
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * (op over some axes of x) + beta * out``. See :func:`cudnn_ct.reduce`."""
    x, name = np.asarray(x), reduce_op(op, np.shape(x), axis)
    one_dtype("reduce", x=x.dtype)
    values = _folded(_rows(x, axis), name, as_bool(propagate_nan, "propagate_nan"))
    return deliver(values.reshape(reduced_shape(x.shape, axis, keepdims)), x.dtype, alpha, beta, out)


def reduce_with_indices(
    x: npt.ArrayLike,
    *,
    op: Any,
    axis: Any = None,
    keepdims: bool = False,
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> IndexedReduction[Array]:
    """Compute :func:`reduce` and the first positions. See :func:`cudnn_ct.reduce_with_indices`."""
    x, name = np.asarray(x), reduce_op(op, np.shape(x), axis, indices=True)
    one_dtype("reduce", x=x.dtype)
    rows = _rows(x, axis)
    values = _folded(rows, name, as_bool(propagate_nan, "propagate_nan"))
    shape = reduced_shape(x.shape, axis, keepdims)
    found = (rows == values[..., None]) | (np.isnan(rows) & np.isnan(values[..., None]))
    first = found.argmax(axis=-1) if rows.shape[-1] else np.zeros(values.shape)
    y = deliver(values.reshape(shape), x.dtype, alpha, beta, out)
    return IndexedReduction(y, first.astype(np.int32).reshape(shape))


def _rows(x: Array, axis: Any) -> Float64:
    """Move the reduced axes behind the others and join them to one."""
    gone = reduce_axes(x.shape, axis)
    kept = [i for i in range(x.ndim) if i not in gone]
    shape = [x.shape[i] for i in kept]
    return wide(x).transpose(*kept, *gone).reshape(*shape, prod(x.shape[i] for i in gone))


_FOLDS: dict[str, Callable[[Float64], Any]] = {
    "add": lambda rows: rows.sum(axis=-1),
    "mul": lambda rows: rows.prod(axis=-1),
    "avg": lambda rows: rows.sum(axis=-1) / rows.shape[-1],
    "norm1": lambda rows: np.abs(rows).sum(axis=-1),
    "norm2": lambda rows: np.sqrt((rows * rows).sum(axis=-1)),
    "mul_no_zeros": lambda rows: np.where(rows == 0, 1, rows).prod(axis=-1),
}


@np.errstate(all="ignore")
def _folded(rows: Float64, op: str, propagate: bool) -> Float64:
    if op in _FOLDS:
        return np.asarray(_FOLDS[op](rows))
    if not rows.size:  # no result is asked for either
        return np.zeros(rows.shape[:-1])
    if op == "min":
        return np.asarray((np.minimum if propagate else np.fmin).reduce(rows, axis=-1))
    larger = np.maximum if propagate else np.fmax
    return np.asarray(larger.reduce(np.abs(rows) if op == "amax" else rows, axis=-1))
