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
    """Divide each element by a power of the squares around it in other channels, rounded once at the end.

    With a sum over the ``n`` channels around c, ``(n - 1) // 2`` of them before it, less those that are not
    there ::

        y[c] = alpha * x[c] / (k + lrn_alpha / n * sum(x[i] ** 2)) ** lrn_beta + beta * out[c]

    Parameters
    ----------
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
        1 to 3 spatial axes.
    n : int, 1 to 16
    lrn_alpha : float
    lrn_beta : float, at least 0.01
    k : float, at least 1e-5
    alpha, beta : float
    out : array, shape and dtype of ``x``, optional
        Written and returned. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape and dtype of ``x``

    Raises
    ------
    TypeError
        The dtype is none of the four, or a factor no number.
    ValueError
        A parameter is outside cuDNN's limits, or a shape does not fit.

    Examples
    --------
    >>> x = np.array([[[1.0], [2.0], [3.0]]])
    >>> lrn(x, n=2, lrn_alpha=2, lrn_beta=1, k=1).ravel()
    array([0.16666667, 0.14285714, 0.3       ])
    """
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
    """Compute the gradient of :func:`lrn` with regard to its input, in float64, rounded once at the end.

    With s for ``k + lrn_alpha / n * sum(x ** 2)``, and a sum over channels with c in their windows ::

        dx[c] = dy[c] / s[c] ** lrn_beta - 2 * lrn_alpha * lrn_beta / n * x[c] * sum(dy[i] * y[i] / s[i])

    Parameters
    ----------
    dy : array, shape and dtype of ``x``
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    y : array, shape and dtype of ``x``
        What :func:`lrn` gave for ``x``, not scaled.
    n, lrn_alpha, lrn_beta, k, alpha, beta, out
        As in :func:`lrn`; the parameters of the forward normalisation.

    Returns
    -------
    array, shape and dtype of ``x``

    Raises
    ------
    TypeError, ValueError
        As in :func:`lrn`; also where shapes or dtypes of the three differ.

    Examples
    --------
    >>> x, factors = np.array([[[1.0]]]), {"n": 1, "lrn_alpha": 1, "lrn_beta": 1, "k": 1}
    >>> lrn_backward(np.array([[[4.0]]]), x, lrn(x, **factors), **factors)
    array([[[0.]]])
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
