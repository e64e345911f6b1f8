"""The meaning of reductions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.checks import one_dtype
from ..shapes.parse import as_bool
from ..shapes.tensor import Reduction, reduce_axes, reduce_op, reduced_shape
from ._cast import Array, Float64, deliver, wide

__all__ = ["reduce"]


def reduce(
    x: npt.ArrayLike,
    *,
    op: Any = "add",
    axis: Any = None,
    keepdims: bool = False,
    indices: bool = False,
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array | Reduction[Array]:
    """Compute ``alpha * (op over some axes of x) + beta * out``, in float64, rounded once at the end.

    Norm1 is the sum of absolute values, norm2 the root of the sum of squares, amax the largest absolute
    value, mul_no_zeros the product of all elements but zeros: 1, if there are no others.

    Parameters
    ----------
    x : array, at most 8 axes, float16 | bfloat16 | float32 | float64
    op : "add", "mul", "min", "max", "amax", "avg", "norm1", "norm2" or "mul_no_zeros"
    axis : int or tuple of int, optional
        Those that go, counted from the end if negative; by default all. Over axes of length 1, and over none,
        the result is ``x`` itself, absolute for amax, norm1 and norm2, with 1 for 0 for mul_no_zeros.
    keepdims : bool
        Whether they stay, with length 1.
    indices : bool
        Whether to tell, for min and max, which element it was; of several, the first.
    propagate_nan : bool
        Whether NaN is the smallest and largest element, or none unless it is alone. The other operations
        propagate it always.
    alpha, beta : float
    out : array, shape and dtype of the result, optional
        Written and returned. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape :func:`cudnn_ct.shapes.tensor.reduced_shape`, dtype of ``x``; or Reduction
        With ``indices``, the pair of it and int32 positions in C order of the axes that go.

    Raises
    ------
    TypeError
        The dtype is none of the four.
    ValueError
        An axis is not there or named twice, the operation has no indices, or no answer for no element.

    Examples
    --------
    >>> x = np.array([[1.0, -4.0, 3.0], [2.0, 0.0, -2.0]])
    >>> reduce(x, op="norm1", axis=1)
    array([8., 4.])
    >>> reduce(x, op="min", axis=-1, indices=True)
    Reduction(y=array([-4., -2.]), indices=array([1, 2], dtype=int32))
    """
    x, name, propagate = (
        np.asarray(x),
        reduce_op(op, np.shape(x), axis, indices),
        as_bool(propagate_nan, "propagate_nan"),
    )
    one_dtype("reduce", x=x.dtype)
    gone = reduce_axes(x.shape, axis)
    kept = [axis for axis in range(x.ndim) if axis not in gone]
    rows = wide(x).transpose(*kept, *gone)
    rows = rows.reshape(*(x.shape[axis] for axis in kept), prod(x.shape[axis] for axis in gone))
    values = _folded(rows, name, propagate)
    shape = reduced_shape(x.shape, gone, keepdims)
    y = deliver(values.reshape(shape), x.dtype, alpha, beta, out)
    if not indices:
        return y
    found = (rows == values[..., None]) | (np.isnan(rows) & np.isnan(values[..., None]))
    first = found.argmax(axis=-1) if rows.shape[-1] else np.zeros(values.shape)
    return Reduction(y, first.astype(np.int32).reshape(shape))


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
