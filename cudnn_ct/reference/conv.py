"""The meaning of convolution."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import as_dtype
from ..problem import CONV_DTYPES, MODES, choice, conv_output_shape, pad_pairs, per_axis

__all__ = ["conv"]

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


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
    x : array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
        1 to 3 spatial axes, any strides.
    w : array, shape (K, C / groups, *window), dtype of ``x``
    padding : int, one int per axis, one pair (before, after) per axis, "valid", "half" or "full"
        Zeros around ``x``. ``"half"`` keeps the size where the window is odd and the stride is 1; ``"full"``
        gives each position at which window and input meet.
    stride, dilation : int or one int per spatial axis
    groups : int
    mode : "cross_correlation" or "convolution"
    alpha, beta : float
    out : array, shape and dtype of the result, optional
        Written and returned. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape :func:`conv_output_shape`, dtype of ``x``

    Raises
    ------
    TypeError
        The dtypes differ, or are none of the four.
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
    x, w = np.asarray(x), np.asarray(w)
    _check_dtypes(x, w)
    shape = conv_output_shape(
        x.shape, w.shape, padding=padding, stride=stride, dilation=dilation, groups=groups, mode=mode
    )
    _check_out(out, shape, x.dtype, beta)

    window = w.shape[2:]
    strides = per_axis(stride, len(window), "stride", 1)
    dilations = per_axis(dilation, len(window), "dilation", 1)
    pairs = pad_pairs(padding, window, dilations)
    if choice(mode, MODES, "mode") == "convolution":
        w = np.flip(w, axis=tuple(range(2, w.ndim)))

    y = alpha * _correlate(x, w, shape, pairs, strides, dilations, groups)
    if out is not None and beta != 0:  # as in cuDNN, a NaN in `out` must not leak through beta = 0
        y += beta * out.astype(np.float64)
    result = _round_once(y, x.dtype)
    if out is None:
        return result
    out[...] = result
    return out


def _correlate(
    x: Array,
    w: Array,
    shape: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Float64:
    """Sum over the positions of the window: one small product of matrices for each, over all pixels at once.

    This needs little memory (one picture beside the result) and adds in the order of the definition.
    """
    batch, filters, *out = shape
    _, channels, *window = w.shape

    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *padding])
    x = x.reshape(batch, groups, channels, *x.shape[2:])
    w = w.astype(np.float64).reshape(groups, filters // groups, channels, *window)

    y = np.zeros((batch, groups, filters // groups, *out))
    for position in product(*map(range, window)):
        axes = zip(position, dilation, stride, out, strict=True)
        here: tuple[Any, ...] = (..., *position)
        under: tuple[Any, ...] = (..., *(slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, s, n in axes))
        y += np.einsum("gkc,ngc...->ngk...", w[here], x[under])
    return y.reshape(shape)


def _round_once(values: Float64, dtype: np.dtype[Any]) -> Array:
    """Convert float64 to ``dtype``, to the nearest, ties to even; too large becomes infinite, in silence."""
    with np.errstate(over="ignore", under="ignore"):
        if as_dtype(dtype).name != "bfloat16":
            return values.astype(dtype)
        # ml_dtypes goes through float32 and rounds twice: 1 + 2**-8 + 2**-40 becomes a tie, then 1. Rounding
        # to odd in between (truncate, and set the last bit if anything was lost) keeps the tie from arising.
        single = values.astype(np.float32)
        inexact = (single != values) & ~np.isnan(values)
        bits = single.view(np.uint32)
        bits -= inexact & (np.abs(single) > np.abs(values))
        bits |= inexact
        return single.astype(dtype)


def _check_dtypes(x: Array, w: Array) -> None:
    names = [as_dtype(array.dtype).name for array in (x, w)]
    if names[0] != names[1]:
        raise TypeError(f"x is {names[0]} and w is {names[1]}; a convolution needs one dtype for both")
    if names[0] not in CONV_DTYPES:
        raise TypeError(f"conv takes {', '.join(CONV_DTYPES)}, not {names[0]}")


def _check_out(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], beta: float) -> None:
    if out is None:
        if beta != 0:
            raise ValueError(f"beta={beta} needs out, the array that it multiplies")
        return
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; the result has {shape}")
    if out.dtype != dtype:
        raise TypeError(f"out is {out.dtype}; the result is {dtype}")
