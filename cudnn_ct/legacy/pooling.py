"""Pooling and its gradient by the legacy calls."""

from __future__ import annotations

from math import prod

from ..context import Context
from ..descriptors import PoolingDescriptor
from ..errors import NotSupportedError
from ..problem import PoolingSpec, PoolProblem, tensors_of
from .calls import CallPlan
from .fold import images

__all__ = ["pooling"]

# cuDNN has no sums: they are averages times the size of the window.
_MODES = {
    "average_inc_pad": "average_count_include_padding",
    "average_exc_pad": "average_count_exclude_padding",
    "sum": "average_count_include_padding",
}


def pooling(problem: PoolProblem, context: Context) -> CallPlan:  # noqa: ARG001 - as all ways are called
    """``cudnnPoolingForward``, or ``cudnnPoolingBackward``."""
    window, padding, stride = problem.geometry
    if any(before != after for before, after in padding):
        raise NotSupportedError("the legacy calls pad both sides of an axis alike")
    befores = tuple(before for before, _ in padding)
    if len(window) == 1:
        window, befores, stride = (1, *window), (0, *befores), (1, *stride)
    mode = _MODES.get(problem.mode, problem.mode)
    spec = PoolingSpec(window, befores, stride, mode, problem.propagate_nan)
    head = (PoolingDescriptor.cached(spec),)
    factor = prod(window) if problem.mode == "sum" else 1
    x, y, *gradients = images(*tensors_of(problem).values())
    if not gradients:
        return CallPlan("cudnnPoolingForward", head, [(0, x)], y, factor)
    dy, dx = gradients
    return CallPlan("cudnnPoolingBackward", head, [(1, y), (2, dy), (0, x)], dx, factor)
