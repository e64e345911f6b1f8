"""The meaning of pooling."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.checks import one_dtype
from ..shapes.parse import as_bool
from ..shapes.pooling import pool_geometry, pool_output_shape, pooling_dtypes, pooling_mode
from ._cast import Array, Float64, deliver, wide

__all__ = ["pool", "pool_backward"]


def pool(
    x: npt.ArrayLike,
    *,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: Any = "max",
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * (max, mean or sum of each window) + beta * out``. See :func:`cudnn_ct.pool`."""
    x, mode = np.asarray(x), pooling_mode(mode)
    one_dtype(f"pooling with mode={mode!r}", pooling_dtypes(mode), x=x.dtype)
    w = _Windows(x.shape, window, stride, padding)
    y = (
        w.largest(x, as_bool(propagate_nan, "propagate_nan"))
        if mode.startswith("max")
        else w.sum(x) / w.divisor(mode)
    )
    return deliver(y, x.dtype, alpha, beta, out)


def pool_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: Any = "max",
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute the gradient of :func:`pool` with regard to x. See :func:`cudnn_ct.pool_backward`."""
    x, y, dy, mode = np.asarray(x), np.asarray(y), np.asarray(dy), pooling_mode(mode)
    one_dtype("the gradient of pooling", x=x.dtype, y=y.dtype, dy=dy.dtype)
    as_bool(propagate_nan, "propagate_nan")
    w = _Windows(x.shape, window, stride, padding)
    w.check(y=y, dy=dy)
    dx = w.to_largest(x, y, dy) if mode.startswith("max") else w.to_all(wide(dy) / w.divisor(mode))
    return deliver(dx, x.dtype, alpha, beta, out)


class _Windows:
    """The windows over an image, all at once: one step for each position in the window."""

    def __init__(self, x_shape: tuple[int, ...], window: Any, stride: Any, padding: Any) -> None:
        self.window, self.padding, self.stride = pool_geometry(x_shape, window, stride, padding)
        self.x_shape = x_shape
        self.y_shape = pool_output_shape(x_shape, window=window, stride=stride, padding=padding)
        sizes = zip(x_shape[2:], self.padding, strict=True)
        self.padded_shape = (*x_shape[:2], *(n + sum(pair) for n, pair in sizes))

    def largest(self, x: Array, propagate: bool) -> Float64:
        padded, larger = self.pad(wide(x), -np.inf), np.maximum if propagate else np.fmax
        y = np.full(self.y_shape, -np.inf)
        for under in self.taps():
            larger(y, padded[under], out=y)
        return y

    @np.errstate(invalid="ignore")  # infinities of both signs
    def sum(self, x: Array) -> Float64:
        padded, y = self.pad(wide(x), 0), np.zeros(self.y_shape)
        for under in self.taps():
            y += padded[under]
        return y

    def divisor(self, mode: str) -> Any:
        """What a sum is divided by: for each window the same number, or that of elements in it."""
        if mode == "average_exc_pad":
            return self.sum(np.ones((1, 1, *self.x_shape[2:])))[:1, :1]
        return prod(self.window) if mode == "average_inc_pad" else 1

    def to_largest(self, x: Array, y: Array, dy: Array) -> Float64:
        """Give the gradient of each window to its first element, in C order, that equals the maximum."""
        padded, result, gradient = self.pad(wide(x), 0), wide(y), wide(dy)
        inside = self.pad(np.ones(x.shape), 0) > 0  # the padding may look like the maximum
        dx, waiting = np.zeros(self.padded_shape), np.ones(self.y_shape, bool)
        for under in self.taps():
            equal = (padded[under] == result) | (np.isnan(padded[under]) & np.isnan(result))
            first = waiting & inside[under] & equal
            dx[under] += np.where(first, gradient, 0)
            waiting &= ~first
        return self.crop(dx)

    def to_all(self, share: Float64) -> Float64:
        dx = np.zeros(self.padded_shape)
        for under in self.taps():
            dx[under] += share
        return self.crop(dx)

    def taps(self) -> Iterator[tuple[Any, ...]]:
        """For each position in the window, in C order: the index of the elements that lie under it."""
        for position in product(*map(range, self.window)):
            axes = zip(position, self.stride, self.y_shape[2:], strict=True)
            yield (..., *(slice(i, i + (n - 1) * s + 1, s) for i, s, n in axes))

    def pad(self, x: Float64, value: float) -> Float64:
        return np.pad(x, [(0, 0), (0, 0), *self.padding], constant_values=value)

    def crop(self, x: Float64) -> Float64:
        sizes = zip(self.padding, self.x_shape[2:], strict=True)
        inside: tuple[Any, ...] = (..., *(slice(before, before + n) for (before, _), n in sizes))
        cropped: Float64 = x[inside]
        return cropped

    def check(self, **results: Array) -> None:
        for name, array in results.items():
            if array.shape != self.y_shape:
                raise ValueError(
                    f"{name} has shape {array.shape}; pooling x of shape {self.x_shape} with window "
                    f"{self.window}, stride {self.stride} and padding {self.padding} gives {self.y_shape}"
                )
