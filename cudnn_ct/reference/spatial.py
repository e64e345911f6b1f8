"""Spatial transformers: affine grids and bilinear sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.checks import same_shape
from ..shapes.spatial import (
    GridSampleGradients,
    SpatialTransformerGradients,
    affine_grid_shape,
    check_grid,
    grid_sample_shape,
    transformed_shape,
)
from ._cast import Array, Float64, deliver, operands, round_once
from .bilinear import sampled, sampled_gradients


def affine_grid(theta: ArrayLike, shape: Sequence[int], *, out: Array | None = None) -> Array:
    """Compute ``theta @ (x, y, 1)`` for every pixel of an image. See :func:`cudnn_ct.affine_grid`."""
    dtype, (theta,) = operands("affine_grid", theta=theta)
    return deliver(_grid(theta, affine_grid_shape(theta.shape, shape)), dtype, 1, 0, out)


def affine_grid_backward(dgrid: ArrayLike, *, out: Array | None = None) -> Array:
    """Compute ``sum(dgrid * (x, y, 1))`` over all pixels. See :func:`cudnn_ct.affine_grid_backward`."""
    dtype, (dgrid,) = operands("affine_grid", dgrid=dgrid)
    check_grid(dgrid.shape, "dgrid")
    return deliver(_grid_gradient(dgrid), dtype, 1, 0, out)


def grid_sample(
    x: ArrayLike, grid: ArrayLike, *, alpha: float = 1, beta: float = 0, out: Array | None = None
) -> Array:
    """Compute ``alpha * (x at the points of a grid) + beta * out``. See :func:`cudnn_ct.grid_sample`."""
    dtype, (x, grid) = operands("grid_sample", x=x, grid=grid)
    grid_sample_shape(x.shape, grid.shape)
    return deliver(sampled(x, grid), dtype, alpha, beta, out)


def grid_sample_backward(
    dy: ArrayLike,
    x: ArrayLike,
    grid: ArrayLike,
    *,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> GridSampleGradients[Array]:
    """Compute the gradients of :func:`grid_sample`. See :func:`cudnn_ct.grid_sample_backward`."""
    dtype, (x, grid, dy) = operands("grid_sample", x=x, grid=grid, dy=dy)
    same_shape(y=grid_sample_shape(x.shape, grid.shape), dy=dy.shape)
    dx, dgrid = sampled_gradients(x, grid, dy)
    return GridSampleGradients(deliver(dx, dtype, alpha, beta, out), round_once(dgrid, dtype))


def spatial_transformer(
    x: ArrayLike,
    theta: ArrayLike,
    *,
    scale_height: float = 1,
    scale_width: float = 1,
    out: Array | None = None,
) -> Array:
    """Compute ``grid_sample(x, affine_grid(theta))``. See :func:`cudnn_ct.spatial_transformer`."""
    dtype, (x, theta) = operands("spatial_transformer", x=x, theta=theta)
    grid = _transformer_grid(x, theta, scale_height, scale_width)
    return deliver(sampled(x, grid), dtype, 1, 0, out)


def spatial_transformer_backward(
    dy: ArrayLike,
    x: ArrayLike,
    theta: ArrayLike,
    *,
    scale_height: float = 1,
    scale_width: float = 1,
    out: Array | None = None,
) -> SpatialTransformerGradients[Array]:
    """Compute the gradients of a transformer. See :func:`cudnn_ct.spatial_transformer_backward`."""
    dtype, (x, theta, dy) = operands("spatial_transformer", x=x, theta=theta, dy=dy)
    grid = _transformer_grid(x, theta, scale_height, scale_width)
    same_shape(y=grid_sample_shape(x.shape, grid.shape), dy=dy.shape)
    dx, dgrid = sampled_gradients(x, grid, dy)
    dtheta = round_once(_grid_gradient(dgrid), dtype)
    return SpatialTransformerGradients(deliver(dx, dtype, 1, 0, out), dtheta)


def _transformer_grid(x: Float64, theta: Float64, scale_height: float, scale_width: float) -> Float64:
    shape = transformed_shape(x.shape, scale_height, scale_width)
    return _grid(theta, affine_grid_shape(theta.shape, shape))


def _pixels(shape: tuple[int, ...]) -> Float64:
    """(x, y, 1) of all pixels of a grid, shape (H, W, 3)."""
    height, width = (np.linspace(-1, 1, n) for n in shape[1:3])
    y, x = np.meshgrid(height, width, indexing="ij")
    return np.stack([x, y, np.ones_like(x)], axis=-1)


@np.errstate(all="ignore")
def _grid(theta: Float64, shape: tuple[int, ...]) -> Float64:
    return np.asarray(np.einsum("nik,hwk->nhwi", theta, _pixels(shape)))


@np.errstate(all="ignore")
def _grid_gradient(dgrid: Float64) -> Float64:
    return np.asarray(np.einsum("nhwi,hwk->nik", dgrid, _pixels(dgrid.shape)))
