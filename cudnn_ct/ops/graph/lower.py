"""The native form of a graph of a user, with the changes that facts about cuDNN ask for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ...errors import NotSupportedError
from ...facts import Target
from ...graph.offline import target_of
from ...graph.operations import Graph
from ...legal.rules import applying
from ...shapes.graph.problem import GraphProblem
from ..attention.core import core_of
from ..attention.graph import graph_of
from .attention_problem import attention_of
from .coalesce import coalesced
from .native import OF_IMAGES, native_graph
from .rewrites import with_separate_inputs, without_clips, without_empty_reductions, without_logic


def lowered(problem: GraphProblem, target: Target | None = None) -> Graph:
    """Return the graph of a problem, with the operands in the order of a run's pointers.

    Facts about the ``target``, by default this cuDNN, decide which nodes become others. That of attention
    has the operands of `attention.graph.named_graph`.
    """
    target = target_of(None) if target is None else target
    attention = attention_of(problem)
    if attention is not None:
        return graph_of(core_of(attention.problem, target.version).problem)
    _check_statistics(problem)
    _check_padding(problem)
    facts = {one.name for one in applying("rewrite", ("graph", problem), target)}
    return native_graph(*_rewritten(problem, facts))


def _rewritten(problem: GraphProblem, facts: Collection[str]) -> tuple[GraphProblem, dict[int, int]]:
    """Return a graph that none of the facts is about, and the place of the input behind each added value."""
    problem = _with_rules(_BEFORE_MERGING, problem, facts)
    problem = coalesced(problem, index=_INDEX in facts)
    problem = _with_rules(_AFTER_MERGING, problem, facts)
    return with_separate_inputs(problem) if _INPUTS in facts else (problem, {})


def _with_rules(rules: Mapping[str, _Rule], problem: GraphProblem, facts: Collection[str]) -> GraphProblem:
    for name, rule in rules.items():
        problem = rule(problem) if name in facts else problem
    return problem


def _with_conditions(problem: GraphProblem) -> GraphProblem:
    """Let conditions be 0.0 or 1.0."""
    values = [
        value._replace(spec=value.spec._replace(dtype=problem.compute))
        if value.spec.dtype == "bool" and value.role == "virtual"
        else value
        for value in problem.values
    ]
    return problem._replace(values=tuple(values))


_Rule = Callable[[GraphProblem], GraphProblem]

# Rules by the names of their facts, in the order in which they are applied.
_BEFORE_MERGING: dict[str, _Rule] = {
    "graph-single-reductions": without_empty_reductions,
    "graph-clips": without_clips,
}
_AFTER_MERGING: dict[str, _Rule] = {
    "graph-logic": without_logic,
    "graph-computed-conditions": _with_conditions,
}
_INDEX, _INPUTS = "graph-first-index", "graph-shared-inputs"
REWRITES = (*_BEFORE_MERGING, *_AFTER_MERGING, _INDEX, _INPUTS)
"""Names of the facts that :func:`lowered` computes around."""


def _check_statistics(problem: GraphProblem) -> None:
    """Raise if a norm in training lacks a result: cuDNN 9.28 dies of an instance norm's y alone."""
    for one in problem.nodes:
        if one.kind != "norm_forward" or one.attribute("phase") != "training":
            continue
        mode, results = one.attribute("mode"), dict(one.results)
        needed = ["inv_variance"]
        needed += ["mean"] if mode == "batch_norm" else []
        needed += ["next_running_mean", "next_running_var"] if "running_mean" in dict(one.operands) else []
        missing = [name for name in needed if name not in results]
        if missing:
            alone = f"; Graph.{mode} computes y alone" if mode in ("layer_norm", "rms_norm") else ""
            raise NotSupportedError(
                f"cuDNN computes the results of norm together: {', '.join(missing)} of {mode} must be among "
                f"the outputs, too{alone}"
            )


def _check_padding(problem: GraphProblem) -> None:
    for one in problem.nodes:
        if one.kind in OF_IMAGES and one.attribute("pre_paddings") != one.attribute("post_paddings"):
            raise NotSupportedError(
                "padding differs between the two sides of an axis, for which engines write wrong numbers; "
                "pad the operand, or use ct.conv, which does"
            )
