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
    """Compute ``theta @ (x, y, 1)`` for every pixel of an image, in float64, rounded once at the end.

    ``x`` and ``y`` go from -1 to 1, from the centre of the first pixel to that of the last. Of a single pixel
    they are -1.

    Parameters
    ----------
    theta : array, shape (N, 2, 3), float16 | bfloat16 | float32 | float64
    shape : tuple of int, (N, C, H, W) or (N, H, W)

    Returns
    -------
    array, shape (N, H, W, 2), dtype of ``theta``
        For each pixel, the place in the image to take it from: first along W, then along H.

    Raises
    ------
    TypeError
        The dtype is none of the four.
    ValueError
        There is not one transform for each image, or no pixel.

    Examples
    --------
    >>> upside_down = np.array([[[1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]])
    >>> affine_grid(upside_down, (1, 2, 2))
    array([[[[-1.,  1.],
             [ 1.,  1.]],
            [[-1., -1.],
             [ 1., -1.]]]])
    """
    theta = np.asarray(theta)
    one_dtype("affine_grid", theta=theta.dtype)
    grid_shape = affine_grid_shape(theta.shape, shape)
    return deliver(_grid(wide(theta), grid_shape), theta.dtype, 1, 0, out)


def affine_grid_backward(dgrid: npt.ArrayLike, *, out: Array | None = None) -> Array:
    """Compute the gradient of :func:`affine_grid` with regard to the transforms, rounded once at the end.

    Parameters
    ----------
    dgrid : array, shape (N, H, W, 2), float16 | bfloat16 | float32 | float64

    Returns
    -------
    array, shape (N, 2, 3), dtype of ``dgrid``

    Raises
    ------
    TypeError, ValueError
        As in :func:`affine_grid`.

    Examples
    --------
    >>> affine_grid_backward(np.array([[[[1.0, 10.0]], [[2.0, 20.0]]]]))
    array([[[ -3.,   1.,   3.],
            [-30.,  10.,  30.]]])
    """
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
    """Compute ``alpha * (x at the places of a grid) + beta * out``, in float64, rounded once at the end.

    A place is (x, y): -1 is the centre of the first pixel, 1 that of the last. Between four pixels the value
    is bilinear; outside the image there are zeros, and so there are where a place is infinite or NaN.

    Parameters
    ----------
    x : array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    grid : array, shape (N, H_out, W_out, 2), dtype of ``x``
    alpha, beta : float
    out : array, shape and dtype of the result, optional
        Written and returned. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape (N, C, H_out, W_out), dtype of ``x``

    Raises
    ------
    TypeError
        The dtypes differ, or are none of the four.
    ValueError
        Shapes do not fit; the message has the numbers.

    Examples
    --------
    >>> x = np.array([[[[1.0, 3.0, 5.0]]]])
    >>> grid_sample(x, np.array([[[[-1.0, 0.0], [0.5, 0.0], [1.5, 0.0]]]]))
    array([[[[1. , 4. , 2.5]]]])
    """
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
    """Compute the gradients of :func:`grid_sample`, in float64, each rounded once at the end.

    At the centre of a pixel, where the slope jumps, it is that towards larger coordinates.

    Parameters
    ----------
    dy : array, shape (N, C, H_out, W_out), dtype of ``x``
    x : array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    grid : array, shape (N, H_out, W_out, 2), dtype of ``x``
    alpha, beta, out
        As in :func:`grid_sample`, for dx.

    Returns
    -------
    GridSampleGradients
        ``dx``, as ``x``, and ``dgrid``, as ``grid``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`grid_sample`.

    Examples
    --------
    >>> x, grid = np.array([[[[1.0, 3.0, 5.0]]]]), np.array([[[[0.5, 0.0]]]])
    >>> dx, dgrid = grid_sample_backward(np.array([[[[8.0]]]]), x, grid)
    >>> dx
    array([[[[0., 4., 4.]]]])
    >>> dgrid
    array([[[[16.,  0.]]]])
    """
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
    """Sample images by affine grids: :func:`grid_sample` by :func:`affine_grid`, rounded once at the end.

    Parameters
    ----------
    x : array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    theta : array, shape (N, 2, 3), dtype of ``x``
    scale_height, scale_width : float

    Returns
    -------
    array, shape (N, C, ceil(H * scale_height), ceil(W * scale_width)), dtype of ``x``

    Raises
    ------
    TypeError
        The dtypes differ, or are none of the four.
    ValueError
        Shapes or scales do not fit; the message has the numbers.

    Examples
    --------
    >>> mirror = np.array([[[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    >>> spatial_transformer(np.array([[[[1.0, 3.0, 5.0]]]]), mirror, scale_width=4 / 3)
    array([[[[5.        , 3.66666667, 2.33333333, 1.        ]]]])
    """
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
    """Compute the gradients of :func:`spatial_transformer`, in float64, each rounded once at the end.

    Parameters
    ----------
    dy : array, shape of the result of :func:`spatial_transformer`, dtype of ``x``
    x : array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    theta : array, shape (N, 2, 3), dtype of ``x``
    scale_height, scale_width : float

    Returns
    -------
    SpatialTransformerGradients
        ``dx``, as ``x``, and ``dtheta``, as ``theta``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`spatial_transformer`.

    Examples
    --------
    >>> same = np.array([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    >>> spatial_transformer_backward(np.array([[[[3.0, 4.0]]]]), np.ones((1, 1, 1, 2)), same).dx
    array([[[[3., 4.]]]])
    """
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
