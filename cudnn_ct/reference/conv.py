"""Operations on images: convolutions, pooling and bilinear sampling by grids, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import as_dtype
from ..shapes import spatial as rules
from ..shapes.arithmetic import check_conv_dtypes
from ..shapes.checks import as_float, same_shape
from ..shapes.conv import GEOMETRY, ConvProblem, Pairs, conv_problem, conv_transpose_output_shape
from ..shapes.fused import fused_problem
from ..shapes.layers import pool_output_shape, pool_problem
from ..shapes.spatial import GridSampleGradients, SpatialTransformerGradients
from . import _signatures as signatures
from ._definition import Arguments, Array, Float64, defined, packed_spec, specs_of, specs_of_outs, wide
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
        sizes = zip(self.padding, self.spatial, strict=True)
        inside: Index = (..., *(slice(before, before + n) for (before, _), n in sizes))
        return np.asarray(x[inside])


# --- convolutions ------------------------------------------------------------------------------------------


@defined(signatures.conv)
def conv(p: Arguments) -> Array:
    """Compute ``y[n, k, p] = sum(w[k, c, i] * x[n, c, p * s + i * d])``. See :func:`cudnn_ct.conv`."""
    arrays, alpha, beta = p.required("x", "w"), as_float(p.alpha, "alpha"), as_float(p.beta, "beta")
    specs, (into,) = map(packed_spec, arrays.values()), specs_of_outs((p.out,))
    scaled = "alpha" if alpha != 1 else "beta" if beta else ""
    problem = conv_problem("forward", *specs, **geometry_of(p), out=into, scaled=scaled)
    y = convolved(problem, wide(arrays["x"]), wide(arrays["w"]))
    if problem.x.dtype == "int8":
        y = y.astype(np.int64).astype(np.int32).astype(np.float64)  # which wraps around
    return p.deliver(y, as_dtype(problem.y.dtype).numpy)


@defined(signatures.conv_backward_data)
def conv_backward_data(p: Arguments) -> Array:
    """Compute ``dx[q] = sum(w[i] * dy[p]), q = p * s + i * d``. See :func:`cudnn_ct.conv_backward_data`."""
    arrays = p.required("dy", "w")
    specs = map(packed_spec, arrays.values())
    problem = conv_problem("backward_data", *specs, shape=p.x_shape, **geometry_of(p))
    dx = data_gradient(problem, wide(arrays["dy"]), wide(arrays["w"]))
    return p.deliver(dx, arrays["dy"].dtype)


@defined(signatures.conv_backward_filter)
def conv_backward_filter(p: Arguments) -> Array:
    """Compute ``dw[i] = sum(x[p * s + i * d] * dy[p])``. See :func:`cudnn_ct.conv_backward_filter`."""
    arrays = p.required("dy", "x")
    specs = map(packed_spec, arrays.values())
    problem = conv_problem("backward_filter", *specs, shape=p.w_shape, **geometry_of(p))
    dw = filter_gradient(problem, wide(arrays["dy"]), wide(arrays["x"]))
    return p.deliver(dw, arrays["dy"].dtype)


@defined(signatures.conv_backward_bias)
def conv_backward_bias(p: Arguments) -> Array:
    """Compute ``alpha * sum(dy) + beta * out`` for each channel. See :func:`cudnn_ct.conv_backward_bias`."""
    dy = p.required("dy")["dy"]
    check_conv_dtypes("backward_bias", {"dy": as_dtype(dy.dtype).name})
    if not 3 <= dy.ndim <= 5:
        raise ValueError(f"dy has shape {dy.shape}; expected (N, K, *out) with 1 to 3 spatial axes")
    return p.deliver(wide(dy).sum(axis=(0, *range(2, dy.ndim))), dy.dtype)


@defined(signatures.conv_transpose)
def conv_transpose(p: Arguments) -> Array:
    """Compute ``y[q] = sum(w[i] * x[p]), q = p * s + i * d``. See :func:`cudnn_ct.conv_transpose`."""
    x, w = (array.shape for array in p.required("x", "w").values())
    geometry = {name: value for name, value in geometry_of(p).items() if name != "mode"}
    shape = conv_transpose_output_shape(x, w, output_padding=p.output_padding, **geometry)
    scaled = {"alpha": p.alpha, "beta": p.beta, "out": p.out}
    return conv_backward_data(p.x, p.w, shape, **geometry_of(p), **scaled)


@defined(signatures.conv_bias_activation)
def conv_bias_activation(p: Arguments) -> Array:
    """Compute ``act(alpha1 * conv + alpha2 * residual + b)``. See :func:`cudnn_ct.conv_bias_activation`."""
    arrays = p.required("x", "w") | p.present("bias", "residual")
    specs = specs_of(arrays)
    conv = conv_problem("forward", specs["x"], specs["w"], **geometry_of(p))
    bias_and_residual = specs.get("bias"), specs.get("residual")
    problem = fused_problem(conv, *bias_and_residual, p.activation, p.coefficient, p.alpha1, p.alpha2)
    sums = problem.alpha1 * convolved(conv, wide(arrays["x"]), wide(arrays["w"]))
    if "residual" in arrays:
        sums = sums + problem.alpha2 * wide(arrays["residual"])
    if "bias" in arrays:
        sums = sums + wide(arrays["bias"]).reshape(1, -1, *[1] * (sums.ndim - 2))
    return p.deliver(fused_activation(sums, problem), arrays["x"].dtype)


def fused_activation(sums: Float64, problem: Any) -> Float64:
    """Return the activation of a fused convolution; the coefficient of a swish is 1 by default."""
    name, coefficient = problem.activation, problem.coefficient
    return np.asarray(CURVES[name](sums, (coefficient or 1) if name == "swish" else coefficient))


def geometry_of(p: Arguments) -> dict[str, Any]:
    """Return padding, stride and dilation, maybe groups and mode, as keywords of a problem."""
    return {name: value for name, value in vars(p).items() if name in (*GEOMETRY, "mode")}


def convolved(problem: ConvProblem, x: Float64, w: Float64) -> Float64:
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


@defined(signatures.pool)
def pool(p: Arguments) -> Array:
    """Compute ``alpha * (max, mean or sum of each window) + beta * out``. See :func:`cudnn_ct.pool`."""
    arrays = p.required("x")
    w, name, propagate_nan = _pooling(p, arrays)
    x, larger = wide(arrays["x"]), np.maximum if propagate_nan else np.fmax
    if name.startswith("max"):
        padded, y = w.pad(x, -np.inf), np.full((*x.shape[:2], *w.counts), -np.inf)
        for _, pixels in w.taps():
            larger(y, padded[pixels], out=y)
    else:
        y = _sums(x, w) / divisor(w, name)
    return p.deliver(y, arrays["x"].dtype)


@defined(signatures.pool_backward)
def pool_backward(p: Arguments) -> Array:
    """Compute the gradient of :func:`pool` with regard to x. See :func:`cudnn_ct.pool_backward`."""
    arrays = p.required("x", "y", "dy")
    (w, name, _), (x, y, dy) = _pooling(p, arrays), map(wide, arrays.values())
    dx = w.padded_zeros(*x.shape[:2])
    if name.startswith("max"):
        _add_to_maxima(dx, x, y, dy, w)
    else:
        share = dy / divisor(w, name)
        for _, pixels in w.taps():
            dx[pixels] += share
    return p.deliver(w.crop(dx), arrays["x"].dtype)


def _pooling(p: Arguments, arrays: dict[str, Array]) -> tuple[Windows, str, bool]:
    """Return the windows, the mode, and whether NaN is propagated."""
    given, shape = (p.window, p.stride, p.padding, p.mode, p.propagate_nan), arrays["x"].shape
    params = pool_problem(specs_of(arrays), (None,), *given).params
    (window, padding, stride), mode, propagate_nan = params
    counts = pool_output_shape(shape, window=window, stride=stride, padding=padding)[2:]
    return Windows(shape[2:], window, padding, stride, (1,) * len(window), counts), mode, propagate_nan


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


# --- grids, and sampling by them ---------------------------------------------------------------------------


@defined(signatures.affine_grid)
def affine_grid(p: Arguments) -> Array:
    """Compute ``theta @ (x, y, 1)`` for every pixel of an image. See :func:`cudnn_ct.affine_grid`."""
    dtype, (theta,) = p.operands("affine_grid", "theta")
    return p.deliver(_grid(theta, rules.affine_grid_shape(theta.shape, p.shape)), dtype)


@defined(signatures.affine_grid_backward)
def affine_grid_backward(p: Arguments) -> Array:
    """Compute ``sum(dgrid * (x, y, 1))`` over all pixels. See :func:`cudnn_ct.affine_grid_backward`."""
    dtype, (dgrid,) = p.operands("affine_grid", "dgrid")
    rules.check_grid(dgrid.shape, "dgrid")
    return p.deliver(_grid_gradient(dgrid), dtype)


@defined(signatures.grid_sample)
def grid_sample(p: Arguments) -> Array:
    """Compute ``alpha * (x at the points of a grid) + beta * out``. See :func:`cudnn_ct.grid_sample`."""
    dtype, (x, grid) = p.operands("grid_sample", "x", "grid")
    rules.grid_sample_shape(x.shape, grid.shape)
    return p.deliver(_sampled(x, grid), dtype)


@defined(signatures.grid_sample_backward)
def grid_sample_backward(p: Arguments) -> GridSampleGradients[Array]:
    """Compute the gradients of :func:`grid_sample`. See :func:`cudnn_ct.grid_sample_backward`."""
    dtype, (x, grid, dy) = p.operands("grid_sample", "x", "grid", "dy")
    same_shape(y=rules.grid_sample_shape(x.shape, grid.shape), dy=dy.shape)
    dx, dgrid = _sampled_gradients(x, grid, dy)
    return p.deliver_each(GridSampleGradients[Array], ((dx, dtype), (dgrid, dtype)))


@defined(signatures.spatial_transformer)
def spatial_transformer(p: Arguments) -> Array:
    """Compute ``grid_sample(x, affine_grid(theta))``. See :func:`cudnn_ct.spatial_transformer`."""
    dtype, (x, theta) = p.operands("spatial_transformer", "x", "theta")
    return p.deliver(_sampled(x, _transformer_grid(x, theta, p)), dtype)


@defined(signatures.spatial_transformer_backward)
def spatial_transformer_backward(p: Arguments) -> SpatialTransformerGradients[Array]:
    """Compute the gradients of a transformer. See :func:`cudnn_ct.spatial_transformer_backward`."""
    dtype, (x, theta, dy) = p.operands("spatial_transformer", "x", "theta", "dy")
    grid = _transformer_grid(x, theta, p)
    same_shape(y=rules.grid_sample_shape(x.shape, grid.shape), dy=dy.shape)
    dx, dgrid = _sampled_gradients(x, grid, dy)
    results = (dx, dtype), (_grid_gradient(dgrid), dtype)
    return p.deliver_each(SpatialTransformerGradients[Array], results)


def _transformer_grid(x: Float64, theta: Float64, p: Arguments) -> Float64:
    shape = rules.transformed_shape(x.shape, p.scale_height, p.scale_width)
    return _grid(theta, rules.affine_grid_shape(theta.shape, shape))


def _pixels(shape: tuple[int, ...]) -> Float64:
    """(x, y, 1) of all pixels of a grid, shape (H, W, 3)."""
    height, width = (np.linspace(-1, 1, n) for n in shape[1:3])
    y, x = np.meshgrid(height, width, indexing="ij")
    return np.stack([x, y, np.ones_like(x)], axis=-1)


def _grid(theta: Float64, shape: tuple[int, ...]) -> Float64:
    return np.asarray(np.einsum("nik,hwk->nhwi", theta, _pixels(shape)))


def _grid_gradient(dgrid: Float64) -> Float64:
    return np.asarray(np.einsum("nhwi,hwk->nik", dgrid, _pixels(dgrid.shape)))


def _sampled(x: Float64, grid: Float64) -> Float64:
    """Return the values of ``x``, (N, C, H, W), at the points of ``grid``, (N, H_out, W_out, 2)."""
    y = np.zeros((*grid.shape[:3], x.shape[1]))
    for pixel in _pixels_around(x, grid):
        y += pixel.keep(pixel.values * pixel.weight)
    return np.ascontiguousarray(np.moveaxis(y, -1, 1))


def _sampled_gradients(x: Float64, grid: Float64, dy: Float64) -> tuple[Float64, Float64]:
    """Return the gradients of :func:`grid_sample` with respect to image and grid."""
    dy, dx, dgrid = np.moveaxis(dy, 1, -1), np.zeros((len(x), *x.shape[2:], x.shape[1])), np.zeros(grid.shape)
    for pixel in _pixels_around(x, grid):
        np.add.at(dx, pixel.place, pixel.keep(dy * pixel.weight))
        dgrid += pixel.keep((pixel.values * dy).sum(axis=-1, keepdims=True) * pixel.slopes)
    return np.ascontiguousarray(np.moveaxis(dx, -1, 1)), dgrid


class _Pixel(NamedTuple):
    """For each point one of the four pixels around it; channels are the last axis, as in ``values``."""

    place: tuple[Any, ...]  # batch, row and column
    values: Float64
    weight: Float64
    slopes: Float64  # derivatives of the weight with respect to the two coordinates of the point
    inside: Any

    def keep(self, terms: Float64) -> Float64:
        """Return the terms of pixels in the image, and 0 for other pixels."""
        return np.where(self.inside, terms, 0)


def _pixels_around(x: Float64, grid: Float64) -> Iterator[_Pixel]:
    batch, (height, width) = np.arange(len(grid))[:, None, None], x.shape[2:]
    rows, columns = _neighbours(grid[..., 1], height), _neighbours(grid[..., 0], width)
    for (row, wy, sy, iy), (column, wx, sx, ix) in product(rows, columns):
        slopes = np.stack([wy * sx, sy * wx], axis=-1)
        values = x[batch, :, row, column]
        yield _Pixel((batch, row, column), values, (wy * wx)[..., None], slopes, (iy & ix)[..., None])


def _neighbours(points: Float64, size: int) -> Iterator[tuple[Any, Float64, float, Any]]:
    """Yield index, weight, slope of the weight and "inside" for both pixels around each point of an axis."""
    pixels_per_unit = (size - 1) / 2
    largest = np.finfo(np.float64).max  # infinity times 0, for an axis of one pixel, would be NaN
    pixels = (np.clip(points, -largest, largest) + 1) * pixels_per_unit
    low = np.floor(pixels)
    for index, weight, slope in ((low, 1 - (pixels - low), -1), (low + 1, pixels - low, 1)):
        inside = (index >= 0) & (index <= size - 1)  # False for NaN
        yield np.where(inside, index, 0).astype(int), weight, slope * pixels_per_unit, inside
