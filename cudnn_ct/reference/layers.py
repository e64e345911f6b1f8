"""Softmax and local response normalisation across channels, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.checks import check_images, same_shape
from ..shapes.layers import SOFTMAX_ALGOS, check_lrn_factors, lrn_window, softmax_fold
from ..shapes.parse import as_choice
from ..typing import SoftmaxAlgo, SoftmaxMode
from ._cast import Array, Float64, deliver, operands

# --- local response normalisation across channels, and its gradient ----------------------------------------


@np.errstate(all="ignore")
def lrn(
    x: ArrayLike,
    *,
    n: int = 5,
    lrn_alpha: float = 1e-4,
    lrn_beta: float = 0.75,
    k: float = 2,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``x / (k + lrn_alpha / n * sum(x ** 2)) ** lrn_beta``. See :func:`cudnn_ct.lrn`."""
    dtype, (x,) = operands("lrn", x=x)
    check_images(x.shape)
    before, after = lrn_window(n)
    lrn_alpha, lrn_beta, k = check_lrn_factors(lrn_alpha, lrn_beta, k)
    s = k + lrn_alpha / n * _channel_sums(x * x, before, after)
    return deliver(x * s**-lrn_beta, dtype, alpha, beta, out)


@np.errstate(all="ignore")
def lrn_backward(
    dy: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    n: int = 5,
    lrn_alpha: float = 1e-4,
    lrn_beta: float = 0.75,
    k: float = 2,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``dy / s ** b - 2 * a * b / n * x * sum(dy * y / s)``. See :func:`cudnn_ct.lrn_backward`."""
    dtype, (x, y, dy) = operands("the gradient of lrn", x=x, y=y, dy=dy)
    check_images(same_shape(x=x.shape, y=y.shape, dy=dy.shape))
    before, after = lrn_window(n)
    lrn_alpha, lrn_beta, k = check_lrn_factors(lrn_alpha, lrn_beta, k)
    s = k + lrn_alpha / n * _channel_sums(x * x, before, after)
    # x counts in the windows of the channels around it, so the sides are exchanged.
    through_sums = _channel_sums(dy * y / s, after, before)
    dx = dy * s**-lrn_beta - 2 * lrn_alpha / n * lrn_beta * x * through_sums
    return deliver(dx, dtype, alpha, beta, out)


def _channel_sums(terms: Float64, before: int, after: int) -> Float64:
    padded = np.pad(terms, [(0, 0), (before, after), *[(0, 0)] * (terms.ndim - 2)])
    channels = terms.shape[1]
    return sum((padded[:, i : i + channels] for i in range(before + 1 + after)), np.zeros_like(terms))


# --- softmax -----------------------------------------------------------------------------------------------


@np.errstate(all="ignore")  # an infinite input gives NaN
def softmax(
    x: ArrayLike,
    *,
    algo: SoftmaxAlgo = "accurate",
    mode: SoftmaxMode = "channel",
    axis: int | Sequence[int] | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * exp(x) / sum(exp(x)) + beta * out``. See :func:`cudnn_ct.softmax`."""
    is_log = as_choice(algo, SOFTMAX_ALGOS, "algo") == "log"
    dtype, (x,) = operands("softmax", x=x)
    v = x.reshape(softmax_fold(x.shape, mode, axis))
    v = v - v.max(axis=1, keepdims=True, initial=-np.inf)
    total = np.exp(v).sum(axis=1, keepdims=True)
    y = v - np.log(total) if is_log else np.exp(v) / total
    return deliver(y.reshape(x.shape), dtype, alpha, beta, out)


@np.errstate(all="ignore")
def softmax_backward(
    dy: ArrayLike,
    y: ArrayLike,
    *,
    algo: SoftmaxAlgo = "accurate",
    mode: SoftmaxMode = "channel",
    axis: int | Sequence[int] | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * y * (dy - sum(y * dy)) + beta * out``. See :func:`cudnn_ct.softmax_backward`."""
    is_log = as_choice(algo, SOFTMAX_ALGOS, "algo") == "log"
    dtype, (y, dy) = operands("the gradient of softmax", y=y, dy=dy)
    folded = softmax_fold(same_shape(y=y.shape, dy=dy.shape), mode, axis)
    v, dv = y.reshape(folded), dy.reshape(folded)
    if is_log:
        dx = dv - np.exp(v) * dv.sum(axis=1, keepdims=True)
    else:
        dx = v * (dv - (v * dv).sum(axis=1, keepdims=True))
    return deliver(dx.reshape(y.shape), dtype, alpha, beta, out)
