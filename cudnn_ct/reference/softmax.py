"""Softmax and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.checks import same_shape
from ..shapes.layers import SOFTMAX_ALGOS, softmax_fold
from ..shapes.parse import as_choice
from ..typing import SoftmaxAlgo, SoftmaxMode
from ._cast import Array, deliver, operands


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
