"""Convolutions whose window is as large as the image: each result is a product of two rows of memory."""

from __future__ import annotations

from math import prod
from typing import Any

from ...shapes.fused import FusedConv
from ...shapes.specs import TensorSpec

_ONE_PIXEL = {"padding": ((0, 0), (0, 0)), "stride": (1, 1), "dilation": (1, 1)}


def with_small_window(problem: Any) -> Any:
    """Return the problem with the pixels of an image as channels of one pixel, or unchanged.

    This is the convolution of an embedding of patches that were cut out before. The memory is the same, and
    cuDNN has fast kernels for windows of one pixel only.
    """
    core = problem.core
    window = core.w.shape[2:]
    covered = window == core.x.shape[2:] and prod(window) > 1 and not any(map(any, core.padding))
    same_order = set(core.x.layouts) & set(core.w.layouts)
    if not covered or not same_order or core.groups > 1 or core.mode != "cross_correlation":
        return problem
    if core.x.dtype == "int8":  # whose engines ask for a layout
        return problem
    small = core._replace(
        x=_as_channels(core.x), w=_as_channels(core.w), y=_of_one_pixel(core.y), **_ONE_PIXEL
    )
    if not isinstance(problem, FusedConv):
        return small
    z, bias = (one and _of_one_pixel(one) for one in (problem.z, problem.bias))
    return problem._replace(conv=small, z=z, bias=bias)


def _as_channels(spec: TensorSpec) -> TensorSpec:
    return TensorSpec.packed((spec.shape[0], prod(spec.shape[1:]), 1, 1), spec.dtype)


def _of_one_pixel(spec: TensorSpec) -> TensorSpec:
    return TensorSpec((*spec.shape[:2], 1, 1), (*spec.strides[:2], 1, 1), spec.dtype)
