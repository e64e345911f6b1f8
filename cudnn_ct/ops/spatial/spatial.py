"""Spatial transformers: affine grids, images sampled by them, and the gradients of both."""

from __future__ import annotations

from typing import Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...array_creation import as_operand
from ...shapes import spatial as rules
from ...shapes.checks import result_slots
from ...shapes.spatial import GridSampleGradients, SpatialTransformerGradients
from ...shapes.specs import TensorSpec
from ...typing import ArrayLike, OutLike, Shape, StreamLike
from .._call import execute, execute_as
from .._documented import documented
from .._implementations import of_problem, with_bfloat16
from .._operands import results_of_calls, stream_of
from .._operation import Operation
from .legacy import gradient_without_channels, grid_plan, sample_plan


@documented()
def affine_grid(
    theta: ArrayLike,
    shape: Shape,
    *more: Never,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
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
    ``cudnnSpatialTfGridGeneratorForward``, which takes 65,535 images in a call. From Jaderberg et al.,
    Spatial Transformer Networks, 2015.

    Examples
    --------
    >>> upside_down = ct.asarray([[[1, 0, 0], [0, -1, 0]]], "float32")
    >>> ct.affine_grid(upside_down, (1, 2, 2)).numpy()[0, 0]
    array([[-1.,  1.], [ 1.,  1.]], dtype=float32)
    """
    if more or unknown or theta is UNSET or shape is UNSET:
        return corrected(affine_grid, locals())
    return execute(_GRID, ("theta",), (theta,), (shape,), outs=(out,), stream=stream)[0]


@documented()
def affine_grid_backward(
    dgrid: ArrayLike,
    *more: Never,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
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
    if more or unknown or dgrid is UNSET:
        return corrected(affine_grid_backward, locals())
    return execute(_GRID_GRADIENT, ("dgrid",), (dgrid,), (), outs=(out,), stream=stream)[0]


@documented()
def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    *more: Never,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute ``alpha * (x at the positions of a grid) + beta * out``.

    A position is (x, y): -1 is the centre of the first pixel, 1 that of the last. Values between pixels are
    bilinear; outside the image, also at infinity, they are 0. An axis of one pixel has it at every position.

    Parameters
    ----------
    x : device array, shape (N, C, H, W), float16 | bfloat16 | float32 | float64
    grid : device array, shape (N, H_out, W_out, 2), dtype of x

    Returns
    -------
    DeviceArray, shape (N, C, H_out, W_out), dtype of x; or ``out`` as one

    Notes
    -----
    ``cudnnSpatialTfSamplerForward`` on a copy of the grid that is clipped to the range from -4 to 4. It takes
    65,535 images of 1,024 channels in a call. The conventions are those of ``align_corners=True`` in other
    libraries.

    Examples
    --------
    >>> x = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> grid = ct.asarray([[[[-1, -1], [0.5, -1], [1, -1]]]], "float32")
    >>> ct.grid_sample(x, grid).numpy()
    array([[[[1., 4., 5.]]]], dtype=float32)
    """
    if more or unknown or x is UNSET or grid is UNSET:
        return corrected(grid_sample, locals())
    return execute(_SAMPLE, ("x", "grid"), (x, grid), (), alpha, beta, (out,), stream)[0]


@documented(grid_sample)
def grid_sample_backward(
    dy: ArrayLike,
    x: ArrayLike,
    grid: ArrayLike,
    *more: Never,
    alpha: float = 1,
    beta: float = 0,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> GridSampleGradients[DeviceArray]:
    """Compute the gradients of :func:`grid_sample` with regard to x and to the grid.

    Parameters
    ----------
    dy : device array, shape (N, C, H_out, W_out), dtype of x

    Returns
    -------
    GridSampleGradients
        ``dx``, like x; ``dgrid``, like the grid, 0 outside the image.

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
    if more or unknown or dy is UNSET or x is UNSET or grid is UNSET:
        return corrected(grid_sample_backward, locals())
    given, kind = {"x": x, "grid": grid, "dy": dy}, GridSampleGradients
    return execute_as(kind, _SAMPLE_GRADIENTS, given, (), out, stream, alpha=alpha, beta=beta)


@documented(grid_sample)
def spatial_transformer(
    x: ArrayLike,
    theta: ArrayLike,
    *more: Never,
    scale_height: float = 1,
    scale_width: float = 1,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Sample images by affine grids: :func:`grid_sample` by :func:`affine_grid`.

    Parameters
    ----------
    theta : device array, shape (N, 2, 3), dtype of x
    scale_height, scale_width : float
        Height and width of the result divided by those of x.

    Returns
    -------
    DeviceArray, shape (N, C, ceil(H * scale_height), ceil(W * scale_width)), dtype of x; or ``out`` as one

    Notes
    -----
    ``cudnnSpatialTfGridGeneratorForward`` and ``cudnnSpatialTfSamplerForward``. The grid is rounded to the
    dtype of x in between.

    Examples
    --------
    >>> x = ct.asarray([[[[1, 3, 5]]]], "float32")
    >>> mirror = ct.asarray([[[-1, 0, 0], [0, 1, 0]]], "float32")
    >>> ct.spatial_transformer(x, mirror).numpy()
    array([[[[5., 3., 1.]]]], dtype=float32)
    """
    if more or unknown or x is UNSET or theta is UNSET:
        return corrected(spatial_transformer, locals())
    where = stream_of(x, "x", stream, (theta, out))
    x, theta = (as_operand(array, name, where) for name, array in (("x", x), ("theta", theta)))
    shape = rules.transformed_shape(x.shape, scale_height, scale_width)
    expected = {"out": TensorSpec.packed(shape, x.spec.dtype)}
    (y_out,) = results_of_calls((out,), expected, (x, theta), where)
    return grid_sample(x, affine_grid(theta, shape, stream=where), out=y_out, stream=where)


@documented(spatial_transformer)
def spatial_transformer_backward(
    dy: ArrayLike,
    x: ArrayLike,
    theta: ArrayLike,
    *more: Never,
    scale_height: float = 1,
    scale_width: float = 1,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> SpatialTransformerGradients[DeviceArray]:
    """Compute the gradients of :func:`spatial_transformer` with regard to x and to the transforms.

    Parameters
    ----------
    dy : device array, shape of the result of :func:`spatial_transformer`, dtype of x

    Returns
    -------
    SpatialTransformerGradients
        ``dx``, like x; ``dtheta``, like theta.

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
    if more or unknown or dy is UNSET or x is UNSET or theta is UNSET:
        return corrected(spatial_transformer_backward, locals())
    where = stream_of(dy, "dy", stream, (x, theta, out))
    given = {"dy": dy, "x": x, "theta": theta}
    operands = [as_operand(array, name, where) for name, array in given.items()]
    dy, x, theta = operands
    outs = result_slots(out, SpatialTransformerGradients._fields)
    expected = {"out": x.spec, "dtheta of out": theta.spec}
    dx_out, dtheta_out = results_of_calls(outs, expected, operands, where)
    grid = affine_grid(theta, rules.transformed_shape(x.shape, scale_height, scale_width), stream=where)
    dx, dgrid = grid_sample_backward(dy, x, grid, out=dx_out, stream=where)
    return SpatialTransformerGradients(dx, affine_grid_backward(dgrid, out=dtheta_out, stream=where))


_GRID_PLANS = with_bfloat16(of_problem(grid_plan))
_SAMPLE_PLANS = (of_problem(gradient_without_channels), *with_bfloat16(of_problem(sample_plan)))
_GRID = Operation("an affine grid", rules.grid_problem, _GRID_PLANS)
_GRID_GRADIENT = Operation("the gradient of an affine grid", rules.grid_problem, _GRID_PLANS)
_SAMPLE = Operation("sampling", rules.sample_problem, _SAMPLE_PLANS)
_SAMPLE_GRADIENTS = Operation(
    "the gradients of sampling", rules.sample_problem, _SAMPLE_PLANS, written=("out", "dgrid of out")
)
