"""Convolution with bias, residual and activation by legacy calls: one fused call, or separate calls."""

from __future__ import annotations

from collections.abc import Sequence

from ..._bindings import enums
from ...context import Context
from ...descriptors import ActivationDescriptor, TensorDescriptor
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...plans.axes import canonical_strides, pad_to_two_axes
from ...plans.base import Candidate, Plan
from ...plans.scalars import scalar_type
from ...shapes.fused import FusedConv
from ...shapes.specs import ActivationSpec, TensorSpec, equivalent_strides
from .legacy_descriptors import ConvDescriptors

__all__ = ["FusedPlan", "UnfusedPlan", "check_residual", "why_not_fused"]

# Activations of cudnnConvolutionBiasActivationForward and of cudnnActivationForward.
_IN_ONE_CALL = ("relu", "identity")
_ALONE = {mode.name.lower() for mode in enums.ActivationMode}


def why_not_fused(problem: FusedConv) -> str:
    """Return why the fused call cannot compute a problem; empty if it may."""
    if problem.activation not in _IN_ONE_CALL:
        return f"the legacy fused call supports {' and '.join(_IN_ONE_CALL)}, not {problem.activation}"
    if problem.bias is None:
        return "the legacy fused call needs a bias"
    return ""


def check_residual(problem: FusedConv) -> None:
    """Raise NotSupportedError if the residual and the result differ in layout."""
    z, y = problem.z, problem.result
    if z and not equivalent_strides(z.shape, z.strides, y.strides):
        raise NotSupportedError(f"z differs in layout from the result: got {z}, expected the layout of {y}")


class FusedPlan:
    """``cudnnConvolutionBiasActivationForward`` with one algorithm: a run is one C call.

    cuDNN reports an unsupported combination only when the call runs.
    """

    __slots__ = ("_activation", "_algorithm", "_bias", "_factors", "_native", "candidate", "workspace")

    def __init__(
        self, problem: FusedConv, native: ConvDescriptors, candidate: Candidate, context: Context
    ) -> None:
        check_residual(problem)
        self.candidate = candidate
        self._native = native
        self._algorithm = int(native.direction.algorithms[candidate.algorithm.upper()])
        scalar = scalar_type(native.compute)
        self._factors = scalar(problem.alpha1), scalar(problem.alpha2 if problem.z else 0.0)
        self._activation = ActivationDescriptor.cached(ActivationSpec(problem.activation))
        self._bias = None if problem.bias is None else _descriptor(problem.bias)
        self.workspace = native.workspace(self._algorithm, context)

    # The factors are part of the problem, so the alpha and beta of a run are 1 and 0.
    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue the fused call; ``pointers`` are x, w, z if present, b and y."""
        x, w, *z, b, y = pointers
        native, workspace = self._native, context.workspace(self.workspace)
        first, second, result = native.operands
        a1, a2 = self._factors
        context.library.cudnnConvolutionBiasActivationForward(
            context.handle,
            a1,
            first,
            x,
            second,
            w,
            native.convolution,
            self._algorithm,
            workspace,
            self.workspace,
            a2,
            result,  # a residual has the layout of the result
            z[0] if z else y,
            self._bias,
            b,
            self._activation,
            result,
            y,
        )

    def describe(self) -> str:
        """Describe the implementation."""
        return f"chosen: {self.candidate}, in one fused call"


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
        coefficient = 1.0 if mode == "swish" else problem.coefficient
        self._activation = (
            None if mode == "identity" else ActivationDescriptor.cached(ActivationSpec(mode, coefficient))
        )
        self.workspace = inner.workspace

    @staticmethod
    def why_not(problem: FusedConv) -> str:
        """Return why separate calls cannot compute a problem; empty if they can."""
        if problem.activation not in _ALONE:
            return f"the legacy calls do not support {problem.activation}"
        return ""

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
        """Describe the implementation."""
        return f"{self._inner.describe()}; bias, residual and activation by separate calls"


def _descriptor(spec: TensorSpec) -> TensorDescriptor:
    return TensorDescriptor.cached(pad_to_two_axes(canonical_strides(spec, list(spec.layouts))))
