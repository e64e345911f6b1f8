"""Engines for graphs: those of cuDNN that computed wrong results, and those to try first."""

from __future__ import annotations

import math
from collections.abc import Callable

from ... import _lib
from ...autotune.errata import Errata, Erratum
from ...autotune.known import KnownDefects
from ...graph.candidates import EngineRules
from ...graph.engines import Engine
from ...shapes.conv import ROLES, ConvProblem
from ...shapes.graph.problem import GraphProblem
from .._first_engines import engines_for_exact_gelu
from ..conv.errata import erratum, strided_and_dilated
from ..conv.known import DEFECTS, without_wrong_tf32
from ..norm.known import DEFECTS as OF_NORMS
from ..norm.known import NormNode

__all__ = ["rules_of", "warn_of_defects"]

DIRECTIONS = {
    "conv_forward": "forward",
    "conv_backward_data": "backward_data",
    "conv_backward_filter": "backward_filter",
}


def _pools_bfloat16(problem: GraphProblem) -> bool:
    return any(
        one.kind == "resample_forward" and problem.operands_of(one)["x"].spec.dtype == "bfloat16"
        for one in problem.nodes
    )


def _selects_after_convolution(problem: GraphProblem) -> bool:
    convolves = any(one.kind in DIRECTIONS for one in problem.nodes)
    return convolves and any(
        one.kind == "pointwise" and one.attribute("mode") == "binary_select" for one in problem.nodes
    )


def _filters(applies: Callable[[ConvProblem], bool]) -> Callable[[GraphProblem], bool]:
    """Return a predicate of graphs where operations follow the gradient of such a filter."""
    return lambda problem: (
        len(problem.nodes) > 1
        and any(one.direction == "backward_filter" and applies(one) for one in convolutions_of(problem))
    )


def _not_of_eights(one: ConvProblem) -> bool:
    return bool(one.x.shape[1] % 8 or one.y.shape[1] % 8)


def _two_of_eight(one: ConvProblem) -> bool:
    return one.x.dtype != "float32" and one.x.shape[1] % 8 == 2


def _weights_behind_dilated(problem: GraphProblem) -> bool:
    """Whether the gradients of a batch norm follow that of data with stride and dilation above 1."""
    return any(one.kind == "bn_backward_weights" for one in problem.nodes) and any(
        one.direction == "backward_data" and strided_and_dilated(one) for one in convolutions_of(problem)
    )


KNOWN_WRONG = Errata(
    found_on="cuDNN 9.19, NVIDIA H100 and H200",
    rows=(
        # Maxima were wrong on an H200, averages on an H100. Engine 2 computes both right.
        Erratum(3, _pools_bfloat16, "wrong maxima and averages of bfloat16"),
        # Found in graphs of float32, in the forward direction and for gradients of data.
        Erratum(8, _selects_after_convolution, "half of a convolution's sums before a selection"),
        # All thirty-one graphs with 4 modulo 8 channels were wrong; engine 4 computes them right in float32.
        Erratum(2, _filters(_not_of_eights), "wrong gradients of filters unless channels are multiples of 8"),
        # Found with two channels; 4 and 6 are right.
        Erratum(1, _filters(_two_of_eight), "wrong gradients of filters of half precision for two channels"),
        # ct.conv_backward_data_relu_batch_norm is the same graph.
        Erratum(None, _weights_behind_dilated, "wrong, or lost contexts, where stride and dilation exceed 1"),
    ),
)


_EXTREMES = ("max", "min", "amax")
_PRODUCTS = ("matmul", *DIRECTIONS)

_NORMS = {"norm_forward": "", "norm_backward": "_backward"}

OF_GROUPS = KnownDefects(
    lambda problem: "moe_grouped_matmul",  # noqa: ARG005
    {"FP8": lambda problem: any(value.spec.dtype.startswith("float8") for value in problem.values)},
)


def rules_of(problem: GraphProblem) -> EngineRules:
    """Return the rules for the engines of a graph."""
    convolutions, version = convolutions_of(problem), _lib.load().version
    never, exact = _why_never(problem, version), _is_exact(problem)

    def why_wrong(engine: Engine, notes: tuple[str, ...]) -> str:
        if exact and "runtime_compilation" in notes:  # without a note, a product on an H100 was in TF32
            return "it may multiply float32 in TF32"
        reasons = (
            erratum(engine.number, one) or DEFECTS.wrong_engine(engine.number, one, version, None)
            for one in convolutions
        )
        return never or KNOWN_WRONG.reason(engine.number, problem) or next(filter(None, reasons), "")

    excluded = frozenset({"tensor_core", "down_convert_inputs"}) if exact else frozenset()
    first, unordered = _first_engines(problem), _adds_in_any_order(problem)
    return EngineRules(excluded, "float32", why_wrong, first=first, unordered=unordered)


def warn_of_defects(problem: GraphProblem, version: int, capability: tuple[int, int]) -> None:
    """Warn once of each known defect of this cuDNN in convolutions and normalisations of a graph."""
    for one in convolutions_of(problem):
        DEFECTS.warn(one, version, capability)
    for norm in _norms_of(problem):
        OF_NORMS.warn(norm, version, capability)


def _why_never(problem: GraphProblem, version: int) -> str:
    """Return why no engine must compute a graph; empty if engines may."""
    grouped = [one for one in problem.nodes if one.kind == "moe_grouped_matmul"]
    if any(one.attribute("mode") == "gather" for one in grouped):
        return "this gather ended the CUDA context on an H200"
    if _is_exact(problem) and any(one.kind == "matmul" for one in problem.nodes):
        return 'graphs multiply matrices of float32 in TF32; ct.matmul(precision="float32") does not'
    found = OF_GROUPS.rows(problem, version) if grouped else []
    return "".join(f"{row['message']}; {row['advice']} ({row['source']})" for row in found)


def _is_exact(problem: GraphProblem) -> bool:
    """Whether products of float32 must not be computed in TF32."""
    products = [one for one in problem.nodes if one.kind in _PRODUCTS]
    operands = [value for one in products for value in problem.operands_of(one).values()]
    if all(value.spec.dtype != "float32" for value in operands):
        return False
    return not problem.tensor_cores or any(without_wrong_tf32(one) != one for one in convolutions_of(problem))


def _adds_in_any_order(problem: GraphProblem) -> bool:
    """Whether a reduction adds in an order that varies: all but those of the innermost axes in memory."""
    reductions = [one for one in problem.nodes if one.kind == "reduction"]
    for one in (one for one in reductions if one.attribute("operator") not in _EXTREMES):
        x, y = problem.operands_of(one)["x"].spec, problem.results_of(one)["y"].spec
        axes = [axis for axis, length in enumerate(x.shape) if length > 1]
        axes.sort(key=lambda axis: -x.strides[axis])
        kept = [y.shape[axis] > 1 for axis in axes]
        if kept[:1] == [False] or kept != sorted(kept, reverse=True):
            return True
    return False


def convolutions_of(problem: GraphProblem) -> list[ConvProblem]:
    """Return the convolutions of a graph as problems of `ops.conv`, whose errata hold for them too."""
    found = []
    for one in problem.nodes:
        if one.kind not in DIRECTIONS:
            continue
        direction = DIRECTIONS[one.kind]
        values = problem.operands_of(one) | problem.results_of(one)
        specs = {role: values[name].spec for role, name in zip(*ROLES[direction], strict=True)}
        x, w, y = (specs[role] for role in "xwy")
        before, after = one.attribute("pre_paddings"), one.attribute("post_paddings")
        found.append(
            ConvProblem(
                direction,
                x,
                w,
                y,
                padding=tuple(zip(before, after, strict=True)),
                stride=one.attribute("filter_strides"),
                dilation=one.attribute("dilations"),
                groups=x.shape[1] // w.shape[1],
                mode=one.attribute("conv_mode"),
                compute=problem.compute,
                tensor_cores=problem.tensor_cores if x.dtype == "float32" else x.dtype != "float64",
            )
        )
    return found


def _norms_of(problem: GraphProblem) -> list[NormNode]:
    return [
        NormNode(f"{one.attribute('mode')}{_NORMS[one.kind]}", problem.operands_of(one)["x"].spec.dtype)
        for one in problem.nodes
        if one.kind in _NORMS
    ]


def _first_engines(problem: GraphProblem) -> tuple[str, ...]:
    """Return the engine to try first for one product of matrices with exact gelu and pointwise operations."""
    products = [one for one in problem.nodes if one.kind == "matmul"]
    others = [one for one in problem.nodes if one.kind != "matmul"]
    pointwise = all(one.kind == "pointwise" for one in others)
    if len(products) != 1 or not pointwise or "gelu_fwd" not in [one.attribute("mode") for one in others]:
        return ()
    a = problem.operands_of(products[0])["a"].spec
    sums = math.prod(problem.results_of(products[0])["c"].spec.shape)
    return engines_for_exact_gelu(a.dtype, a.shape[-1], sums)
