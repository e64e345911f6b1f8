"""Bilinear interpolation of images, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ._cast import Float64


# Infinities and NaN are valid data.
@np.errstate(all="ignore")
def sampled(x: Float64, grid: Float64) -> Float64:
    """Return the values of ``x``, (N, C, H, W), at the points of ``grid``, (N, H_out, W_out, 2)."""
    y = np.zeros((*grid.shape[:3], x.shape[1]))
    for pixel in _pixels_around(x, grid):
        y += pixel.keep(pixel.values * pixel.weight)
    return np.ascontiguousarray(np.moveaxis(y, -1, 1))


@np.errstate(all="ignore")
def sampled_gradients(x: Float64, grid: Float64, dy: Float64) -> tuple[Float64, Float64]:
    """Return the gradients of :func:`sampled` with respect to image and grid."""
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
    pixels = (points + 1) * pixels_per_unit
    low = np.floor(pixels)
    for index, weight, slope in ((low, 1 - (pixels - low), -1), (low + 1, pixels - low, 1)):
        inside = (index >= 0) & (index <= size - 1)  # False for NaN
        yield np.where(inside, index, 0).astype(int), weight, slope * pixels_per_unit, inside
