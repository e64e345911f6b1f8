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
    """Compute ``alpha * (largest element, average or sum of each window) + beta * out``, rounded once.

    A maximum looks at the elements of ``x`` only, not at the padding. In an average the padding counts as
    zeros (``"average_inc_pad"``: divided by the size of the window) or not at all (``"average_exc_pad"``: by
    the number of elements in it); in a sum it is zeros.

    Parameters
    ----------
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64, for a maximum also int8
        1 to 3 spatial axes, any strides.
    window : int, one int per spatial axis, or "global", which is the whole image
    stride : int or one int per spatial axis, optional
        By default that of the window: windows lie side by side.
    padding : int, one int per axis, one pair (before, after) per axis, "valid", "half" or "full"
        Less than the window on each side.
    mode : "max", "max_deterministic", "average_inc_pad", "average_exc_pad" or "sum"
        ``"average"`` is ``"average_inc_pad"``. The two maxima differ on a device only.
    propagate_nan : bool
        Whether a NaN is the largest element of its window. If not, it is passed over, and a window of nothing
        else gives -inf.
    alpha, beta : float
    out : array, shape and dtype of the result, optional
        Written and returned. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape :func:`pool_output_shape`, dtype of ``x``

    Raises
    ------
    TypeError
        There is no such pooling for the dtype.
    ValueError
        Shapes or parameters do not fit; the message has the numbers.

    Examples
    --------
    >>> x = np.array([[[1.0, 5.0, 2.0, 4.0, 3.0]]])
    >>> pool(x, window=2)
    array([[[5., 4.]]])
    >>> pool(x, window=3, stride=2, padding=1, mode="average_exc_pad")
    array([[[3.        , 3.66666667, 3.5       ]]])
    """
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
    """Compute the gradient of pooling with regard to its input, in float64, rounded once at the end.

    Of a maximum, all goes to the first element of the window, in C order, that equals it (a NaN, if it is
    one). Of an average or a sum, each element gets its share; only the shapes of ``x`` and ``y`` matter then.

    Parameters
    ----------
    dy : array, shape of ``y``, dtype of ``x``
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    y : array, shape :func:`pool_output_shape`, dtype of ``x``
        What :func:`pool` gave for ``x``, not scaled.
    window, stride, padding, mode, propagate_nan, alpha, beta, out
        As in :func:`pool`; the parameters of the forward pooling.

    Returns
    -------
    array, shape and dtype of ``x``

    Raises
    ------
    TypeError, ValueError
        As in :func:`pool`; also where pooling ``x`` does not give the shape of ``y`` and ``dy``.

    Examples
    --------
    >>> x = np.array([[[1.0, 5.0, 5.0, 4.0]]])
    >>> pool_backward(np.array([[[1.0, 10.0]]]), x, pool(x, window=3, stride=1), window=3, stride=1)
    array([[[ 0., 11.,  0.,  0.]]])
    """
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
