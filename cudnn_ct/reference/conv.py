"""Convolutions and pooling by windows, their gradients, and a fused convolution with bias and activation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple, Never

import numpy as np
from numpy.typing import ArrayLike

from .._hints import UNSET, corrected, known_keywords
from ..dtypes import as_dtype
from ..shapes.conv import MODES, Pairs, conv_geometry, conv_output_shape, conv_transpose_output_shape
from ..shapes.conv_dtype import check_conv_dtypes, conv_result_dtype
from ..shapes.fused import fused_activation
from ..shapes.parse import as_bool, as_choice, as_float, as_int
from ..shapes.pooling import pool_geometry, pool_output_shape, pooling_dtypes, pooling_mode
from ..typing import ConvMode, FusedActivation, Padding, PerAxis, PoolMode, Shape
from ._cast import Array, Float64, deliver, operands, required, wide
from .layers import CURVES

Index = tuple[Any, ...]


class Windows(NamedTuple):
    """The positions of a window over images of shape (N, C, *spatial), for each spatial axis."""

    spatial: tuple[int, ...]
    window: tuple[int, ...]
    padding: Pairs
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    counts: tuple[int, ...]  # how many positions the window has

    def taps(self) -> Iterator[tuple[Index, Index]]:
        """For each element of the window, in C order: its index, and that of the pixels under it.

        The second index is for a padded image, and selects one pixel for each position of the window.
        """
        for element in product(*map(range, self.window)):
            axes = zip(element, self.dilation, self.stride, self.counts, strict=True)
            pixels = (slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, s, n in axes)
            yield (..., *element), (..., *pixels)

    def pad(self, x: Float64, value: float = 0) -> Float64:
        """Return images with their padding, filled with ``value``."""
        return np.pad(x, [*[(0, 0)] * (x.ndim - len(self.padding)), *self.padding], constant_values=value)

    def padded_zeros(self, *channels: int) -> Float64:
        """Return padded images of zeros; ``channels`` are the axes before the spatial ones."""
        sizes = zip(self.spatial, self.padding, strict=True)
        return np.zeros((*channels, *(n + sum(pair) for n, pair in sizes)))

    def crop(self, x: Float64) -> Float64:
        """Return padded images without their padding."""
        sizes = zip(self.padding, self.spatial, strict=True)
        inside: Index = (..., *(slice(before, before + n) for (before, _), n in sizes))
        return np.asarray(x[inside])


# --- convolutions ------------------------------------------------------------------------------------------


def conv(
    x: ArrayLike,
    w: ArrayLike,
    *,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``y[n, k, p] = sum(w[k, c, i] * x[n, c, p * s + i * d])``. See :func:`cudnn_ct.conv`."""
    given, alpha, beta = _operands("forward", x=x, w=w), as_float(alpha, "alpha"), as_float(beta, "beta")
    name = as_dtype(given["x"].dtype).name
    out_name = as_dtype(out.dtype).name if isinstance(out, np.ndarray) else None
    dtype = as_dtype(conv_result_dtype(name, out_name, "alpha" if alpha != 1 else "beta" if beta else ""))
    g = _Geometry(given["x"].shape, given["w"].shape, padding, stride, dilation, groups, mode)
    images, filters = g.windows.pad(g.split(given["x"])), g.split_filters(wide(given["w"]))
    y = g.split(np.zeros(g.y_shape))
    for element, pixels in g.windows.taps():
        y += np.einsum("gkc,ngc...->ngk...", filters[element], images[pixels])
    if name == "int8":
        y = y.astype(np.int64).astype(np.int32).astype(np.float64)  # which wraps around
    return deliver(y.reshape(g.y_shape), dtype.numpy, alpha, beta, out)


def conv_backward_data(
    dy: ArrayLike,
    w: ArrayLike,
    x_shape: Shape,
    *,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``dx[q] = sum(w[i] * dy[p]), q = p * s + i * d``. See :func:`cudnn_ct.conv_backward_data`."""
    given = _operands("backward_data", dy=dy, w=w)
    g = _Geometry(x_shape, given["w"].shape, padding, stride, dilation, groups, mode)
    gradients, filters = g.split_gradients(given["dy"]), g.split_filters(wide(given["w"]))
    batch, channels = g.x_shape[:2]
    images = g.windows.padded_zeros(batch, g.groups, channels // g.groups)
    for element, pixels in g.windows.taps():
        images[pixels] += np.einsum("gkc,ngk...->ngc...", filters[element], gradients)
    return deliver(g.windows.crop(images).reshape(g.x_shape), given["dy"].dtype, alpha, beta, out)


def conv_backward_filter(
    dy: ArrayLike,
    x: ArrayLike,
    w_shape: Shape,
    *,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``dw[i] = sum(x[p * s + i * d] * dy[p])``. See :func:`cudnn_ct.conv_backward_filter`."""
    given = _operands("backward_filter", dy=dy, x=x)
    g = _Geometry(given["x"].shape, w_shape, padding, stride, dilation, groups, mode)
    images, gradients = g.windows.pad(g.split(given["x"])), g.split_gradients(given["dy"])
    dw = np.zeros(g.w_shape)
    filters, gradients = g.split_filters(dw), _flat(gradients)
    for element, pixels in g.windows.taps():
        filters[element] = np.einsum("ngkp,ngcp->gkc", gradients, _flat(images[pixels]))
    return deliver(dw, given["dy"].dtype, alpha, beta, out)


def conv_backward_bias(
    dy: ArrayLike, *, alpha: float = 1, beta: float = 0, out: Array | None = None
) -> Array:
    """Compute ``alpha * sum(dy) + beta * out`` for each channel. See :func:`cudnn_ct.conv_backward_bias`."""
    dy = _operands("backward_bias", dy=dy)["dy"]
    if not 3 <= dy.ndim <= 5:
        raise ValueError(f"dy has shape {dy.shape}; expected (N, K, *out) with 1 to 3 spatial axes")
    return deliver(wide(dy).sum(axis=(0, *range(2, dy.ndim))), dy.dtype, alpha, beta, out)


def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    *,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    output_padding: PerAxis = 0,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``y[q] = sum(w[i] * x[p]), q = p * s + i * d``. See :func:`cudnn_ct.conv_transpose`."""
    geometry: dict[str, Any] = {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups}
    given = required(x=x, w=w)
    shapes = given["x"].shape, given["w"].shape
    shape = conv_transpose_output_shape(*shapes, output_padding=output_padding, **geometry)
    return conv_backward_data(x, w, shape, mode=mode, alpha=alpha, beta=beta, out=out, **geometry)


@known_keywords
def conv_bias_activation(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None,
    *more: Never,
    residual: ArrayLike | None = None,
    activation: FusedActivation = "relu",
    coefficient: float = 0,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    alpha1: float = 1,
    alpha2: float = 1,
    out: Array | None = None,
    **unknown: Never,
) -> Array:
    """Compute ``act(alpha1 * conv + alpha2 * residual + b)``. See :func:`cudnn_ct.conv_bias_activation`."""
    if more or unknown or x is UNSET or w is UNSET or bias is UNSET:
        return corrected(conv_bias_activation, locals())
    others = {name: array for name, array in (("bias", bias), ("residual", residual)) if array is not None}
    given = _operands("fused", x=x, w=w, **others)
    geometry: dict[str, Any] = {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups}
    sums = alpha1 * conv(wide(given["x"]), wide(given["w"]), mode=mode, **geometry)
    if "residual" in given:
        if given["residual"].shape != sums.shape:
            raise ValueError(f"residual has shape {given['residual'].shape}; y has {sums.shape}")
        sums = sums + alpha2 * wide(given["residual"])
    if "bias" in given:
        channels, got = sums.shape[1], given["bias"].shape
        if given["bias"].size != channels:
            raise ValueError(f"bias has shape {got}; y of shape {sums.shape} needs ({channels},)")
        sums = sums + wide(given["bias"]).reshape(1, channels, *[1] * (sums.ndim - 2))
    name = fused_activation(activation)
    y = CURVES[name](sums, (coefficient or 1) if name == "swish" else coefficient)
    return deliver(np.asarray(y), given["x"].dtype, 1, 0, out)


class _Geometry:
    """Shapes, windows and groups, which the three directions share."""

    def __init__(
        self,
        x_shape: Any,
        w_shape: Any,
        padding: Padding,
        stride: PerAxis,
        dilation: PerAxis,
        groups: int,
        mode: ConvMode,
    ) -> None:
        self.x_shape, self.w_shape, self.groups = tuple(x_shape), tuple(w_shape), as_int(groups, "groups")
        self.y_shape = conv_output_shape(
            x_shape, w_shape, padding=padding, stride=stride, dilation=dilation, groups=groups, mode=mode
        )
        window = self.w_shape[2:]
        pairs, strides, dilations = conv_geometry(window, padding, stride, dilation)
        self.windows = Windows(self.x_shape[2:], window, pairs, strides, dilations, self.y_shape[2:])
        self.flips = as_choice(mode, MODES, "mode") == "convolution"

    def split(self, images: Array) -> Float64:
        """Return images with channels as (group, channel of the group)."""
        batch, channels, *spatial = images.shape
        return wide(images).reshape(batch, self.groups, channels // self.groups, *spatial)

    def split_gradients(self, dy: Array) -> Float64:
        if dy.shape != self.y_shape:
            raise ValueError(
                f"dy has shape {dy.shape}; x of {self.x_shape} with w of {self.w_shape} and these "
                f"parameters gives {self.y_shape}"
            )
        return self.split(dy)

    def split_filters(self, w: Float64) -> Float64:
        """Return a view of filters as (group, filter of the group), flipped if the mode says so."""
        filters = w.reshape(self.groups, w.shape[0] // self.groups, *w.shape[1:])
        return np.flip(filters, tuple(range(3, filters.ndim))) if self.flips else filters


def _operands(direction: str, /, **arrays: ArrayLike) -> dict[str, Array]:
    """Return operands as arrays of one dtype that a direction supports."""
    given = required(**arrays)
    check_conv_dtypes(direction, {name: as_dtype(array.dtype).name for name, array in given.items()})
    return given


def _flat(pixels: Float64) -> Float64:
    """Return pixels with all positions of the window on one axis."""
    return pixels.reshape(*pixels.shape[:3], prod(pixels.shape[3:]))


# --- pooling -----------------------------------------------------------------------------------------------


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
