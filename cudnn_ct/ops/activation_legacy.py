"""Activations and their gradients by the legacy calls."""

from __future__ import annotations

from collections.abc import Sequence

from ..context import Context
from ..descriptors import ActivationDescriptor
from ..plans.base import Plan, tensors_of
from ..plans.call import CallPlan
from ..plans.elementwise import SetOrScale
from ..plans.tiling import tile
from ..shapes.activation import ActivationProblem
from ..shapes.specs import TensorSpec

__all__ = ["activation"]


def activation(problem: ActivationProblem) -> Plan:
    """``cudnnActivationForward``, or ``cudnnActivationBackward``; the identity is a copy, which they lack."""
    head = (ActivationDescriptor.cached(problem.activation),)
    identity = problem.activation.mode == "identity"

    def forward(x: TensorSpec, y: TensorSpec) -> Plan:
        if identity:
            return IdentityPlan(x, y, 0)
        return CallPlan("cudnnActivationForward", head, [(0, x)], y)

    def backward(x: TensorSpec, y: TensorSpec, dy: TensorSpec, dx: TensorSpec) -> Plan:
        if identity:
            return IdentityPlan(dy, dx, 2)
        return CallPlan("cudnnActivationBackward", head, [(1, y), (2, dy), (0, x)], dx)

    return tile(backward if problem.dx else forward, *tensors_of(problem).values())


class IdentityPlan:
    """``cudnnTransformTensor``; in place, which that does not do, ``cudnnScaleTensor``."""

    __slots__ = ("_copy", "_place", "_scale", "workspace")

    def __init__(self, x: TensorSpec, y: TensorSpec, place: int) -> None:
        self._copy = CallPlan("cudnnTransformTensor", (), [(place, x)], y)
        self._scale = SetOrScale(y)
        self._place = place
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue y = alpha x + beta y; x is at its place among the ``pointers``, y the last."""
        if pointers[self._place] == pointers[-1]:
            self._scale.run(context, pointers, alpha + beta, 0.0)
        else:
            self._copy.run(context, pointers, alpha, beta)

    def describe(self) -> str:
        """Tell what was chosen."""
        return self._copy.describe()
