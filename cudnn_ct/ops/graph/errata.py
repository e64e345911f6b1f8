"""Engines for graphs: those of cuDNN that computed wrong results, and those to try first."""

from __future__ import annotations

import math

from ...autotune.errata import Errata, Erratum
from ...graph.candidates import EngineRules
from ...shapes.graph.problem import GraphProblem
from .._first_engines import engines_for_exact_gelu

__all__ = ["rules_of"]


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
    ended = "this gather ended the CUDA context on an H200" if _gathers(problem) else ""
    return EngineRules(
        why_wrong=lambda engine, notes: ended or KNOWN_WRONG.reason(engine.number, problem),  # noqa: ARG005
        first=_first_engines(problem),
    )


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
