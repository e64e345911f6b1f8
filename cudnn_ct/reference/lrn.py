"""The meaning of local response normalisation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..shapes.checks import check_images, one_dtype, same_shape
from ..shapes.lrn import check_lrn_factors, lrn_window
from ._cast import Array, Float64, deliver, wide

__all__ = ["lrn", "lrn_backward"]


def lrn(
    x: npt.ArrayLike,
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
    x = np.asarray(x)
    one_dtype("lrn", x=x.dtype)
    check_images(x.shape)
    window = _Window(*lrn_window(n), *check_lrn_factors(lrn_alpha, lrn_beta, k))
    return deliver(_normalised(wide(x), window), x.dtype, alpha, beta, out)


def lrn_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    n: int = 5,
    lrn_alpha: float = 1e-4,
    lrn_beta: float = 0.75,
    k: float = 2,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute the gradient of :func:`lrn`. See :func:`cudnn_ct.lrn_backward`.

    With s for ``k + lrn_alpha / n * sum(x ** 2)``, and a sum over channels with c in their windows ::

        dx[c] = dy[c] / s[c] ** lrn_beta - 2 * lrn_alpha * lrn_beta / n * x[c] * sum(dy[i] * y[i] / s[i])
    """
    x, y, dy = np.asarray(x), np.asarray(y), np.asarray(dy)
    one_dtype("the gradient of lrn", x=x.dtype, y=y.dtype, dy=dy.dtype)
    check_images(same_shape(x=x.shape, y=y.shape, dy=dy.shape))
    window = _Window(*lrn_window(n), *check_lrn_factors(lrn_alpha, lrn_beta, k))
    return deliver(_gradient(wide(x), wide(y), wide(dy), window), x.dtype, alpha, beta, out)


class _Window(NamedTuple):
    """How many channels before and after its own a window has, and the factors of the division."""

    behind: int
    ahead: int
    alpha: float
    beta: float
    k: float

    @property
    def per_channel(self) -> float:
        return self.alpha / (self.behind + 1 + self.ahead)


@np.errstate(all="ignore")
def _normalised(x: Float64, window: _Window) -> Float64:
    return np.asarray(x * _divisor(x, window) ** -window.beta)


@np.errstate(all="ignore")
def _gradient(x: Float64, y: Float64, dy: Float64, window: _Window) -> Float64:
    s = _divisor(x, window)
    around = _sums(dy * y / s, window.ahead, window.behind)  # seen from the elements: the other way round
    return np.asarray(dy * s**-window.beta - 2 * window.per_channel * window.beta * x * around)


def _divisor(x: Float64, window: _Window) -> Float64:
    return window.k + window.per_channel * _sums(x * x, window.behind, window.ahead)


def _sums(terms: Float64, behind: int, ahead: int) -> Float64:
    padded = np.pad(terms, [(0, 0), (behind, ahead), *[(0, 0)] * (terms.ndim - 2)])
    channels = terms.shape[1]
    return sum((padded[:, i : i + channels] for i in range(behind + ahead + 1)), np.zeros_like(terms))
