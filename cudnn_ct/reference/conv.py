"""The meaning of convolution."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import as_dtype
from ..shapes.conv import MODES, conv_output_shape, conv_transpose_output_shape, pad_pairs
from ..shapes.conv_dtype import check_conv_dtypes, conv_result_dtype
from ..shapes.parse import as_choice, as_float, per_axis
from ._cast import Array, Float64, deliver

__all__ = [
    "conv",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_transpose",
]


def conv(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * (x convolved with w) + beta * out``, in float64, rounded once at the end.

    For one group, and one spatial axis, the sum over channels ``c`` and window positions ``i`` is ::

        y[n, k, p] = sum(w[k, c, i] * x_padded[n, c, p * stride + i * dilation])

    Two and three spatial axes add an index each. The g-th of G groups makes channels ``g * K / G`` and on of
    ``y`` from channels ``g * C / G`` and on of ``x``. ``mode="convolution"`` reverses the window along each
    spatial axis first.

    Parameters
    ----------
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64 | int8
        1 to 3 spatial axes, any strides.
    w : array, shape (K, C / groups, *window), dtype of ``x``
    padding : int, one int per axis, one pair (before, after) per axis, "valid", "half" or "full"
        Zeros around ``x``. ``"half"`` keeps the size where the window is odd and the stride is 1; ``"full"``
        gives each position at which window and input meet.
    stride, dilation : int or one int per spatial axis
    groups : int
    mode : "cross_correlation" or "convolution"
    alpha, beta : float
        Of int8, only where ``out`` is float32.
    out : array, shape and dtype of the result, optional
        Written and returned. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape :func:`conv_output_shape`, dtype of ``x``; of int8 int32, or float32 where ``out`` is that
        Sums of int8 are taken modulo 2**32, as in cuDNN.

    Raises
    ------
    TypeError
        The dtypes differ, or are none of the five; ``out`` has another dtype than the result.
    ValueError
        Shapes or parameters do not fit; the message has the numbers.

    Examples
    --------
    >>> x = np.array([[[1.0, 2.0, 4.0, 8.0]]])
    >>> w = np.array([[[1.0, -1.0]]])
    >>> conv(x, w)
    array([[[-1., -2., -4.]]])
    >>> conv(x, w, mode="convolution", padding="full")
    array([[[ 1.,  1.,  2.,  4., -8.]]])
    """
    x, w, alpha, beta = np.asarray(x), np.asarray(w), as_float(alpha, "alpha"), as_float(beta, "beta")
    check_dtypes("forward", x=x, w=w)
    given = as_dtype(out.dtype).name if isinstance(out, np.ndarray) else None
    scaled = "alpha" if alpha != 1 else "beta" if beta else ""
    dtype = as_dtype(conv_result_dtype(as_dtype(x.dtype).name, given, scaled)).numpy
    g = _Geometry(x.shape, w.shape, padding, stride, dilation, groups, mode)
    images, filters = g.split_channels(g.pad(x)), g.split_filters(w)
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *g.y_shape[2:]))
    for tap, under in g.taps():
        y += np.einsum("gkc,ngc...->ngk...", filters[tap], images[under])
    if x.dtype == np.int8:
        y = y.astype(np.int64).astype(np.int32).astype(np.float64)  # which wraps around
    return deliver(y.reshape(g.y_shape), dtype, alpha, beta, out)


def conv_backward_data(
    dy: npt.ArrayLike,
    w: npt.ArrayLike,
    x_shape: Any,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute the gradient of a convolution with regard to its input, in float64, rounded once at the end.

    Each output pixel gives its gradient back to the input pixels that it was made of, times their weights.

    Parameters
    ----------
    dy : array, shape (N, K, *out), float16 | bfloat16 | float32 | float64
    w : array, shape (K, C / groups, *window), dtype of ``dy``
    x_shape : tuple of int, (N, C, *spatial)
    padding, stride, dilation, groups, mode, alpha, beta, out
        As in :func:`conv`; the parameters of the forward convolution.

    Returns
    -------
    array, shape ``x_shape``, dtype of ``dy``

    Raises
    ------
    TypeError, ValueError
        As in :func:`conv`; also where a convolution of ``x_shape`` has not the shape of ``dy``.

    Examples
    --------
    >>> w = np.array([[[1.0, -1.0]]])
    >>> conv_backward_data(np.array([[[1.0, 2.0, 4.0]]]), w, (1, 1, 4))
    array([[[ 1.,  1.,  2., -4.]]])
    """
    dy, w = np.asarray(dy), np.asarray(w)
    check_dtypes("backward_data", dy=dy, w=w)
    g = _Geometry(x_shape, w.shape, padding, stride, dilation, groups, mode)
    gradients, filters = g.split_channels(g.checked(dy)), g.split_filters(w)
    images = g.split_channels(np.zeros(g.padded_shape))
    for tap, under in g.taps():
        images[under] += np.einsum("gkc,ngk...->ngc...", filters[tap], gradients)
    return deliver(g.crop(images.reshape(g.padded_shape)), dy.dtype, alpha, beta, out)


def conv_backward_filter(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    w_shape: Any,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute the gradient of a convolution with regard to its filters, in float64, rounded once at the end.

    A weight's gradient is the sum, over all places of the window, of the output's gradient there times the
    input pixel that lay under the weight.

    Parameters
    ----------
    dy : array, shape (N, K, *out), float16 | bfloat16 | float32 | float64
    x : array, shape (N, C, *spatial), dtype of ``dy``
    w_shape : tuple of int, (K, C / groups, *window)
    padding, stride, dilation, groups, mode, alpha, beta, out
        As in :func:`conv`; the parameters of the forward convolution.

    Returns
    -------
    array, shape ``w_shape``, dtype of ``dy``

    Raises
    ------
    TypeError, ValueError
        As in :func:`conv`; also where a convolution with ``w_shape`` has not the shape of ``dy``.

    Examples
    --------
    >>> x = np.array([[[1.0, 2.0, 4.0, 8.0]]])
    >>> conv_backward_filter(np.array([[[1.0, 0.0, 1.0]]]), x, (1, 1, 2))
    array([[[ 5., 10.]]])
    """
    dy, x = np.asarray(dy), np.asarray(x)
    check_dtypes("backward_filter", dy=dy, x=x)
    g = _Geometry(x.shape, w_shape, padding, stride, dilation, groups, mode)
    images, gradients = g.split_channels(g.pad(x)), g.split_channels(g.checked(dy))
    gradients, dw = g.flat(gradients), np.zeros(g.w_shape)
    filters = g.split_filters(dw)
    for tap, under in g.taps():
        filters[tap] = np.einsum("ngkp,ngcp->gkc", gradients, g.flat(images[under]))
    return deliver(dw, dy.dtype, alpha, beta, out)


def conv_backward_bias(
    dy: npt.ArrayLike, *, alpha: float = 1, beta: float = 0, out: Array | None = None
) -> Array:
    """Sum a gradient over every axis but the channels, in float64, rounded once at the end.

    Parameters
    ----------
    dy : array, shape (N, K, *out), float16 | bfloat16 | float32 | float64
    alpha, beta, out
        As in :func:`conv`.

    Returns
    -------
    array, shape (K,), dtype of ``dy``

    Raises
    ------
    TypeError, ValueError
        As in :func:`conv`.

    Examples
    --------
    >>> conv_backward_bias(np.array([[[1.0, 2.0], [3.0, 4.0]]]))
    array([3., 7.])
    """
    dy = np.asarray(dy)
    check_dtypes("backward_bias", dy=dy)
    if not 3 <= dy.ndim <= 5:
        raise ValueError(f"dy has shape {dy.shape}; expected (N, K, *out) with 1 to 3 spatial axes")
    db = dy.astype(np.float64).sum(axis=(0, *range(2, dy.ndim)))
    return deliver(db, dy.dtype, alpha, beta, out)


def conv_transpose(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
    output_padding: Any = 0,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute the transposed convolution, the adjoint map of :func:`conv`, rounded once at the end.

    Parameters
    ----------
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    w : array, shape (C, K / groups, *window), dtype of ``x``
    output_padding : int or one int per axis, less than the stride
    padding, stride, dilation, groups, mode, alpha, beta, out
        As in :func:`conv`: those of the convolution that leads from the result to ``x``.

    Returns
    -------
    array, shape :func:`conv_transpose_output_shape`, dtype of ``x``

    Raises
    ------
    TypeError, ValueError
        As in :func:`conv`.

    Examples
    --------
    >>> conv_transpose(np.array([[[1.0, 2.0]]]), np.array([[[1.0, 10.0, 100.0]]]), stride=2)
    array([[[  1.,  10., 102.,  20., 200.]]])
    """
    x, w = np.asarray(x), np.asarray(w)
    geometry = {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups}
    shape = conv_transpose_output_shape(x.shape, w.shape, output_padding=output_padding, **geometry)
    return conv_backward_data(x, w, shape, mode=mode, alpha=alpha, beta=beta, out=out, **geometry)


class _Geometry:
    """Where the window lies: what the three directions share."""

    def __init__(
        self, x_shape: Any, w_shape: Any, padding: Any, stride: Any, dilation: Any, groups: int, mode: Any
    ) -> None:
        self.x_shape, self.w_shape, self.groups = tuple(x_shape), tuple(w_shape), groups
        self.y_shape = conv_output_shape(
            x_shape, w_shape, padding=padding, stride=stride, dilation=dilation, groups=groups, mode=mode
        )
        axes = len(self.w_shape) - 2
        self.stride = per_axis(stride, axes, "stride", 1)
        self.dilation = per_axis(dilation, axes, "dilation", 1)
        self.padding = pad_pairs(padding, self.w_shape[2:], self.dilation)
        self.flips = as_choice(mode, MODES, "mode") == "convolution"
        sizes = zip(self.x_shape[2:], self.padding, strict=True)
        self.padded_shape = (*self.x_shape[:2], *(n + sum(pair) for n, pair in sizes))

    def taps(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """For each position in the window: the index of its weights, and of the pixels that lie under it.

        One small product of matrices for each, over all pixels at once, needs little memory and adds in the
        order of the definition.
        """
        for position in product(*map(range, self.w_shape[2:])):
            axes = zip(position, self.dilation, self.stride, self.y_shape[2:], strict=True)
            under = (slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, s, n in axes)
            lengths = zip(position, self.w_shape[2:], strict=True)
            weights = (k - 1 - i for i, k in lengths) if self.flips else position
            yield (..., *weights), (..., *under)

    def pad(self, x: Array) -> Float64:
        return np.pad(x.astype(np.float64), [(0, 0), (0, 0), *self.padding])

    def crop(self, x: Float64) -> Float64:
        sizes = zip(self.padding, self.x_shape[2:], strict=True)
        inside: tuple[Any, ...] = (..., *(slice(before, before + n) for (before, _), n in sizes))
        cropped: Float64 = x[inside]
        return cropped

    def split_channels(self, array: Array) -> Float64:
        """Channels as (group, channel of the group)."""
        batch, channels, *spatial = array.shape
        return array.astype(np.float64, copy=False).reshape(
            batch, self.groups, channels // self.groups, *spatial
        )

    def flat(self, pixels: Float64) -> Float64:
        """The pixels of all places of the window on one axis."""
        return pixels.reshape(*pixels.shape[:3], prod(self.y_shape[2:]))

    def split_filters(self, w: Array) -> Float64:
        """Filters as (group, filter of the group)."""
        return w.astype(np.float64, copy=False).reshape(self.groups, w.shape[0] // self.groups, *w.shape[1:])

    def checked(self, dy: Array) -> Array:
        if dy.shape != self.y_shape:
            raise ValueError(
                f"dy has shape {dy.shape}; x of {self.x_shape} with w of {self.w_shape} and these "
                f"parameters gives {self.y_shape}"
            )
        return dy


def check_dtypes(direction: str, /, **arrays: Array) -> None:
    check_conv_dtypes(direction, {name: as_dtype(array.dtype).name for name, array in arrays.items()})
