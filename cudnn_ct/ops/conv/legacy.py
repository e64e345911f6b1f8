"""Legacy calls of convolutions: descriptors, plans (one call, one fused call, separate calls), candidates."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from ... import descriptors
from ..._bindings import enums, types
from ...context import Context
from ...errors import BadParamError, NotSupportedError, error_from_status
from ...graph.offline import target_of
from ...legal.rules import rejection_of
from ...plans.axes import images
from ...plans.base import Candidate, Plan
from ...plans.program import CallPlan, Program, Step, Steps, scalar_type
from ...shapes.conv import ROLES, ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.specs import ActivationSpec, ConvolutionSpec, FilterSpec, equivalent_strides
from .._call import ONE, ZERO
from .graph import Packing, geometry_of, layout_conversions, relaid_out


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
        x_, y_ = map(descriptors.TensorDescriptor.cached, (x, y))
        w_ = descriptors.FilterDescriptor.cached(FilterSpec(w.shape, w.dtype, layouts[0]))
        native = {"x": x_, "w": w_, "y": y_}
        self.operands = itemgetter(*self.direction.operands)(native)
        self.in_c_order = itemgetter(*map(ROLES[problem.direction].operands.index, self.direction.operands))
        self.compute = problem.compute
        # "fma" guarantees IEEE products, whatever math type the heuristics prefer.
        self.math = math or ("fma" if requires_ieee(problem) else "default")
        geometry = geometry_of(problem)
        geometry["padding"] = tuple(map(itemgetter(0), geometry["padding"]))
        spec = ConvolutionSpec(**geometry, groups=problem.groups, compute=problem.compute, math=self.math)
        self.convolution = descriptors.ConvolutionDescriptor.cached(spec)

    def workspace(self, algorithm: int, context: Any) -> int:
        """Return the workspace size of an algorithm; raise NotSupportedError if it is not supported."""
        size, (first, second, result) = ctypes.c_size_t(), self.operands
        query = getattr(context.library, f"cudnnGetConvolution{self.direction.name}WorkspaceSize")
        query(context.handle, first, second, self.convolution, result, algorithm, ctypes.byref(size))
        return size.value


def requires_ieee(problem: ConvProblem) -> bool:
    """Return whether products must keep the compute precision, which tensor cores round in float32."""
    return not problem.tensor_cores and problem.compute not in ("float64", "int32")


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
        handle, native, size = context.handle, self._native, self.workspace
        (a_, b_, c_), (a, b, c) = native.operands, native.in_c_order(pointers)
        alpha_ = self._one if alpha is ONE else self._scalar(alpha)
        beta_ = self._zero if beta is ZERO else self._scalar(beta)
        room = context.workspace(size) if size else 0
        self._call(
            handle, alpha_, a_, a, b_, b, native.convolution, self._algorithm, room, size, beta_, c_, c
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
        self._activation = descriptors.ActivationDescriptor.cached(spec)
        self._bias = problem.bias and descriptors.TensorDescriptor.cached(*images(problem.bias))

    # The factors are part of the problem, so the alpha and beta of a run are 1 and 0.
    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue the fused call; ``pointers`` are x, w, z if present, b and y."""
        x, w, *z, b, y = pointers
        residual = z[0] if z else y  # with the descriptor of the result, whose layout it has
        native, size, (alpha1, alpha2) = self._native, self.workspace, self._factors
        x_, w_, y_ = native.operands
        room = context.workspace(size) if size else 0
        fused = alpha2, y_, residual, self._bias, b, self._activation, y_, y
        self._call(
            context.handle, alpha1, x_, x, w_, w, native.convolution, self._algorithm, room, size, *fused
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
    if impossible := why_not_unfused(problem):
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
        activation = descriptors.ActivationDescriptor.cached(ActivationSpec(mode, coefficient))
        steps.append(Step(CallPlan("cudnnActivationForward", (activation,), [(0, y)], y), (-1,)))
    about = "{}; bias, residual and activation by separate calls"
    return Program(Steps((), steps), about=about, main=inner)


_IN_ONE_CALL = ("relu", "identity")  # activations of cudnnConvolutionBiasActivationForward


def candidates(
    problem: ConvProblem | FusedConv, context: Context, algorithm: str | None = None
) -> list[Candidate]:
    """Return the legacy algorithms for a problem in cuDNN's order, then the rejected ones with reasons.

    With ``algorithm``, a name in lower case, only that algorithm is returned.
    """
    if impossible := _lacks_calls(context) or _why_not(problem):
        return [_impossible(algorithm, impossible)]
    usable: list[Candidate] = []
    rejected: list[Candidate] = []
    for packing in layout_conversions(problem):
        relaid = relaid_out(problem, packing)
        try:
            rows = _ranked(relaid, packing, context)
        except (NotSupportedError, BadParamError) as error:
            rejected.append(_impossible(algorithm, str(error)))
            continue
        rows = [row for row in rows if algorithm in (None, row.algorithm)]
        rows = [row._replace(rejected=row.rejected or _why_not_row(relaid, row, context)) for row in rows]
        usable += [row for row in rows if not row.rejected]
        rejected += [row for row in rows if row.rejected]
        # Other copies are not tried if a deterministic algorithm needs no further ones.
        if any(row.deterministic for row in usable):
            break
    if not usable and not rejected:
        rejected.append(_impossible(algorithm, "cuDNN's heuristics do not list it for this problem"))
    return usable + rejected


def plan(problem: ConvProblem | FusedConv, candidate: Candidate, context: Context) -> Plan:
    """Return a plan without copies for a candidate; raise NotSupportedError if the problem rejects it."""
    if impossible := _lacks_calls(context) or _why_not(problem) or _why_not_row(problem, candidate, context):
        raise NotSupportedError(f"{candidate} is not for this {problem}: {impossible}")
    native = _native(problem, candidate.math)
    if isinstance(problem, FusedConv):
        return FusedPlan(problem, native, candidate, context)
    return ConvolutionPlan(native, candidate, context)


def _lacks_calls(context: Context) -> str:
    """Return why this cuDNN has no legacy convolutions; empty if it has."""
    lacks = context.library.lacks("cnn")
    return f"a convolution by a legacy call {lacks}" if lacks else ""


def _impossible(algorithm: str | None, reason: str) -> Candidate:
    return Candidate("legacy", algorithm or "all algorithms", "any", 0, True, rejected=reason)


def _native(problem: ConvProblem | FusedConv, math: str | None = None) -> ConvDescriptors:
    """Return the descriptors of a problem; the fused call has one descriptor for residual and result."""
    z, y = problem.z if isinstance(problem, FusedConv) else None, problem.result
    if z and not equivalent_strides(z.shape, z.strides, y.strides):
        raise NotSupportedError(f"z differs in layout from the result: got {z}, expected the layout of {y}")
    return ConvDescriptors(problem.core, math)


def _ranked(problem: ConvProblem | FusedConv, packing: Packing, context: Context) -> list[Candidate]:
    """Query cuDNN's heuristics, which return every algorithm, usable or not."""
    native = _native(problem)
    direction, (first, second, result) = native.direction, native.operands
    count, rows = ctypes.c_int(), (direction.perf * len(direction.algorithms))()
    function = f"cudnnGetConvolution{direction.name}Algorithm_v7"
    rank = getattr(context.library, function)
    rank(context.handle, first, second, native.convolution, result, len(rows), ctypes.byref(count), rows)
    return [_candidate(row, native, packing, function) for row in rows[: count.value]]


def _candidate(row: Any, native: ConvDescriptors, packing: Packing, function: str) -> Candidate:
    rejected = "" if row.status == 0 else str(error_from_status(row.status, function))
    return Candidate(
        backend="legacy",
        algorithm=native.direction.algorithms(row.algo).name.lower(),
        math=native.math if native.math == "fma" else descriptors.MATH_NAMES.get(row.mathType, "default"),
        workspace=0 if rejected else row.memory,
        deterministic=row.determinism == enums.Determinism.DETERMINISTIC,
        relayout=packing,
        rejected=rejected,
    )


def _why_not_row(problem: ConvProblem | FusedConv, candidate: Candidate, context: Context) -> str:
    """Return why a stored candidate cannot be used for a problem; empty if it can."""
    core = problem.core
    algorithms = DIRECTIONS[core.direction].algorithms
    if candidate.algorithm not in {one.name.lower() for one in algorithms if one.name != "COUNT"}:
        return f"{core.direction} has no legacy algorithm {candidate.algorithm!r}"
    if candidate.math not in descriptors.MATH_NAMES.values():
        return f"the math type {candidate.math!r} does not exist"
    if candidate.math != "fma" and requires_ieee(core):
        return f"{candidate.math} math is coarser than {core.compute}"
    return rejection_of(problem, candidate.algorithm, target_of(context))


@lru_cache(256)
def _why_not(problem: ConvProblem | FusedConv) -> str:
    """Return why no legacy call can compute a problem; empty if a call may."""
    if isinstance(problem, FusedConv) and problem.activation not in _IN_ONE_CALL:
        return f"the legacy fused call supports {' and '.join(_IN_ONE_CALL)}, not {problem.activation}"
    if isinstance(problem, FusedConv) and problem.bias is None:
        return "the legacy fused call needs a bias"
    core = problem.core
    if core.asymmetric_padding:
        return "the legacy calls pad both sides of an axis alike"
    if problem.result.dtype == "int32":
        return "the legacy calls write sums of int8 as float32, not int32"
    for name in ("x", "w", "y"):
        low, high = getattr(core, name).extent
        if high - low >= 2**31:
            return f"{name} spans {high - low:,} elements; a legacy descriptor holds fewer than 2**31"
    return ""
