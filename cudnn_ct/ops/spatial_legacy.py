"""Affine grids and grid sampling by legacy calls, split into pieces within cuDNN's limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import add
from typing import NamedTuple

from ..context import Context
from ..descriptors import SpatialTransformerDescriptor, TensorDescriptor
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..plans.axes import canonical_strides
from ..plans.base import tensors_of
from ..plans.chain import run_all
from ..plans.scalars import scalar_type
from ..plans.wrappers import ZeroOrScale
from ..shapes.layer import LayerProblem
from ..shapes.spatial import SampleProblem
from ..shapes.specs import SpatialTransformerSpec, TensorSpec

__all__ = ["GridPlan", "SamplePlan"]

IMAGES = 65_535  # batch size of one call: the grid of a launch has no more blocks along that axis
CHANNELS = 1024  # channels of one call: a block has at most 1024 threads


class GridPlan:
    """``cudnnSpatialTfGridGeneratorForward``, or ``cudnnSpatialTfGridGeneratorBackward``."""

    __slots__ = ("_function", "_pieces", "workspace")

    def __init__(self, problem: LayerProblem[None]) -> None:
        operand, result = tensors_of(problem).values()
        _check_packed(operand, result)
        n, height, width, _ = (operand if problem.dx else result).shape
        strides = [spec.strides[0] * DTYPES[spec.dtype].itemsize for spec in (operand, result)]

        def piece(images: range) -> tuple[SpatialTransformerDescriptor, list[int]]:
            spec = SpatialTransformerSpec((len(images), 1, height, width), operand.dtype)
            return SpatialTransformerDescriptor.cached(spec), [images.start * stride for stride in strides]

        self._pieces = [piece(images) for images in _ranges(n, IMAGES)]
        self._function = f"cudnnSpatialTfGridGenerator{'Backward' if problem.dx else 'Forward'}"
        self.workspace = 0

    # The two functions do not scale, so alpha and beta are unused.
    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue one call per piece of the batch; ``pointers`` are the operand and the result."""
        call = partial(getattr(context.library, self._function), context.handle)
        run_all(partial(call, piece, *map(add, pointers, offsets)) for piece, offsets in self._pieces)

    def describe(self) -> str:
        """Describe the implementation."""
        return f"chosen: {self._function}"


class _Piece(NamedTuple):
    """A range of images and channels: descriptors, and the byte offset into each pointer of a run."""

    transformer: SpatialTransformerDescriptor
    x: TensorDescriptor
    y: TensorDescriptor
    dx: TensorDescriptor | None
    offsets: tuple[int, ...]
    first_channels: bool


class SamplePlan:
    """``cudnnSpatialTfSamplerForward``, or ``cudnnSpatialTfSamplerBackward``."""

    __slots__ = ("_gradient", "_no_channels", "_pieces", "_scalar", "workspace")

    def __init__(self, problem: SampleProblem) -> None:
        x = problem.x
        _check_packed(problem.grid)
        self._gradient = problem.dx is not None
        self._pieces = [
            _piece(problem, images, channels)
            for images in _ranges(x.shape[0], IMAGES)
            for channels in _ranges(x.shape[1], CHANNELS)
        ]
        self._no_channels = None if x.shape[1] or not problem.dgrid else ZeroOrScale(problem.dgrid)
        self._scalar = scalar_type(DTYPES[x.dtype].accumulate)
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue one call per piece; ``pointers`` are x, grid and y, or x, grid, dy, dx and dgrid."""
        if self._no_channels is not None:  # the gradient of the grid is 0
            self._no_channels.run(context, pointers, 1.0, 0.0)
        call = self._backward if self._gradient else self._forward
        if len(self._pieces) == 1:
            return call(context, pointers, alpha, beta, self._pieces[0])
        return run_all(partial(call, context, pointers, alpha, beta, piece) for piece in self._pieces)

    def _forward(
        self, context: Context, pointers: Sequence[int], alpha: float, beta: float, piece: _Piece
    ) -> None:
        x, grid, y = map(add, pointers, piece.offsets)
        scaled, added = self._scalar(alpha), self._scalar(beta)
        context.library.cudnnSpatialTfSamplerForward(
            context.handle, piece.transformer, scaled, piece.x, x, grid, added, piece.y, y
        )

    def _backward(
        self, context: Context, pointers: Sequence[int], alpha: float, beta: float, piece: _Piece
    ) -> None:
        x, grid, dy, dx, dgrid = map(add, pointers, piece.offsets)
        scalar = self._scalar
        of_image = scalar(alpha), piece.x, x, scalar(beta), piece.dx, dx
        summed = scalar(0.0 if piece.first_channels else 1.0)  # the gradient of the grid sums over channels
        of_grid = scalar(1.0), piece.y, dy, grid, summed, dgrid
        context.library.cudnnSpatialTfSamplerBackward(context.handle, piece.transformer, *of_image, *of_grid)

    def describe(self) -> str:
        """Describe the implementation."""
        return f"chosen: cudnnSpatialTfSampler{'Backward' if self._gradient else 'Forward'}"


def _piece(problem: SampleProblem, images: range, channels: range) -> _Piece:
    tensors = tensors_of(problem)
    x, y, dx = problem.x, tensors.get("y") or tensors["dy"], problem.dx
    itemsize = DTYPES[x.dtype].itemsize

    def part(spec: TensorSpec) -> TensorSpec:
        shape = (len(images), len(channels), *spec.shape[2:])
        return canonical_strides(spec._replace(shape=shape), list(spec.layouts))

    def offset(name: str, spec: TensorSpec) -> int:
        channel = 0 if name in ("grid", "dgrid") else channels.start * spec.strides[1]
        return (images.start * spec.strides[0] + channel) * itemsize

    return _Piece(
        SpatialTransformerDescriptor.cached(SpatialTransformerSpec(part(y).shape, x.dtype)),
        TensorDescriptor.cached(part(x)),
        TensorDescriptor.cached(part(y)),
        None if dx is None else TensorDescriptor.cached(part(dx)),
        tuple(offset(name, spec) for name, spec in tensors.items()),
        channels.start == 0,
    )


def _ranges(length: int, most: int) -> Iterator[range]:
    for first in range(0, length, most):
        yield range(first, min(first + most, length))


def _check_packed(*specs: TensorSpec) -> None:
    for spec in specs:
        if "nchw" not in spec.layouts:
            raise NotSupportedError(f"cuDNN requires contiguous grids and affine matrices: got {spec}")
