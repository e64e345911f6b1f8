"""Activations and their gradients by the legacy calls."""

from __future__ import annotations

from ..descriptors import ActivationDescriptor
from ..problem import ActivationProblem, Plan, TensorSpec, tensors_of
from .calls import CallPlan
from .slices import sliced

__all__ = ["activation"]


def activation(problem: ActivationProblem) -> Plan:
    """``cudnnActivationForward``, or ``cudnnActivationBackward``; the identity is a copy, which they lack."""
    head = (ActivationDescriptor.cached(problem.activation),)
    identity = problem.activation.mode == "identity"

    def forward(x: TensorSpec, y: TensorSpec) -> Plan:
        if identity:
            return CallPlan("cudnnTransformTensor", (), [(0, x)], y)
        return CallPlan("cudnnActivationForward", head, [(0, x)], y)

    def backward(x: TensorSpec, y: TensorSpec, dy: TensorSpec, dx: TensorSpec) -> Plan:
        if identity:
            return CallPlan("cudnnTransformTensor", (), [(2, dy)], dx)
        return CallPlan("cudnnActivationBackward", head, [(1, y), (2, dy), (0, x)], dx)

    return sliced(backward if problem.dx else forward, *tensors_of(problem).values())
