"""The meaning of softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.checks import one_dtype, same_shape
from ..shapes.parse import as_choice
from ..shapes.softmax import SOFTMAX_ALGOS, softmax_fold
from ._cast import Array, Float64, deliver, wide

__all__ = ["softmax", "softmax_backward"]


def softmax(
    x: npt.ArrayLike,
    *,
    algo: Any = "accurate",
    mode: Any = "channel",
    axis: Any = None,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * exp(x) / sum(exp(x)) + beta * out``. See :func:`cudnn_ct.softmax`."""
    x, algo = np.asarray(x), as_choice(algo, SOFTMAX_ALGOS, "algo")
    one_dtype("softmax", x=x.dtype)
    folded = wide(x).reshape(softmax_fold(x.shape, mode, axis))
    return deliver(_softmax(folded, algo).reshape(x.shape), x.dtype, alpha, beta, out)


def softmax_backward(
    dy: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    algo: Any = "accurate",
    mode: Any = "channel",
    axis: Any = None,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * y * (dy - sum(y * dy)) + beta * out``. See :func:`cudnn_ct.softmax_backward`."""
    y, dy, algo = np.asarray(y), np.asarray(dy), as_choice(algo, SOFTMAX_ALGOS, "algo")
    one_dtype("the gradient of softmax", y=y.dtype, dy=dy.dtype)
    shape = softmax_fold(same_shape(y=y.shape, dy=dy.shape), mode, axis)
    dx = _gradient(wide(y).reshape(shape), wide(dy).reshape(shape), algo)
    return deliver(dx.reshape(y.shape), y.dtype, alpha, beta, out)


@np.errstate(all="ignore")  # an infinite input gives NaN
def _softmax(x: Float64, algo: str) -> Float64:
    x = x - x.max(axis=1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(x)
    total = exponentials.sum(axis=1, keepdims=True)
    return np.asarray(x - np.log(total) if algo == "log" else exponentials / total)


@np.errstate(all="ignore")
def _gradient(y: Float64, dy: Float64, algo: str) -> Float64:
    if algo == "log":
        return np.asarray(dy - np.exp(y) * dy.sum(axis=1, keepdims=True))
    return np.asarray(y * (dy - (y * dy).sum(axis=1, keepdims=True)))
