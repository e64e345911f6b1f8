"""Plans of convolutions by legacy calls: one call, one fused call, or separate calls for the epilogue."""

from __future__ import annotations

from collections.abc import Sequence

from ..._bindings import enums
from ...context import Context
from ...descriptors import ActivationDescriptor, TensorDescriptor
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...plans.axes import images
from ...plans.base import Candidate, Plan
from ...plans.scalars import scalar_type
from ...shapes.fused import FusedConv
from ...shapes.specs import ActivationSpec, TensorSpec
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
        self._bias = problem.bias and _descriptor(problem.bias)

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


class UnfusedPlan:
    """A plan of the convolution, followed by calls that add and activate in place."""

    __slots__ = ("_activation", "_alpha1", "_inner", "_scalar", "_terms", "_y", "workspace")

    def __init__(self, problem: FusedConv, inner: Plan) -> None:
        impossible = self.why_not(problem)
        if impossible:
            raise NotSupportedError(f"{impossible}, for this {problem}")
        self._inner = inner
        self._alpha1 = problem.alpha1
        self._y = _descriptor(problem.conv.y)
        self._scalar = scalar_type(DTYPES[problem.conv.y.dtype].accumulate)
        terms = ((problem.z, problem.alpha2), (problem.bias, 1.0))
        self._terms = [(_descriptor(spec), self._scalar(factor)) for spec, factor in terms if spec]
        mode = problem.activation
        factor = (problem.coefficient or 1.0) if mode == "swish" else problem.coefficient
        spec = ActivationSpec(mode, factor)  # type: ignore[arg-type]  # graphs alone compute gelu
        self._activation = None if mode == "identity" else ActivationDescriptor.cached(spec)
        self.workspace = inner.workspace

    @staticmethod
    def why_not(problem: FusedConv) -> str:
        """Return why separate calls cannot compute a problem; empty if they can."""
        supported = problem.activation.upper() in enums.ActivationMode.__members__
        return "" if supported else f"the legacy calls do not support {problem.activation}"

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue the convolution, each addition and the activation; ``pointers`` as for the fused call."""
        x, w, *added, y = pointers
        self._inner.run(context, (x, w, y), self._alpha1, 0.0)
        library, handle, one, zero = context.library, context.handle, self._scalar(1.0), self._scalar(0.0)
        for (descriptor, factor), pointer in zip(self._terms, added, strict=True):
            library.cudnnAddTensor(handle, factor, descriptor, pointer, one, self._y, y)
        if self._activation is not None:
            library.cudnnActivationForward(handle, self._activation, one, self._y, y, zero, self._y, y)

    def describe(self) -> str:
        return f"{self._inner.describe()}; bias, residual and activation by separate calls"


def _descriptor(spec: TensorSpec) -> TensorDescriptor:
    return TensorDescriptor.cached(*images(spec))
