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
from ..shapes.conv import GEOMETRY, ConvProblem, Pairs, conv_problem, conv_transpose_output_shape
from ..shapes.conv_dtype import check_conv_dtypes
from ..shapes.fused import fused_problem
from ..shapes.parse import as_float
from ..shapes.pooling import pool_output_shape, pool_problem
from ..typing import ConvMode, FusedActivation, Padding, PerAxis, PoolMode, Shape
from ._cast import Array, Float64, deliver, packed_spec, present, required, specs_of, specs_of_outs, wide
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
    arrays, alpha, beta = required(x=x, w=w), as_float(alpha, "alpha"), as_float(beta, "beta")
    specs, (into,) = map(packed_spec, arrays.values()), specs_of_outs((out,))
    geometry = geometry_of(padding, stride, dilation, groups, mode)
    scaled = "alpha" if alpha != 1 else "beta" if beta else ""
    problem = conv_problem("forward", *specs, **geometry, out=into, scaled=scaled)
    y = convolved(problem, wide(arrays["x"]), wide(arrays["w"]))
    if problem.x.dtype == "int8":
        y = y.astype(np.int64).astype(np.int32).astype(np.float64)  # which wraps around
    return deliver(y, as_dtype(problem.y.dtype).numpy, alpha, beta, out)


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
    arrays = required(dy=dy, w=w)
    specs, geometry = map(packed_spec, arrays.values()), geometry_of(padding, stride, dilation, groups, mode)
    problem = conv_problem("backward_data", *specs, shape=x_shape, **geometry)
    dx = data_gradient(problem, wide(arrays["dy"]), wide(arrays["w"]))
    return deliver(dx, arrays["dy"].dtype, alpha, beta, out)


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
    arrays = required(dy=dy, x=x)
    specs, geometry = map(packed_spec, arrays.values()), geometry_of(padding, stride, dilation, groups, mode)
    problem = conv_problem("backward_filter", *specs, shape=w_shape, **geometry)
    dw = filter_gradient(problem, wide(arrays["dy"]), wide(arrays["x"]))
    return deliver(dw, arrays["dy"].dtype, alpha, beta, out)


def conv_backward_bias(
    dy: ArrayLike, *, alpha: float = 1, beta: float = 0, out: Array | None = None
) -> Array:
    """Compute ``alpha * sum(dy) + beta * out`` for each channel. See :func:`cudnn_ct.conv_backward_bias`."""
    dy = required(dy=dy)["dy"]
    check_conv_dtypes("backward_bias", {"dy": as_dtype(dy.dtype).name})
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
    arrays = required(x=x, w=w) | present(bias=bias, residual=residual)
    specs = specs_of(arrays)
    conv = conv_problem(
        "forward", specs["x"], specs["w"], **geometry_of(padding, stride, dilation, groups, mode)
    )
    bias_and_residual = specs.get("bias"), specs.get("residual")
    problem = fused_problem(conv, *bias_and_residual, activation, coefficient, alpha1, alpha2)
    sums = problem.alpha1 * convolved(conv, wide(arrays["x"]), wide(arrays["w"]))
    if "residual" in arrays:
        sums = sums + problem.alpha2 * wide(arrays["residual"])
    if "bias" in arrays:
        sums = sums + wide(arrays["bias"]).reshape(1, -1, *[1] * (sums.ndim - 2))
    name, coefficient = problem.activation, problem.coefficient
    y = CURVES[name](sums, (coefficient or 1) if name == "swish" else coefficient)
    return deliver(np.asarray(y), arrays["x"].dtype, 1, 0, out)


def geometry_of(*parameters: Any) -> dict[str, Any]:
    """Return padding, stride and dilation, maybe groups and mode, as keywords of a problem."""
    return dict(zip((*GEOMETRY, "mode"), parameters, strict=False))


def convolved(problem: ConvProblem, x: Float64, w: Float64) -> Float64:
    """Return the result of a convolution in float64."""
    g = _Groups(problem)
    images, filters, y = g.windows.pad(g.split(x)), g.split_filters(w), np.zeros(problem.y.shape)
    sums = g.split(y)
    for element, pixels in g.windows.taps():
        sums += np.einsum("gkc,ngc...->ngk...", filters[element], images[pixels])
    return y


def data_gradient(problem: ConvProblem, dy: Float64, w: Float64) -> Float64:
    """Return the gradient of the data of a convolution in float64."""
    g, (batch, channels, *_) = _Groups(problem), problem.x.shape
    gradients, filters = g.split(dy), g.split_filters(w)
    images = g.windows.padded_zeros(batch, problem.groups, channels // problem.groups)
    for element, pixels in g.windows.taps():
        images[pixels] += np.einsum("gkc,ngk...->ngc...", filters[element], gradients)
    return g.windows.crop(images).reshape(problem.x.shape)


def filter_gradient(problem: ConvProblem, dy: Float64, x: Float64) -> Float64:
    """Return the gradient of the filter of a convolution in float64."""
    g, dw = _Groups(problem), np.zeros(problem.w.shape)
    images, gradients, filters = g.windows.pad(g.split(x)), _flat(g.split(dy)), g.split_filters(dw)
    for element, pixels in g.windows.taps():
        filters[element] = np.einsum("ngkp,ngcp->gkc", gradients, _flat(images[pixels]))
    return dw


class _Groups:
    """The windows of a convolution, and views of its tensors by groups."""

    def __init__(self, problem: ConvProblem) -> None:
        self.groups, self.flips = problem.groups, problem.mode == "convolution"
        spatial, window, counts = (one.shape[2:] for one in (problem.x, problem.w, problem.y))
        self.windows = Windows(spatial, window, problem.padding, problem.stride, problem.dilation, counts)

    def split(self, images: Float64) -> Float64:
        """Return a view of images with channels as (group, channel of the group)."""
        batch, channels, *spatial = images.shape
        return images.reshape(batch, self.groups, channels // self.groups, *spatial)

    def split_filters(self, w: Float64) -> Float64:
        """Return a view of filters as (group, filter of the group), flipped if the mode says so."""
        filters = w.reshape(self.groups, w.shape[0] // self.groups, *w.shape[1:])
        return np.flip(filters, tuple(range(3, filters.ndim))) if self.flips else filters


def _flat(pixels: Float64) -> Float64:
    """Return pixels with all positions of the window on one axis."""
    return pixels.reshape(*pixels.shape[:3], prod(pixels.shape[3:]))


# --- pooling -----------------------------------------------------------------------------------------------


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
    arrays = required(x=x)
    params = pool_problem(specs_of(arrays), (None,), window, stride, padding, mode, propagate_nan).params
    dtype, x, name = arrays["x"].dtype, wide(arrays["x"]), params.mode
    w = _windows(x.shape, *params.geometry)
    larger = np.maximum if params.propagate_nan else np.fmax
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
    arrays = required(x=x, y=y, dy=dy)
    dtype, (x, y, dy) = arrays["x"].dtype, map(wide, arrays.values())
    params = pool_problem(specs_of(arrays), (None,), window, stride, padding, mode, propagate_nan).params
    w, name = _windows(x.shape, *params.geometry), params.mode
    dx = w.padded_zeros(*x.shape[:2])
    if name.startswith("max"):
        _add_to_maxima(dx, x, y, dy, w)
    else:
        share = dy / divisor(w, name)
        for _, pixels in w.taps():
            dx[pixels] += share
    return deliver(w.crop(dx), dtype, alpha, beta, out)


def _windows(x_shape: tuple[int, ...], window: Any, padding: Any, stride: Any) -> Windows:
    counts = pool_output_shape(x_shape, window=window, stride=stride, padding=padding)[2:]
    return Windows(x_shape[2:], window, padding, stride, (1,) * len(window), counts)


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
