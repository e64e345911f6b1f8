"""Plans of convolutions by legacy calls: one call, one fused call, or separate calls for the epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._bindings import enums
from ...context import Context
from ...descriptors import ActivationDescriptor, TensorDescriptor
from ...errors import NotSupportedError
from ...plans.axes import images
from ...plans.base import Candidate, Plan
from ...plans.call import CallPlan
from ...plans.program import Program, Step, Steps
from ...plans.scalars import scalar_type
from ...shapes.fused import FusedConv
from ...shapes.specs import ActivationSpec
from .legacy_descriptors import ConvDescriptors

ONE, ZERO = 1, 0  # default alpha and beta; compared by identity because that is the cheapest test


class ConvolutionPlan:
    """One legacy algorithm with its descriptors: a run is one C call."""

    __slots__ = ("_algorithm", "_call", "_native", "_one", "_scalar", "_zero", "candidate", "workspace")

    def __init__(
        self, native: ConvDescriptors, candidate: Candidate, context: Context, function: str = ""
    ) -> None:
        self.candidate = candidate
        self._native = native
        self._algorithm = int(native.direction.algorithms[candidate.algorithm.upper()])
        self._call = getattr(context.library, function or f"cudnnConvolution{native.direction.name}")
        self._scalar = scalar_type(native.compute)
        self._one, self._zero = self._scalar(1), self._scalar(0)
        self.workspace: int = native.workspace(self._algorithm, context)

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Enqueue ``result = alpha * (...) + beta * result``."""
        native = self._native
        (first, second, result), (a, b, c) = native.operands, native.in_c_order(pointers)
        self._call(
            context.handle,
            self._one if alpha is ONE else self._scalar(alpha),
            first,
            a,
            second,
            b,
            native.convolution,
            self._algorithm,
            context.workspace(self.workspace) if self.workspace else 0,
            self.workspace,
            self._zero if beta is ZERO else self._scalar(beta),
            result,
            c,
        )

    def describe(self) -> str:
        return f"chosen: {self.candidate}"


class FusedPlan(ConvolutionPlan):
    """``cudnnConvolutionBiasActivationForward`` with one algorithm; only a run reports an unsupported one."""

    __slots__ = ("_activation", "_bias", "_factors")

    def __init__(
        self, problem: FusedConv, native: ConvDescriptors, candidate: Candidate, context: Context
    ) -> None:
        super().__init__(native, candidate, context, "cudnnConvolutionBiasActivationForward")
        self._factors = self._scalar(problem.alpha1), self._scalar(problem.alpha2 if problem.z else 0.0)
        spec = ActivationSpec(problem.activation)  # type: ignore[arg-type]  # graphs alone compute gelu
        self._activation = ActivationDescriptor.cached(spec)
        self._bias = problem.bias and TensorDescriptor.cached(*images(problem.bias))

    # The factors are part of the problem, so the alpha and beta of a run are 1 and 0.
    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue the fused call; ``pointers`` are x, w, z if present, b and y."""
        x, w, *z, b, y = pointers
        residual = z[0] if z else y  # with the descriptor of the result, whose layout it has
        first, second, result = self._native.operands
        alpha1, alpha2 = self._factors
        self._call(
            context.handle,
            alpha1,
            first,
            x,
            second,
            w,
            self._native.convolution,
            self._algorithm,
            context.workspace(self.workspace) if self.workspace else 0,
            self.workspace,
            alpha2,
            result,
            residual,
            self._bias,
            b,
            self._activation,
            result,
            y,
        )

    def describe(self) -> str:
        return f"{super().describe()}, in one fused call"


def why_not_unfused(problem: FusedConv) -> str:
    """Return why separate calls cannot compute a problem; empty if they can."""
    supported = problem.activation.upper() in enums.ActivationMode.__members__
    return "" if supported else f"the legacy calls do not support {problem.activation}"


def unfused_plan(problem: FusedConv, inner: Plan) -> Program:
    """Return a plan of the convolution, followed by calls that add and activate in place.

    The pointers of a run are those of the fused call.
    """
    impossible = why_not_unfused(problem)
    if impossible:
        raise NotSupportedError(f"{impossible}, for this {problem}")
    (y,) = images(problem.conv.y)
    steps = [Step(inner, (0, 1, -1), problem.alpha1)]
    for spec, factor in ((problem.z, problem.alpha2), (problem.bias, 1.0)):
        if spec:
            added = CallPlan("cudnnAddTensor", (), [(0, images(spec)[0])], y, factor)
            steps.append(Step(added, (len(steps) + 1, -1), 1.0, 1.0))
    if problem.activation != "identity":
        mode: Any = problem.activation
        coefficient = problem.coefficient or (1.0 if mode == "swish" else 0.0)
        activation = ActivationDescriptor.cached(ActivationSpec(mode, coefficient))
        steps.append(Step(CallPlan("cudnnActivationForward", (activation,), [(0, y)], y), (-1,)))
    about = "{}; bias, residual and activation by separate calls"
    return Program(Steps((), steps), about=about, main=inner)
