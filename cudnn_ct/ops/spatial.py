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


def affine_grid(
    theta: ArrayLike, shape: Shape, *, out: ArrayLike | None = None, stream: StreamLike | None = None
) -> DeviceArray:
    """Compute ``theta @ (x, y, 1)`` for every pixel of an image.

    ``x`` and ``y`` go from -1 to 1, from the centre of the first pixel to that of the last. Of a single pixel
    they are -1.

    Parameters
    ----------
    theta : device array, shape (N, 2, 3), float16 | bfloat16 | float32 | float64
    shape : tuple of int, (N, C, H, W) or (N, H, W)
        Of the images that the grid is for.
    out : device array, shape and dtype of the result, optional
        Destination of the result. It must not overlap ``theta``.
    stream : optional
        An address, or anything with ``__cuda_stream__``; by default that of ``ct.use``.

    Returns
    -------
    DeviceArray, shape (N, H, W, 2), dtype of theta; or ``out`` as one
        For each pixel, the place in the image to take it from: first along W, then along H.

    Raises
    ------
    TypeError
        theta is not on the device, or its dtype is none of the four.
    ValueError
        Shapes do not fit; the message has the numbers.
    NotSupportedError
        cuDNN has no way to compute it; the message says what each way was refused for.
    AllocationError
        Device memory ran out.

    Notes
    -----
    ``cudnnSpatialTfGridGeneratorForward``, in pieces of at most 65,535 images. From Jaderberg et al., Spatial
    Transformer Networks, 2015.

    By cuDNN's manual the same bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> upside_down = ct.asarray([[[1, 0, 0], [0, -1, 0]]], "float32")
    >>> ct.affine_grid(upside_down, (1, 2, 2)).numpy()[0, 0]
    array([[-1.,  1.], [ 1.,  1.]], dtype=float32)
    """
    return execute(_GRID, ("theta",), (theta,), (shape,), outs=(out,), stream=stream)[0]


def affine_grid_backward(
    dgrid: ArrayLike, *, out: ArrayLike | None = None, stream: StreamLike | None = None
) -> DeviceArray:
    """Compute the gradient of :func:`affine_grid` with regard to the transforms.

    Parameters
    ----------
    dgrid : device array, shape (N, H, W, 2), float16 | bfloat16 | float32 | float64
    out, stream
        As in :func:`affine_grid`.

    Returns
    -------
    DeviceArray, shape (N, 2, 3), dtype of dgrid; or ``out`` as one

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`affine_grid`.

    Notes
    -----
    ``cudnnSpatialTfGridGeneratorBackward``.

    cuDNN's manual does not say so, but in float32 the last bits were seen to vary from run to run.

    Examples
    --------
    >>> dgrid = ct.asarray([[[[1, 10]], [[2, 20]]]], "float32")  # one pixel wide: x is -1
    >>> ct.affine_grid_backward(dgrid).numpy()
    array([[[ -3.,   1.,   3.], [-30.,  10.,  30.]]], dtype=float32)
    """
    return execute(_GRID_GRADIENT, ("dgrid",), (dgrid,), (), outs=(out,), stream=stream)[0]


def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    *,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Compute ``alpha * (x at the places of a grid) + beta * out``.

    A place is (x, y): -1 is the centre of the first pixel, 1 that of the last. Between four pixels the value
    is bilinear; outside the image there are zeros.

    Parameters
    ----------
    x : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    grid : device array, shape (N, H_out, W_out, 2), dtype of x
    alpha, beta : float
    out : device array, shape and dtype of the result, optional
        Where the result goes; read only where beta is not 0, which needs it. It must not overlap the others.
    stream : optional
        As in :func:`affine_grid`.

    Returns
    -------
    DeviceArray, shape (N, C, H_out, W_out), dtype of x; or ``out`` as one

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`affine_grid`; TypeError also where the dtypes differ.

    Notes
    -----
    ``cudnnSpatialTfSamplerForward``, in pieces of at most 65,535 images and 1024 channels, which are its
    limits. The conventions are those of ``align_corners=True`` elsewhere.

    By cuDNN's manual the same bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> x = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> grid = ct.asarray([[[[-1, -1], [0.5, -1], [1, -1]]]], "float32")
    >>> ct.grid_sample(x, grid).numpy()
    array([[[[1., 4., 5.]]]], dtype=float32)
    """
    return execute(_SAMPLE, ("x", "grid"), (x, grid), (), alpha, beta, (out,), stream)[0]


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
    x : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    grid : device array, shape (N, H_out, W_out, 2), dtype of x
    alpha, beta, out, stream
        As in :func:`grid_sample`, for dx.

    Returns
    -------
    GridSampleGradients
        ``dx``, as x, and ``dgrid``, as the grid.

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`grid_sample`.

    Notes
    -----
    ``cudnnSpatialTfSamplerBackward``, whose sums over pixels are in no fixed order.

    So dx may vary in its last bits from run to run, and cuDNN has no way that does not.

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
    scale_height, scale_width : float
        Of the result against x.
    out : device array, shape and dtype of the result, optional
        Destination of the result. It must not overlap ``x``.
    stream : optional
        As in :func:`affine_grid`.

    Returns
    -------
    DeviceArray, shape (N, C, ceil(H * scale_height), ceil(W * scale_width)), dtype of x; or ``out`` as one

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`grid_sample`.

    Notes
    -----
    The grid is rounded to the dtype of x in between.

    ``cudnnSpatialTfGridGeneratorForward`` and ``cudnnSpatialTfSamplerForward``: by cuDNN's manual the same
    bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> x = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> mirror = ct.asarray([[[-1, 0, 0], [0, 1, 0]]], "float32")
    >>> ct.spatial_transformer(x, mirror).numpy()
    array([[[[5., 3., 1.]]]], dtype=float32)
    """
    grid = affine_grid(theta, _result_shape(x, scale_height, scale_width), stream=stream)
    return grid_sample(x, grid, out=out, stream=stream)


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
    x : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    theta : device array, shape (N, 2, 3), dtype of x
    scale_height, scale_width, stream
        As in :func:`spatial_transformer`.
    out : device array, shape and dtype of x, optional
        Destination of ``dx``. It must not overlap an operand.

    Returns
    -------
    SpatialTransformerGradients
        ``dx``, as x, or ``out`` as one; ``dtheta``, as theta.

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`grid_sample`.

    Notes
    -----
    The gradients of :func:`grid_sample`, and of the grid that of :func:`affine_grid`.

    ``cudnnSpatialTfSamplerBackward`` and ``cudnnSpatialTfGridGeneratorBackward``; dx may vary in its last
    bits from run to run.

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
