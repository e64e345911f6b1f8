"""Local response normalisation and its gradient by the legacy calls."""

from __future__ import annotations

from .._bindings.enums import LRNMode
from ..descriptors import LRNDescriptor
from ..plans.axes import images
from ..plans.base import tensors_of
from ..plans.call import CallPlan
from ..shapes.lrn import LRNProblem

__all__ = ["lrn"]


def lrn(problem: LRNProblem) -> CallPlan:
    """``cudnnLRNCrossChannelForward``, or ``cudnnLRNCrossChannelBackward``."""
    head = (LRNDescriptor.cached(problem.lrn), LRNMode.CROSS_CHANNEL_DIM1)
    x, y, *gradients = images(*tensors_of(problem).values())
    if not gradients:
        return CallPlan("cudnnLRNCrossChannelForward", head, [(0, x)], y)
    dy, dx = gradients
    return CallPlan("cudnnLRNCrossChannelBackward", head, [(1, y), (2, dy), (0, x)], dx)
