"""Local response normalisation across channels, and its gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.checks import check_images, same_shape
from ..shapes.layers import check_lrn_factors, lrn_window
from ._cast import Array, Float64, deliver, operands


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
