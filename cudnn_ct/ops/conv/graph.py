"""The graph API as a backend: the engines that cuDNN has for a problem, and plans that run them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from ...context import Context
from ...graph.candidates import (
    EngineRules,
    engine_by_name,
    engine_candidates,
    engine_plan,
    no_engine,
)
from ...graph.engines import HEURISTICS, Engine
from ...graph.offline import Planner, compute_capability
from ...graph.operations import ALIGNMENT, Graph
from ...graph.plan import GraphPlan
from ...plans.base import Candidate
from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.specs import TensorSpec
from .accuracy import inaccuracy
from .engine_order import measured_here, prefer_winograd, preference, ranked_too_high
from .errata import erratum
from .fused_graph import fused_graph
from .graph_nodes import conv_graph

__all__ = ["by_name", "candidates", "graph_of", "plan", "preferred"]

GRAPHS: dict[type, Callable[[Any], Graph]] = {ConvProblem: conv_graph, FusedConv: fused_graph}


def candidates(
    problem: Any,
    context: Context | Planner,
    heuristics: Collection[str] = HEURISTICS,
    most: int | None = None,
) -> list[Candidate]:
    """Return the engines that cuDNN has for a problem, best first, then the rejected ones.

    Engines whose products are less precise than the problem requires are rejected. Engines that cuDNN ranks
    too high follow the others. If no engine exists, the result is one candidate with the reason.

    ``heuristics`` are the modes to query, in this order; each takes milliseconds. ``most`` limits the number
    of usable engines from them.
    """
    unfit = _unfit(problem)
    if unfit:
        return [no_engine(unfit)]
    modes = _safe_heuristics(heuristics, problem)
    rows = engine_candidates(graph_of(problem), _rules(problem), context, modes, most)
    second = rows[1] if len(rows) > 1 and not rows[1].rejected else None
    if second and prefer_winograd(problem) and {"fft", "winograd"} & set(second.notes):
        rows[:2] = second, rows[0]
    return rows


def preferred(problem: ConvProblem, context: Context | Planner) -> list[Candidate]:
    """Return the engine that measurements rank above cuDNN's own order for a problem, if there is one."""
    name = preference(problem)
    if not name or _unfit(problem) or not measured_here(compute_capability(context)):
        return []
    row = engine_by_name(graph_of(problem), _rules(problem), name, context)
    return [] if row.rejected else [row]


def by_name(problem: Any, name: str, context: Context | Planner) -> Candidate:
    """Return the engine of a name as a candidate; it is rejected if the problem does not allow it."""
    unfit = _unfit(problem)
    if unfit:
        return no_engine(unfit, name)
    return engine_by_name(graph_of(problem), _rules(problem), name, context)


def plan(problem: Any, candidate: Candidate, context: Context | Planner) -> GraphPlan:
    """Return a plan for a candidate, bound to the context's thread; see `graph.candidates.engine_plan`."""
    return engine_plan(graph_of(problem), _rules(problem), candidate, context, problem)


def graph_of(problem: Any) -> Graph:
    """Return the graph that computes a problem."""
    return GRAPHS[type(problem)](problem)


def _rules(problem: Any) -> EngineRules:
    unfit = _unfit(problem)

    def why_wrong(engine: Engine, notes: tuple[str, ...]) -> str:
        return unfit or erratum(engine.number, problem) or inaccuracy(problem, "graph", str(engine), notes)

    return EngineRules(_excluded_notes(problem), problem.compute, why_wrong, ranked_too_high(problem))


def _unfit(problem: Any) -> str:
    """Return why no engine can compute a problem; empty if engines may."""
    if problem.core.scaled == "alpha" and problem.core.x.dtype == "float16":
        return (
            "sums in float16 may overflow before alpha makes them small (scale the result in place instead)"
        )
    if not problem.core.aligned:
        return f"an operand is not {ALIGNMENT}-byte aligned"
    strided = [spec for spec in _specs(problem) if not spec.layouts]
    return f"an operand is not contiguous: {strided[0]}" if strided else ""


def _specs(problem: Any) -> list[TensorSpec]:
    extras = [problem.bias, problem.z] if isinstance(problem, FusedConv) else []
    return [spec for spec in (problem.core.x, problem.core.w, problem.core.y, *extras) if spec]


def _safe_heuristics(heuristics: Iterable[str], problem: Any) -> list[str]:
    """Replace mode B by A for asymmetric padding, because mode B of cuDNN 9.19 kills the process there."""
    if not problem.core.asymmetric_padding:
        return list(heuristics)
    return list(dict.fromkeys("a" if mode == "b" else mode for mode in heuristics))


def _excluded_notes(problem: Any) -> frozenset[str]:
    """Return the numerical notes that a problem excludes because it requires its full compute precision."""
    if problem.tensor_cores:
        return frozenset()
    # In float64 and in integers, tensor cores are as precise as other units.
    if problem.compute in ("float64", "int32"):
        return frozenset({"down_convert_inputs"})
    return frozenset({"tensor_core", "down_convert_inputs"})
