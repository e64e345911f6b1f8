"""Affine grids and sampling by the legacy calls, for any number of images and channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from ...context import Context
from ...descriptors import SpatialTransformerDescriptor, TensorDescriptor
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...plans.axes import MAX_CALLS, canonical_strides, sliced
from ...plans.base import Plan, tensors_of
from ...plans.elementwise import fill_plan, op_tensor_of
from ...plans.program import FunctionPlan, Step, chained, scalar_type
from ...shapes.spatial import SampleProblem
from ...shapes.specs import LayerProblem, Shape, SpatialTransformerSpec, TensorSpec

MAX_IMAGES = 65_535  # the grid of a launch has no more blocks along that axis
MAX_CHANNELS = 1024  # a block has at most 1024 threads

# Outside of any image of two pixels or more: these are between -1 and 1, and reach to -3 and 3 at most. Where
# the number of a pixel overflows, and at infinity, cuDNN 9.19 multiplies 0 by infinity.
FAR = 4.0

_Part = tuple[list[TensorSpec], tuple[int, ...], bool]
"""Specs and offsets of a part, and whether a part before has other channels of its images."""


def grid_plan(problem: LayerProblem[None]) -> Plan:
    """Return a plan of an affine grid or its gradient, with a call for each part of the batch."""
    operand, result = tensors_of(problem).values()
    size = (operand if problem.dx else result).shape
    function = f"cudnnSpatialTfGridGenerator{'Backward' if problem.dx else 'Forward'}"

    def call(operand: TensorSpec, result: TensorSpec) -> FunctionPlan:
        n, height, width, _ = (operand if problem.dx else result).shape
        transformer = _transformer((n, 1, height, width), operand, result)

        # The two functions do not scale, so alpha and beta are unused.
        def run(context: Context, pointers: Sequence[int], *_: float) -> None:
            getattr(context.library, function)(context.handle, transformer, *pointers)

        return FunctionPlan(function, run)

    parts = _parts((size[0], 1), (operand, result), ())
    return _for_parts([(call(*specs), offsets) for specs, offsets, _ in parts])


def sample_plan(problem: SampleProblem) -> Plan:
    """Return a plan of sampling or its gradients, with a call for each part of the images."""
    tensors = tensors_of(problem)
    grid = tensors["grid"] = TensorSpec.packed(problem.grid.shape, problem.grid.dtype)
    one = TensorSpec.packed((1,) * 4, grid.dtype)
    images = [place for place, name in enumerate(tensors) if "grid" not in name]
    parts = _parts(problem.x.shape[:2], tuple(tensors.values()), images)
    sampling = _for_parts([(_sample_call(*part, added=added), offsets) for part, offsets, added in parts])
    clipped, of_one = len(tensors), len(tensors) + 1
    steps = [
        Step(fill_plan(one, 1.0), (of_one,)),
        Step(op_tensor_of("min", problem.grid, one, grid, alpha2=FAR), (1, of_one, clipped)),
        Step(op_tensor_of("max", grid, one, grid, alpha2=-FAR), (clipped, of_one, clipped)),
        Step(sampling, (0, clipped, *range(2, len(tensors)))),
    ]
    return chained([grid, one], steps)


def gradient_without_channels(problem: SampleProblem) -> Plan | None:
    """Return a plan for the gradient of images without channels: that of the grid is 0."""
    if problem.x.shape[1] or not problem.dgrid:
        return None
    return chained([], [Step(fill_plan(problem.dgrid, 0.0), (4,))])


def _parts(size: Shape, specs: Sequence[TensorSpec], images: Sequence[int]) -> Iterator[_Part]:
    """Yield the parts of a batch of ``size``, its images and channels, that a call takes.

    The first axis of all specs is the batch. Those at the places ``images`` have channels too.
    """
    batches, channels = (range(0, n, most) for n, most in zip(size, (MAX_IMAGES, MAX_CHANNELS), strict=True))
    if len(batches) * len(channels) > MAX_CALLS:
        raise NotSupportedError(
            f"{size[0]:,} images of {size[1]:,} channels take {len(batches) * len(channels):,} calls: a call "
            f"takes {MAX_IMAGES:,} images of {MAX_CHANNELS:,} channels"
        )
    for first in product(batches, channels):
        counts = [
            min(n - at, axis.step) for n, at, axis in zip(size, first, (batches, channels), strict=True)
        ]
        made, offsets = [], []
        for place, spec in enumerate(specs):
            axes = 2 if place in images else 1
            made.append(spec._replace(shape=(*counts[:axes], *spec.shape[axes:])))
            elements = sum(at * step for at, step in zip(first[:axes], spec.strides, strict=False))
            offsets.append(elements * DTYPES[spec.dtype].itemsize)
        yield made, tuple(offsets), first[1] > 0


def _for_parts(pieces: list[tuple[Any, tuple[int, ...]]]) -> Plan:
    """Return the plan of the only part, or of all parts one after another."""
    plan: Plan = pieces[0][0]
    return plan if len(pieces) == 1 else sliced(pieces)


def _sample_call(*specs: TensorSpec, added: bool) -> FunctionPlan:
    """Return ``cudnnSpatialTfSamplerForward``, or ``cudnnSpatialTfSamplerBackward``.

    The tensors are x, grid and y, or x, grid, dy, dx and dgrid. With ``added`` dgrid is added to what is in
    its memory, because it is a sum over the channels.
    """
    x, grid, y, *gradients = specs
    transformer = _transformer(y.shape, grid, *gradients[1:])
    data = (canonical_strides(spec, list(spec.layouts)) for spec in (x, y, *gradients[:1]))
    tensors = tuple(map(TensorDescriptor.cached, data))
    scalar, kept = scalar_type(DTYPES[y.dtype].accumulate), float(added)

    def forward(context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        (x, y), (image, grid, result) = tensors, pointers
        head = (context.handle, transformer, scalar(alpha), x, image, grid, scalar(beta))
        context.library.cudnnSpatialTfSamplerForward(*head, y, result)

    def backward(context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        (x, y, dx), (image, grid, gradient, of_image, of_grid) = tensors, pointers
        head = (context.handle, transformer, scalar(alpha), x, image, scalar(beta), dx, of_image)
        sums = scalar(1.0), y, gradient, grid, scalar(kept), of_grid
        context.library.cudnnSpatialTfSamplerBackward(*head, *sums)

    if gradients:
        return FunctionPlan("cudnnSpatialTfSamplerBackward", backward)
    return FunctionPlan("cudnnSpatialTfSamplerForward", forward)


def _transformer(shape: Shape, *grids: TensorSpec) -> SpatialTransformerDescriptor:
    for spec in grids:
        if "nchw" not in spec.layouts:
            raise NotSupportedError(f"cuDNN requires contiguous grids and affine matrices: got {spec}")
    return SpatialTransformerDescriptor.cached(SpatialTransformerSpec(shape, grids[0].dtype))
