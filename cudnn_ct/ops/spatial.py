"""Spatial transformers: affine grids, images sampled by them, and the gradients of both."""

from __future__ import annotations

from typing import Any

from ..array import DeviceArray
from ..array_creation import not_on_device
from ..shapes.spatial import (
    GridSampleGradients,
    SpatialTransformerGradients,
    grid_problem,
    sample_problem,
    transformed_shape,
)
from ..shapes.specs import check_shape
from ..typing import ArrayLike, Shape, StreamLike
from ._call import Operation, execute
from ._documented import documented
from ._fallback import of_problem, with_bfloat16
from .spatial_legacy import GridPlan, SamplePlan

__all__ = [
    "affine_grid",
    "affine_grid_backward",
    "grid_sample",
    "grid_sample_backward",
    "spatial_transformer",
    "spatial_transformer_backward",
]

_GRID_PLANS = with_bfloat16(of_problem(GridPlan))
_SAMPLE_PLANS = with_bfloat16(of_problem(SamplePlan))
_GRID = Operation("an affine grid", grid_problem, _GRID_PLANS)
_GRID_GRADIENT = Operation("the gradient of an affine grid", grid_problem, _GRID_PLANS)
_SAMPLE = Operation("sampling", sample_problem, _SAMPLE_PLANS)
_SAMPLE_GRADIENTS = Operation("the gradients of sampling", sample_problem, _SAMPLE_PLANS)


@documented()
def affine_grid(
    theta: ArrayLike, shape: Shape, *, out: ArrayLike | None = None, stream: StreamLike | None = None
) -> DeviceArray:
    """Compute ``theta @ (x, y, 1)`` for every pixel of an image.

    ``x`` and ``y`` run from -1 to 1, from the centre of the first pixel to that of the last. For a single
    pixel they are -1.

    Parameters
    ----------
    theta : device array, shape (N, 2, 3), float16 | bfloat16 | float32 | float64
    shape : tuple of int, (N, C, H, W) or (N, H, W)
        Shape of the images that the grid is for.

    Returns
    -------
    DeviceArray, shape (N, H, W, 2), dtype of theta; or ``out`` as one
        For each pixel, the position in the image to take it from: first along W, then along H.

    Notes
    -----
    ``cudnnSpatialTfGridGeneratorForward``, in pieces of at most 65,535 images. From Jaderberg et al., Spatial
    Transformer Networks, 2015. By cuDNN's manual, results are the same bits from run to run on GPUs of one
    architecture.

    Examples
    --------
    >>> upside_down = ct.asarray([[[1, 0, 0], [0, -1, 0]]], "float32")
    >>> ct.affine_grid(upside_down, (1, 2, 2)).numpy()[0, 0]
    array([[-1.,  1.], [ 1.,  1.]], dtype=float32)
    """
    return execute(_GRID, ("theta",), (theta,), (shape,), outs=(out,), stream=stream)[0]


@documented()
def affine_grid_backward(
    dgrid: ArrayLike, *, out: ArrayLike | None = None, stream: StreamLike | None = None
) -> DeviceArray:
    """Compute the gradient of :func:`affine_grid` with regard to the transforms.

    Parameters
    ----------
    dgrid : device array, shape (N, H, W, 2), float16 | bfloat16 | float32 | float64

    Returns
    -------
    DeviceArray, shape (N, 2, 3), dtype of dgrid; or ``out`` as one

    Notes
    -----
    ``cudnnSpatialTfGridGeneratorBackward``. In float32 the last bits were seen to vary from run to run, which
    cuDNN's manual does not mention.

    Examples
    --------
    >>> dgrid = ct.asarray([[[[1, 10]], [[2, 20]]]], "float32")  # one pixel wide: x is -1
    >>> ct.affine_grid_backward(dgrid).numpy()
    array([[[ -3.,   1.,   3.], [-30.,  10.,  30.]]], dtype=float32)
    """
    return execute(_GRID_GRADIENT, ("dgrid",), (dgrid,), (), outs=(out,), stream=stream)[0]


@documented()
def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    *,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Compute ``alpha * (x at the positions of a grid) + beta * out``.

    A position is (x, y): -1 is the centre of the first pixel, 1 that of the last. Values between pixels are
    bilinear; outside the image they are 0.

    Parameters
    ----------
    x : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    grid : device array, shape (N, H_out, W_out, 2), dtype of x

    Returns
    -------
    DeviceArray, shape (N, C, H_out, W_out), dtype of x; or ``out`` as one

    Notes
    -----
    ``cudnnSpatialTfSamplerForward``, in pieces of at most 65,535 images and 1024 channels, which are its
    limits. The conventions are those of ``align_corners=True`` in other libraries.

    By cuDNN's manual, results are the same bits from run to run on GPUs of one architecture.

    Examples
    --------
    >>> x = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> grid = ct.asarray([[[[-1, -1], [0.5, -1], [1, -1]]]], "float32")
    >>> ct.grid_sample(x, grid).numpy()
    array([[[[1., 4., 5.]]]], dtype=float32)
    """
    return execute(_SAMPLE, ("x", "grid"), (x, grid), (), alpha, beta, (out,), stream)[0]


@documented(grid_sample)
def grid_sample_backward(
    dy: ArrayLike,
    x: ArrayLike,
    grid: ArrayLike,
    *,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> GridSampleGradients[DeviceArray]:
    """Compute the gradients of :func:`grid_sample` with regard to x and to the grid.

    Parameters
    ----------
    dy : device array, shape (N, C, H_out, W_out), dtype of x
    alpha : float
        Factor of dx.
    beta : float
        Factor of the contents of ``out``, which are added to dx. If it is 0, ``out`` is only written.
    out : device array, shape and dtype of x, optional
        Destination of dx. It must not overlap an operand.

    Returns
    -------
    GridSampleGradients
        ``dx``, like x, or ``out`` as one; ``dgrid``, like the grid.

    Notes
    -----
    ``cudnnSpatialTfSamplerBackward``, which sums over pixels in an undefined order: the last bits of dx may
    vary from run to run, and cuDNN has no deterministic alternative.

    Examples
    --------
    >>> x = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> grid, dy = ct.asarray([[[[0.5, -1]]]], "float32"), ct.asarray([[[[8]]]], "float32")
    >>> dx, dgrid = ct.grid_sample_backward(dy, x, grid)
    >>> dx.numpy()
    array([[[[0., 4., 4.]]]], dtype=float32)
    """
    names, operands = ("x", "grid", "dy"), (x, grid, dy)
    dx, dgrid = execute(_SAMPLE_GRADIENTS, names, operands, (), alpha, beta, (out, None), stream)
    return GridSampleGradients(dx, dgrid)


@documented()
def spatial_transformer(
    x: ArrayLike,
    theta: ArrayLike,
    *,
    scale_height: float = 1,
    scale_width: float = 1,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Sample images by affine grids: :func:`grid_sample` by :func:`affine_grid`.

    Parameters
    ----------
    x : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    theta : device array, shape (N, 2, 3), dtype of x
    scale_height : float
        Height of the result divided by that of x.
    scale_width : float
        Width of the result divided by that of x.

    Returns
    -------
    DeviceArray, shape (N, C, ceil(H * scale_height), ceil(W * scale_width)), dtype of x; or ``out`` as one

    Notes
    -----
    ``cudnnSpatialTfGridGeneratorForward`` and ``cudnnSpatialTfSamplerForward``: by cuDNN's manual, results
    are the same bits from run to run on GPUs of one architecture. The grid is rounded to the dtype of x in
    between.

    Examples
    --------
    >>> x = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> mirror = ct.asarray([[[-1, 0, 0], [0, 1, 0]]], "float32")
    >>> ct.spatial_transformer(x, mirror).numpy()
    array([[[[5., 3., 1.]]]], dtype=float32)
    """
    grid = affine_grid(theta, _result_shape(x, scale_height, scale_width), stream=stream)
    return grid_sample(x, grid, out=out, stream=stream)


@documented(spatial_transformer)
def spatial_transformer_backward(
    dy: ArrayLike,
    x: ArrayLike,
    theta: ArrayLike,
    *,
    scale_height: float = 1,
    scale_width: float = 1,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> SpatialTransformerGradients[DeviceArray]:
    """Compute the gradients of :func:`spatial_transformer` with regard to x and to the transforms.

    Parameters
    ----------
    dy : device array, shape of the result of :func:`spatial_transformer`, dtype of x
    out : device array, shape and dtype of x, optional
        Destination of dx. It must not overlap an operand.

    Returns
    -------
    SpatialTransformerGradients
        ``dx``, like x, or ``out`` as one; ``dtheta``, like theta.

    Notes
    -----
    ``cudnnSpatialTfSamplerBackward`` and ``cudnnSpatialTfGridGeneratorBackward``; the last bits of dx may
    vary from run to run.

    Examples
    --------
    >>> x, dy = ct.asarray([[[[1, 1]]]], "float32"), ct.asarray([[[[3, 4]]]], "float32")
    >>> same = ct.asarray([[[1, 0, 0], [0, 1, 0]]], "float32")
    >>> ct.spatial_transformer_backward(dy, x, same).dx.numpy()
    array([[[[3., 4.]]]], dtype=float32)
    """
    grid = affine_grid(theta, _result_shape(x, scale_height, scale_width), stream=stream)
    dx, dgrid = grid_sample_backward(dy, x, grid, out=out, stream=stream)
    return SpatialTransformerGradients(dx, affine_grid_backward(dgrid, stream=stream))


def _result_shape(x: Any, scale_height: float, scale_width: float) -> tuple[int, ...]:
    shape = getattr(x, "shape", None)
    if shape is None:  # an array that has only the protocol
        shape = getattr(x, "__cuda_array_interface__", {}).get("shape")
    if shape is None:
        raise not_on_device(x, "x")
    return transformed_shape(check_shape(shape, "the shape of x"), scale_height, scale_width)
