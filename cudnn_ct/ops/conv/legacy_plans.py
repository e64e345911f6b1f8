"""Descriptors of convolutions by legacy calls, and plans: one call, one fused call, or separate calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from ..._bindings import enums, types
from ...context import Context
from ...descriptors import ActivationDescriptor, ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from ...errors import NotSupportedError
from ...plans.axes import images
from ...plans.base import Candidate, Plan
from ...plans.call import CallPlan, scalar_type
from ...plans.program import Program, Step, Steps
from ...shapes.conv import ROLES, ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.specs import ActivationSpec, ConvolutionSpec, FilterSpec


class Direction(NamedTuple):
    """C names of one direction of a convolution; ``operands`` are roles in the order of its C functions."""

    name: str
    operands: tuple[str, str, str]
    algorithms: Any
    perf: Any


DIRECTIONS = {
    "forward": Direction(
        "Forward", ("x", "w", "y"), enums.ConvolutionFwdAlgo, types.cudnnConvolutionFwdAlgoPerf_t
    ),
    "backward_data": Direction(
        "BackwardData", ("w", "y", "x"), enums.ConvolutionBwdDataAlgo, types.cudnnConvolutionBwdDataAlgoPerf_t
    ),
    "backward_filter": Direction(
        "BackwardFilter",
        ("x", "y", "w"),
        enums.ConvolutionBwdFilterAlgo,
        types.cudnnConvolutionBwdFilterAlgoPerf_t,
    ),
}


class ConvDescriptors:
    """Native descriptors of a problem.

    ``operands`` are descriptors in the order in which the direction's C functions take them, the result last.
    ``in_c_order`` brings the pointers of a run into that order.
    """

    def __init__(self, problem: ConvProblem, math: str | None = None) -> None:
        self.direction = DIRECTIONS[problem.direction]
        x, w, y = images(problem.x, problem.w, problem.y)
        layouts = problem.common_layouts or problem.w.layouts
        if not layouts:  # the descriptor has no strides, so any layout would describe other memory
            raise NotSupportedError(
                f"w is not packed: got strides {problem.w.strides}, expected NCHW or NHWC"
            )
        native = {
            "x": TensorDescriptor.cached(x),
            "w": FilterDescriptor.cached(FilterSpec(w.shape, w.dtype, layouts[0])),
            "y": TensorDescriptor.cached(y),
        }
        self.operands = itemgetter(*self.direction.operands)(native)
        self.in_c_order = itemgetter(*map(ROLES[problem.direction].operands.index, self.direction.operands))
        self.compute = problem.compute
        # "fma" guarantees IEEE products, whatever math type the heuristics prefer.
        self.math = math or ("fma" if requires_ieee(problem) else "default")
        missing = max(2 - len(problem.stride), 0)  # cuDNN needs two axes
        self.convolution = ConvolutionDescriptor.cached(
            ConvolutionSpec(
                padding=(0,) * missing + tuple(map(itemgetter(0), problem.padding)),
                stride=(1,) * missing + problem.stride,
                dilation=(1,) * missing + problem.dilation,
                groups=problem.groups,
                mode=problem.mode,
                compute=problem.compute,
                math=self.math,
            )
        )

    def workspace(self, algorithm: int, context: Any) -> int:
        """Return the workspace size of an algorithm; raise NotSupportedError if it is not supported."""
        size, (first, second, result) = ctypes.c_size_t(), self.operands
        query = getattr(context.library, f"cudnnGetConvolution{self.direction.name}WorkspaceSize")
        query(context.handle, first, second, self.convolution, result, algorithm, ctypes.byref(size))
        return size.value


def requires_ieee(problem: ConvProblem) -> bool:
    """Return whether products must keep the compute precision, which tensor cores round in float32."""
    return not problem.tensor_cores and problem.compute not in ("float64", "int32")


# --- plans -------------------------------------------------------------------------------------------------

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
