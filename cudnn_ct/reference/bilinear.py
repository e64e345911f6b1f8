"""Values between the pixels of an image, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ._cast import Float64

__all__ = ["sampled", "sampled_gradients"]


# What is not finite is data like any other.
@np.errstate(all="ignore")
def sampled(x: Float64, grid: Float64) -> Float64:
    """The values of ``x``, shape (N, C, H, W), at the places of ``grid``, shape (N, H_out, W_out, 2)."""
    y = np.zeros((*grid.shape[:3], x.shape[1]))
    for pixel in _pixels_around(x, grid):
        y += pixel.keep(pixel.values * pixel.weight)
    return np.ascontiguousarray(np.moveaxis(y, -1, 1))


@np.errstate(all="ignore")
def sampled_gradients(x: Float64, grid: Float64, dy: Float64) -> tuple[Float64, Float64]:
    """The gradients of :func:`sampled` with regard to image and grid."""
    dy, dx, dgrid = np.moveaxis(dy, 1, -1), np.zeros((len(x), *x.shape[2:], x.shape[1])), np.zeros(grid.shape)
    for pixel in _pixels_around(x, grid):
        np.add.at(dx, pixel.where, pixel.keep(dy * pixel.weight))
        dgrid += pixel.keep((pixel.values * dy).sum(axis=-1, keepdims=True) * pixel.slopes)
    return np.ascontiguousarray(np.moveaxis(dx, -1, 1)), dgrid


class _Pixel(NamedTuple):
    """For each place one of the four pixels around it. Channels are last, where NumPy puts them."""

    where: tuple[Any, ...]  # batch, row and column
    values: Float64
    weight: Float64
    slopes: Float64  # by how much the weight grows with the two coordinates of the place
    inside: Any

    def keep(self, terms: Float64) -> Float64:
        """The terms where the pixel is in the image; whatever they are elsewhere, they are not there."""
        return np.where(self.inside, terms, 0)


def _pixels_around(x: Float64, grid: Float64) -> Iterator[_Pixel]:
    batch, (height, width) = np.arange(len(grid))[:, None, None], x.shape[2:]
    for row, column in product(_two_around(grid[..., 1], height), _two_around(grid[..., 0], width)):
        where = (batch, row.pixel, column.pixel)
        slopes = np.stack([row.weight * column.slope, row.slope * column.weight], axis=-1)
        weight = (row.weight * column.weight)[..., None]
        yield _Pixel(where, x[batch, :, *where[1:]], weight, slopes, (row.inside & column.inside)[..., None])


class _Neighbour(NamedTuple):
    """Along one axis, one of the two pixels around each place."""

    pixel: Any
    weight: Float64
    slope: float
    inside: Any


def _two_around(places: Float64, size: int) -> Iterator[_Neighbour]:
    pixels_per_unit = (size - 1) / 2
    place = (places + 1) * pixels_per_unit
    low = np.floor(place)
    for index, weight, slope in ((low, 1 - (place - low), -1), (low + 1, place - low, 1)):
        inside = (index >= 0) & (index <= size - 1)  # which NaN is not
        yield _Neighbour(np.where(inside, index, 0).astype(int), weight, slope * pixels_per_unit, inside)
