"""Spatial transformers: affine grids and bilinear sampling."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..shapes import spatial as rules
from ..shapes.checks import same_shape
from ..shapes.spatial import GridSampleGradients, SpatialTransformerGradients
from . import _signatures as signatures
from ._cast import Array, Float64
from ._definition import Arguments, defined


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
