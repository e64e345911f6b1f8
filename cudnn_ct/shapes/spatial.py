"""Spatial transformer problems: affine matrices, grids and sampled images."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple

from .checks import as_float, batch_hint, one_dtype, packed_result, result_spec, swap_hint
from .specs import INT_MAX, LayerProblem, Outs, Shape, Specs, T, TensorSpec, check_shape, problem_class


class GridSampleGradients(NamedTuple, Generic[T]):
    """Gradients of the image and of the grid."""

    dx: T
    dgrid: T


class SpatialTransformerGradients(NamedTuple, Generic[T]):
    """Gradients with regard to the image, and to the transforms."""

    dx: T
    dtheta: T


def affine_grid_shape(theta_shape: Iterable[int], shape: Iterable[int]) -> Shape:
    """Return the shape of ``affine_grid(theta, shape)``, with ``shape`` (N, C, H, W) or (N, H, W)."""
    theta, result = check_shape(theta_shape, "theta_shape"), check_shape(shape)
    if not 3 <= len(result) <= 4 or 0 in result[-2:]:
        raise ValueError(f"shape {result}: expected (N, C, H, W) or (N, H, W), H and W of at least 1")
    if theta != (result[0], 2, 3):
        raise ValueError(f"theta has shape {theta}; a batch of {result[0]} needs ({result[0]}, 2, 3)")
    return (result[0], *result[-2:], 2)


def check_grid(grid_shape: Iterable[int], name: str = "grid", hint: str = "") -> Shape:
    """Return the shape (N, H, W, 2) of a grid as a tuple of ints."""
    grid = check_shape(grid_shape, f"{name}_shape")
    if len(grid) != 4 or grid[-1] != 2 or 0 in grid[1:3]:
        raise ValueError(f"{name} has shape {grid}; expected (N, H, W, 2), H and W of at least 1{hint}")
    return grid


def grid_sample_shape(x_shape: Iterable[int], grid_shape: Iterable[int]) -> Shape:
    """Return the shape of ``grid_sample(x, grid)``."""
    x = _image(x_shape)
    grid = check_grid(grid_shape, hint=swap_hint("x", "grid") if x[-1] == 2 else "")
    if x[0] != grid[0]:
        raise ValueError(f"x and grid differ in batch size: got {x[0]} and {grid[0]}")
    return (*x[:2], *grid[1:3])


def transformed_shape(x_shape: Iterable[int], scale_height: Any = 1, scale_width: Any = 1) -> Shape:
    """Return the shape of ``spatial_transformer``: height and width times their scales, rounded up."""
    x = _image(x_shape)
    scales = {"scale_height": scale_height, "scale_width": scale_width}
    for name, scale in scales.items():
        if not 0 < as_float(scale, name) < math.inf:
            raise ValueError(f"{name} must be more than 0 and finite: got {scale}")
    products = [n * float(scale) for n, scale in zip(x[2:], scales.values(), strict=True)]
    if max(products) > INT_MAX:
        raise ValueError(f"the result would have {products[0]:g} x {products[1]:g} pixels")
    sizes = map(math.ceil, products)
    return check_shape((*x[:2], *sizes), "shape of the result")


def _image(x_shape: Iterable[int]) -> Shape:
    x = check_shape(x_shape, "x_shape")
    if len(x) != 4 or 0 in x[2:]:
        hint = batch_hint("x", x, 4)
        raise ValueError(f"x has shape {x}; expected (N, C, H, W), H and W of at least 1{hint}")
    return x


def grid_problem(specs: Specs, outs: Outs, shape: Any = None) -> LayerProblem[None]:
    """Validate the arguments of a grid of theta for images of a shape, or of the gradient with dgrid."""
    ((name, operand),) = specs.items()
    one_dtype("affine_grid", **{name: operand.dtype})
    if name == "dgrid":
        result: Shape = (check_grid(operand.shape, "dgrid")[0], 2, 3)
    else:
        result = affine_grid_shape(operand.shape, shape)
    specs = {"dy" if name == "dgrid" else "x": operand}
    return LayerProblem.of("affine grid", None, specs, packed_result(result, operand.dtype, outs[0]))


@problem_class(lambda self: "gradients of sampling" if self.dx else "sampling", "y dx dgrid")
class SampleProblem(NamedTuple):
    """Images sampled at the coordinates of a grid, or the gradients if ``dx`` and ``dgrid`` are set."""

    x: TensorSpec
    grid: TensorSpec
    y: TensorSpec | None
    dy: TensorSpec | None
    dx: TensorSpec | None
    dgrid: TensorSpec | None


def sample_problem(specs: Specs, outs: Outs) -> SampleProblem:
    """Validate the operands of sampling x by a grid, or of the gradients with dy."""
    x, grid = specs["x"], specs["grid"]
    one_dtype("grid_sample", **{name: spec.dtype for name, spec in specs.items()})
    shape = grid_sample_shape(x.shape, grid.shape)
    if "dy" not in specs:
        return SampleProblem(x, grid, result_spec(shape, x, out=outs[0]), None, None, None)
    dy = specs["dy"]
    if dy.shape != shape:
        raise ValueError(f"dy has shape {dy.shape}; y has {shape}")
    dgrid = packed_result(grid.shape, grid.dtype, outs[1], "dgrid of out")
    return SampleProblem(x, grid, None, dy, result_spec(x.shape, x, dy, out=outs[0]), dgrid)
