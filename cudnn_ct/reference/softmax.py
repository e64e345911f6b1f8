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
    """Compute ``alpha * exp(x) / sum(exp(x)) + beta * out``, in float64, rounded once at the end.

    Parameters
    ----------
    x : array, shape (N, C, ...), any with ``axis``; float16 | bfloat16 | float32 | float64
    algo : "accurate", "fast" or "log"
        ``"log"`` gives the logarithm of the softmax. ``"fast"`` means the same as ``"accurate"``; on a device
        it has no guard against exponentials that are too large.
    mode : "channel" or "instance"
        Whether the sum is over C, at each position, or over all of each n.
    axis : int or tuple of adjacent ints, optional
        What the sum is over, whatever ``mode`` says. Negative axes count from the end.
    alpha, beta : float
    out : array, shape and dtype of ``x``, optional
        Written and returned. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape and dtype of ``x``

    Raises
    ------
    TypeError
        The dtype is none of the four.
    ValueError
        There is no such algorithm, mode or axis, or the axes are not adjacent.

    Examples
    --------
    >>> softmax(np.array([[0.0, 0.0, np.log(2.0)]]))
    array([[0.25, 0.25, 0.5 ]])
    >>> softmax(np.zeros((2, 4)), axis=0, algo="log")
    array([[-0.69314718, -0.69314718, -0.69314718, -0.69314718],
           [-0.69314718, -0.69314718, -0.69314718, -0.69314718]])
    """
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
    """Compute the gradient of a softmax with regard to its input, in float64, rounded once at the end.

    With sums over the same axes, it is ``y * (dy - sum(y * dy))``, and ``dy - exp(y) * sum(dy)`` for
    ``algo="log"``.

    Parameters
    ----------
    dy : array, shape and dtype of ``y``
    y : array, shape (N, C, ...), any with ``axis``; float16 | bfloat16 | float32 | float64
        What :func:`softmax` gave, not scaled.
    algo, mode, axis, alpha, beta, out
        As in :func:`softmax`; the parameters of the forward softmax.

    Returns
    -------
    array, shape and dtype of ``y``

    Raises
    ------
    TypeError, ValueError
        As in :func:`softmax`; also where ``dy`` has another shape or dtype than ``y``.

    Examples
    --------
    >>> softmax_backward(np.array([[1.0, 0.0, 0.0]]), np.array([[0.25, 0.25, 0.5]]))
    array([[ 0.1875, -0.0625, -0.125 ]])
    """
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
