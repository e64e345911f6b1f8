"""The meaning of spatial transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.checks import one_dtype, same_shape
from ..shapes.spatial import (
    GridSampleGradients,
    SpatialTransformerGradients,
    affine_grid_shape,
    check_grid,
    grid_sample_shape,
    transformed_shape,
)
from ._cast import Array, Float64, deliver, round_once, wide
from .bilinear import sampled, sampled_gradients

__all__ = [
    "affine_grid",
    "affine_grid_backward",
    "grid_sample",
    "grid_sample_backward",
    "spatial_transformer",
    "spatial_transformer_backward",
]


def affine_grid(theta: npt.ArrayLike, shape: Any, *, out: Array | None = None) -> Array:
    """Compute ``theta @ (x, y, 1)`` for every pixel of an image. See :func:`cudnn_ct.affine_grid`."""
    theta = np.asarray(theta)
    one_dtype("affine_grid", theta=theta.dtype)
    grid_shape = affine_grid_shape(theta.shape, shape)
    return deliver(_grid(wide(theta), grid_shape), theta.dtype, 1, 0, out)


def affine_grid_backward(dgrid: npt.ArrayLike, *, out: Array | None = None) -> Array:
    """Compute ``sum(dgrid * (x, y, 1))`` over all pixels. See :func:`cudnn_ct.affine_grid_backward`."""
    dgrid = np.asarray(dgrid)
    one_dtype("affine_grid", dgrid=dgrid.dtype)
    check_grid(dgrid.shape, "dgrid")
    return deliver(_grid_gradient(wide(dgrid)), dgrid.dtype, 1, 0, out)


def grid_sample(
    x: npt.ArrayLike,
    grid: npt.ArrayLike,
    *,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * (x at the places of a grid) + beta * out``. See :func:`cudnn_ct.grid_sample`."""
    x, grid = np.asarray(x), np.asarray(grid)
    one_dtype("grid_sample", x=x.dtype, grid=grid.dtype)
    grid_sample_shape(x.shape, grid.shape)
    return deliver(sampled(wide(x), wide(grid)), x.dtype, alpha, beta, out)


def grid_sample_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    grid: npt.ArrayLike,
    *,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> GridSampleGradients[Array]:
    """Compute the gradients of :func:`grid_sample`. See :func:`cudnn_ct.grid_sample_backward`."""
    x, grid, dy = np.asarray(x), np.asarray(grid), np.asarray(dy)
    one_dtype("grid_sample", x=x.dtype, grid=grid.dtype, dy=dy.dtype)
    same_shape(y=grid_sample_shape(x.shape, grid.shape), dy=dy.shape)
    dx, dgrid = sampled_gradients(wide(x), wide(grid), wide(dy))
    return GridSampleGradients(deliver(dx, x.dtype, alpha, beta, out), round_once(dgrid, x.dtype))


def spatial_transformer(
    x: npt.ArrayLike,
    theta: npt.ArrayLike,
    *,
    scale_height: float = 1,
    scale_width: float = 1,
    out: Array | None = None,
) -> Array:
    """Compute ``grid_sample(x, affine_grid(theta))``. See :func:`cudnn_ct.spatial_transformer`."""
    x, theta = np.asarray(x), np.asarray(theta)
    grid = _transformer_grid(x, theta, scale_height, scale_width)
    return deliver(sampled(wide(x), grid), x.dtype, 1, 0, out)


def spatial_transformer_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    theta: npt.ArrayLike,
    *,
    scale_height: float = 1,
    scale_width: float = 1,
    out: Array | None = None,
) -> SpatialTransformerGradients[Array]:
    """Compute the gradients of a transformer. See :func:`cudnn_ct.spatial_transformer_backward`."""
    x, theta, dy = np.asarray(x), np.asarray(theta), np.asarray(dy)
    one_dtype("spatial_transformer", x=x.dtype, dy=dy.dtype)
    grid = _transformer_grid(x, theta, scale_height, scale_width)
    same_shape(y=grid_sample_shape(x.shape, grid.shape), dy=dy.shape)
    dx, dgrid = sampled_gradients(wide(x), grid, wide(dy))
    dx = deliver(dx, x.dtype, 1, 0, out)
    return SpatialTransformerGradients(dx, round_once(_grid_gradient(dgrid), x.dtype))


def _transformer_grid(x: Array, theta: Array, scale_height: float, scale_width: float) -> Float64:
    one_dtype("spatial_transformer", x=x.dtype, theta=theta.dtype)
    shape = transformed_shape(x.shape, scale_height, scale_width)
    return _grid(wide(theta), affine_grid_shape(theta.shape, shape))


def _pixels(shape: tuple[int, ...]) -> Float64:
    """(x, y, 1) of all pixels of a grid, shape (H, W, 3)."""
    height, width = (np.linspace(-1, 1, n) for n in shape[1:3])
    y, x = np.meshgrid(height, width, indexing="ij")
    return np.stack([x, y, np.ones_like(x)], axis=-1)


@np.errstate(all="ignore")
def _grid(theta: Float64, shape: tuple[int, ...]) -> Float64:
    grid: Float64 = np.einsum("nik,hwk->nhwi", theta, _pixels(shape))
    return grid


@np.errstate(all="ignore")
def _grid_gradient(dgrid: Float64) -> Float64:
    dtheta: Float64 = np.einsum("nhwi,hwk->nik", dgrid, _pixels(dgrid.shape))
    return dtheta
