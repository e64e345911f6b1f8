"""Engines for graphs: those of cuDNN that computed wrong results, and those to try first."""

from __future__ import annotations

import math

from ...autotune.errata import Errata, Erratum
from ...graph.candidates import EngineRules
from ...graph.engines import Engine
from ...shapes.conv import ROLES, ConvProblem
from ...shapes.graph.problem import GraphProblem
from .._first_engines import engines_for_exact_gelu
from ..conv.errata import erratum

__all__ = ["rules_of"]

DIRECTIONS = {
    "conv_forward": "forward",
    "conv_backward_data": "backward_data",
    "conv_backward_filter": "backward_filter",
}


def _maximum_of_bfloat16(problem: GraphProblem) -> bool:
    return any(
        one.kind == "resample_forward"
        and one.attribute("mode") == "maxpool"
        and problem.operands_of(one)["x"].spec.dtype == "bfloat16"
        for one in problem.nodes
    )


def _selects_after_convolution(problem: GraphProblem) -> bool:
    convolves = any(one.kind == "conv_forward" for one in problem.nodes)
    return convolves and any(
        one.kind == "pointwise" and one.attribute("mode") == "binary_select" for one in problem.nodes
    )


KNOWN_WRONG = Errata(
    found_on="cuDNN 9.19, NVIDIA H200",
    rows=(
        Erratum(3, _maximum_of_bfloat16, "wrong maxima of bfloat16"),
        # Found in one graph of float32.
        Erratum(8, _selects_after_convolution, "half of a convolution's sums before a selection"),
    ),
)


def rules_of(problem: GraphProblem) -> EngineRules:
    """Return the rules for the engines of a graph."""
    convolutions = convolutions_of(problem)
    ended = "this gather ended the CUDA context on an H200" if _gathers(problem) else ""

    def why_wrong(engine: Engine, notes: tuple[str, ...]) -> str:  # noqa: ARG001
        reasons = [erratum(engine.number, one) for one in convolutions]
        return ended or KNOWN_WRONG.reason(engine.number, problem) or "".join(filter(None, reasons))

    return EngineRules(why_wrong=why_wrong, first=_first_engines(problem))


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
                tensor_cores=x.dtype != "float64",
            )
        )
    return found


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


def _gathers(problem: GraphProblem) -> bool:
    return any(
        one.kind == "moe_grouped_matmul" and one.attribute("mode") == "gather" for one in problem.nodes
    )
