"""Pooling and its gradient."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.parse import as_bool
from ..shapes.pooling import pool_geometry, pool_output_shape, pooling_dtypes, pooling_mode
from ..typing import Padding, PerAxis, PoolMode
from ._cast import Array, Float64, deliver, operands
from .windows import Windows


@np.errstate(invalid="ignore")  # infinities of both signs
def pool(
    x: ArrayLike,
    *,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    mode: PoolMode = "max",
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * (max, mean or sum of each window) + beta * out``. See :func:`cudnn_ct.pool`."""
    name = pooling_mode(mode)
    dtype, (x,) = operands(f"pooling with mode={name!r}", pooling_dtypes(name), x=x)
    w = _windows(x.shape, window, stride, padding)
    larger = np.maximum if as_bool(propagate_nan, "propagate_nan") else np.fmax
    if name.startswith("max"):
        padded, y = w.pad(x, -np.inf), np.full((*x.shape[:2], *w.counts), -np.inf)
        for _, pixels in w.taps():
            larger(y, padded[pixels], out=y)
    else:
        y = _sums(x, w) / divisor(w, name)
    return deliver(y, dtype, alpha, beta, out)


def pool_backward(
    dy: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    mode: PoolMode = "max",
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute the gradient of :func:`pool` with regard to x. See :func:`cudnn_ct.pool_backward`."""
    name = pooling_mode(mode)
    dtype, (x, y, dy) = operands("the gradient of pooling", x=x, y=y, dy=dy)
    as_bool(propagate_nan, "propagate_nan")
    w = _windows(x.shape, window, stride, padding)
    for operand, array in (("y", y), ("dy", dy)):
        if array.shape != (*x.shape[:2], *w.counts):
            raise ValueError(
                f"{operand} has shape {array.shape}; pooling x of shape {x.shape} with window {w.window}, "
                f"stride {w.stride} and padding {w.padding} gives {(*x.shape[:2], *w.counts)}"
            )
    dx = w.padded_zeros(*x.shape[:2])
    if name.startswith("max"):
        _add_to_maxima(dx, x, y, dy, w)
    else:
        share = dy / divisor(w, name)
        for _, pixels in w.taps():
            dx[pixels] += share
    return deliver(w.crop(dx), dtype, alpha, beta, out)


def _windows(x_shape: tuple[int, ...], window: Any, stride: Any, padding: Any) -> Windows:
    windows, pairs, strides = pool_geometry(x_shape, window, stride, padding)
    counts = pool_output_shape(x_shape, window=window, stride=stride, padding=padding)[2:]
    return Windows(x_shape[2:], windows, pairs, strides, (1,) * len(windows), counts)


def _sums(x: Float64, w: Windows) -> Float64:
    padded, y = w.pad(x), np.zeros((*x.shape[:2], *w.counts))
    for _, pixels in w.taps():
        y += padded[pixels]
    return y


def divisor(w: Windows, mode: str) -> Float64 | int:
    """Return the divisor of a sum: one number, or the number of pixels in each window."""
    if mode == "average_exc_pad":
        return _sums(np.ones((1, 1, *w.spatial)), w)
    return prod(w.window) if mode == "average_inc_pad" else 1


def _add_to_maxima(dx: Float64, x: Float64, y: Float64, dy: Float64, w: Windows) -> None:
    """Add the gradient of each window to its first pixel, in C order, that equals the maximum."""
    padded = w.pad(x)
    inside = w.pad(np.ones(x.shape)) > 0  # the padding may equal the maximum
    waiting = np.ones(y.shape, bool)
    for _, pixels in w.taps():
        equal = (padded[pixels] == y) | (np.isnan(padded[pixels]) & np.isnan(y))
        first = waiting & inside[pixels] & equal
        dx[pixels] += np.where(first, dy, 0)
        waiting &= ~first
