"""The graph API as a backend: the engines that cuDNN has for a problem, and plans that run them."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from ...context import Context
from ...graph.candidates import engine_by_name, engine_candidates, engine_plan, no_engine
from ...graph.engines import HEURISTICS, heuristic_modes
from ...graph.offline import Planner, target_of
from ...graph.plan import GraphPlan
from ...graph.rules import EngineRules, Rejection
from ...legal.order import prefer_winograd
from ...legal.rules import applying, engine_rules
from ...legal.subjects import subjects_of
from ...plans.base import Candidate
from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.specs import ALIGNMENT
from .graph_nodes import graph_of
from .relayout import operands_of

__all__ = ["by_name", "candidates", "graph_of", "plan", "preferred"]


def candidates(
    problem: ConvProblem | FusedConv,
    context: Context | Planner,
    heuristics: Collection[str] = HEURISTICS,
    most: int | None = None,
    *,
    first: bool = False,
) -> list[Candidate]:
    """Return the engines that cuDNN has for a problem, best first, then the rejected ones.

    If no engine exists, the result is one candidate with the reason. ``heuristics`` are the modes to query,
    in this order; each takes milliseconds. ``most`` limits the number of usable engines from them.
    With ``first``, engines after the first choice are not read.
    """
    unfit = _unfit(problem)
    if unfit:
        return [no_engine(unfit)]
    graph = graph_of(problem)
    allowed = heuristic_modes(graph, context)
    heuristics = list(dict.fromkeys([mode if mode in allowed else allowed[0] for mode in heuristics]))
    wanted = (2 if prefer_winograd(problem) else 1) if first else None
    rows = engine_candidates(graph, _rules(problem, context), context, heuristics, most, wanted)
    second = rows[1] if len(rows) > 1 and not rows[1].rejected else None
    if second and prefer_winograd(problem) and {"fft", "winograd"} & set(second.notes):
        rows[:2] = second, rows[0]
    return rows


def preferred(problem: ConvProblem, context: Context | Planner) -> list[Candidate]:
    """Return the engine that measurements rank above cuDNN's own order for a problem, if there is one."""
    if _unfit(problem):
        return []
    (subject,) = subjects_of(problem)
    for fact in applying("first", subject, target_of(context)):
        (name,) = fact.row["order"]
        row = engine_by_name(graph_of(problem), _rules(problem, context), name, context)
        return [] if row.rejected else [row]
    return []


def by_name(problem: ConvProblem | FusedConv, name: str, context: Context | Planner) -> Candidate:
    """Return the engine of a name as a candidate; it is rejected if the problem does not allow it."""
    unfit = _unfit(problem)
    if unfit:
        return no_engine(unfit, name)
    return engine_by_name(graph_of(problem), _rules(problem, context), name, context)


def plan(problem: ConvProblem | FusedConv, candidate: Candidate, context: Context | Planner) -> GraphPlan:
    """Return a plan for a candidate, bound to the context's thread; see `graph.candidates.engine_plan`."""
    return engine_plan(graph_of(problem), _rules(problem, context), candidate, context, problem)


def _rules(problem: ConvProblem | FusedConv, context: Context | Planner) -> EngineRules:
    rules, unfit = engine_rules(problem, target_of(context)), _unfit(problem)
    return rules._replace(rejections=(Rejection(unfit),)) if unfit else rules


@lru_cache(maxsize=256)
def _unfit(problem: ConvProblem | FusedConv) -> str:
    """Return why no engine can compute a problem; empty if engines may."""
    core = problem.core
    if core.scaled == "alpha" and core.x.dtype == "float16":
        return (
            "sums in float16 may overflow before alpha makes them small (scale the result in place instead)"
        )
    if not core.aligned:
        return f"an operand is not {ALIGNMENT}-byte aligned"
    strided = [spec for spec in operands_of(problem).values() if not spec.layouts]
    return f"an operand is not contiguous: {strided[0]}" if strided else ""
