"""Affine grids and grid sampling by legacy calls, split into pieces within cuDNN's limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from ..context import Context
from ..descriptors import SpatialTransformerDescriptor, TensorDescriptor
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..plans.axes import canonical_strides
from ..plans.chain import run_all
from ..plans.scalars import scalar_type
from ..plans.wrappers import ZeroOrScale
from ..shapes.spatial import GridProblem, SampleProblem
from ..shapes.specs import SpatialTransformerSpec, TensorSpec

__all__ = ["GridPlan", "SamplePlan"]

IMAGES = 65_535  # batch size of one call: the grid of a launch has no more blocks along that axis
CHANNELS = 1024  # channels of one call: a block has at most 1024 threads


class GridPlan:
    """``cudnnSpatialTfGridGeneratorForward``, or ``cudnnSpatialTfGridGeneratorBackward``."""

    __slots__ = ("_function", "_pieces", "workspace")

    def __init__(self, problem: GridProblem) -> None:
        grid, theta = problem.grid or problem.dgrid, problem.theta or problem.dtheta
        assert grid is not None
        assert theta is not None
        _check_packed(grid, theta)
        n, height, width, _ = grid.shape
        itemsize = DTYPES[grid.dtype].itemsize
        self._pieces = [
            (
                SpatialTransformerDescriptor.cached(
                    SpatialTransformerSpec((last - first, 1, height, width), grid.dtype)
                ),
                first * 6 * itemsize,
                first * height * width * 2 * itemsize,
            )
            for first, last in _ranges(n, IMAGES)
        ]
        self._function = f"cudnnSpatialTfGridGenerator{'Backward' if problem.dtheta else 'Forward'}"
        self.workspace = 0

    # The two functions do not scale, so alpha and beta are unused.
    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue one call per piece of the batch; ``pointers`` are the input and the result."""
        backward = self._function.endswith("Backward")
        grid, theta = pointers if backward else reversed(pointers)
        call = getattr(context.library, self._function)

        def piece(transformer: SpatialTransformerDescriptor, at_theta: int, at_grid: int) -> None:
            two = (grid + at_grid, theta + at_theta)
            call(context.handle, transformer, *(two if backward else two[::-1]))

        run_all(partial(piece, *one) for one in self._pieces)

    def describe(self) -> str:
        """Describe the implementation."""
        return f"chosen: {self._function}"


class _Piece(NamedTuple):
    """A range of images and channels: descriptors, and byte offsets into x, y, grid and dx."""

    transformer: SpatialTransformerDescriptor
    x: TensorDescriptor
    y: TensorDescriptor
    dx: TensorDescriptor | None
    offsets: tuple[int, int, int, int]
    first_channels: bool


class SamplePlan:
    """``cudnnSpatialTfSamplerForward``, or ``cudnnSpatialTfSamplerBackward``."""

    __slots__ = ("_gradient", "_nothing", "_pieces", "_scalar", "workspace")

    def __init__(self, problem: SampleProblem) -> None:
        x, grid = problem.x, problem.grid
        image = problem.y or problem.dy
        assert image is not None
        _check_packed(grid)
        self._gradient = problem.dx is not None
        self._pieces = [_piece(problem, x, image, grid, *ranges) for ranges in _both(x.shape[0], x.shape[1])]
        self._nothing = None if x.shape[1] or not problem.dgrid else ZeroOrScale(problem.dgrid)
        self._scalar = scalar_type(DTYPES[x.dtype].accumulate)
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue one call per piece; ``pointers`` are x, grid and y, or x, grid, dy, dx and dgrid."""
        if self._nothing is not None:  # no channel has a gradient for the grid
            self._nothing.run(context, pointers, 1.0, 0.0)
        call = self._backward if self._gradient else self._forward
        if len(self._pieces) == 1:
            call(context, pointers, alpha, beta, self._pieces[0])
        else:
            run_all(partial(call, context, pointers, alpha, beta, piece) for piece in self._pieces)

    def _forward(
        self, context: Context, pointers: Sequence[int], alpha: float, beta: float, piece: _Piece
    ) -> None:
        (x, grid, y), scalar = pointers, self._scalar
        at_x, at_y, at_grid, _ = piece.offsets
        context.library.cudnnSpatialTfSamplerForward(
            context.handle,
            piece.transformer,
            scalar(alpha),
            piece.x,
            x + at_x,
            grid + at_grid,
            scalar(beta),
            piece.y,
            y + at_y,
        )

    def _backward(
        self, context: Context, pointers: Sequence[int], alpha: float, beta: float, piece: _Piece
    ) -> None:
        (x, grid, dy, dx, dgrid), scalar = pointers, self._scalar
        at_x, at_y, at_grid, at_dx = piece.offsets
        context.library.cudnnSpatialTfSamplerBackward(
            context.handle,
            piece.transformer,
            scalar(alpha),
            piece.x,
            x + at_x,
            scalar(beta),
            piece.dx,
            dx + at_dx,
            scalar(1.0),
            piece.y,
            dy + at_y,
            grid + at_grid,
            scalar(0.0 if piece.first_channels else 1.0),  # sum the grid gradient over channels
            dgrid + at_grid,
        )

    def describe(self) -> str:
        """Describe the implementation."""
        return f"chosen: cudnnSpatialTfSampler{'Backward' if self._gradient else 'Forward'}"


def _piece(
    problem: SampleProblem,
    x: TensorSpec,
    y: TensorSpec,
    grid: TensorSpec,
    images: tuple[int, int],
    channels: tuple[int, int],
) -> _Piece:
    (n, n_end), (c, c_end) = images, channels
    itemsize = DTYPES[x.dtype].itemsize

    def part(spec: TensorSpec) -> TensorSpec:
        shape = (n_end - n, c_end - c, *spec.shape[2:])
        return canonical_strides(spec._replace(shape=shape), list(spec.layouts))

    def start(spec: TensorSpec) -> int:
        return (n * spec.strides[0] + c * spec.strides[1]) * itemsize

    dx = problem.dx
    return _Piece(
        SpatialTransformerDescriptor.cached(SpatialTransformerSpec(part(y).shape, x.dtype)),
        TensorDescriptor.cached(part(x)),
        TensorDescriptor.cached(part(y)),
        None if dx is None else TensorDescriptor.cached(part(dx)),
        (start(x), start(y), n * grid.strides[0] * itemsize, 0 if dx is None else start(dx)),
        c == 0,
    )


def _both(n: int, channels: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for images in _ranges(n, IMAGES):
        for some in _ranges(channels, CHANNELS):
            yield images, some


def _ranges(length: int, most: int) -> Iterator[tuple[int, int]]:
    for first in range(0, length, most):
        yield first, min(first + most, length)


def _check_packed(*specs: TensorSpec) -> None:
    for spec in specs:
        if "nchw" not in spec.layouts:
            raise NotSupportedError(f"cuDNN requires contiguous grids and affine matrices: got {spec}")
