"""Engines of cuDNN that computed wrong results of graphs, found by random graphs."""

from __future__ import annotations

from ...autotune.errata import Errata, Erratum
from ...graph.candidates import EngineRules
from ...shapes.graph.problem import GraphProblem

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
        why_wrong=lambda engine, notes: ended or KNOWN_WRONG.reason(engine.number, problem)  # noqa: ARG005
    )


def _gathers(problem: GraphProblem) -> bool:
    return any(
        one.kind == "moe_grouped_matmul" and one.attribute("mode") == "gather" for one in problem.nodes
    )
