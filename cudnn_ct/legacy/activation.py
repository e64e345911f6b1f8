"""Activations and their gradients by the legacy calls."""

from __future__ import annotations

from ..descriptors import ActivationDescriptor
from ..problem import ActivationProblem, tensors_of
from .calls import CallPlan
from .fold import elementwise

__all__ = ["activation"]


def activation(problem: ActivationProblem) -> CallPlan:
    """``cudnnActivationForward``, or ``cudnnActivationBackward``; the identity is a copy, which they lack."""
    tensors = elementwise(*tensors_of(problem).values())
    head = (ActivationDescriptor.cached(problem.activation),)
    identity = problem.activation.mode == "identity"
    if problem.dx is None:
        x, y = tensors
        if identity:
            return CallPlan("cudnnTransformTensor", (), [(0, x)], y)
        return CallPlan("cudnnActivationForward", head, [(0, x)], y)
    x, y, dy, dx = tensors
    if identity:
        return CallPlan("cudnnTransformTensor", (), [(2, dy)], dx)
    return CallPlan("cudnnActivationBackward", head, [(1, y), (2, dy), (0, x)], dx)
