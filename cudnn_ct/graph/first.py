"""The plan of the first engine that supports a graph, for operations that need no autotuning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from ..context import Context
from ..errors import CudnnError, NotSupportedError
from ..plans.base import Candidate
from .backend import attempt
from .engines import execution_plan, heuristic_configs
from .native import operation_graph
from .offline import Planner, compute_capability
from .operations import Graph
from .plan import GraphPlan
from .recording import PlanRequest
from .rules import EngineRules
from .stored import CompiledPlan, graph_plan


def first_plan(graph: Graph, context: Context, order: Sequence[int], rules: EngineRules) -> GraphPlan:
    """Return a plan of the first engine that supports the graph, from the store if it has one.

    ``order`` are places among the first answers of the heuristics that are tried before the others; ``rules``
    reject some of them.
    """
    request = PlanRequest(graph, tuple(order), rules)

    def select(stored: CompiledPlan | None = None) -> CompiledPlan:
        return first_engine(request, context, stored)

    return graph_plan(request, context, select, compiled=True, select=select)


def first_engine(
    request: PlanRequest, context: Context | Planner, stored: CompiledPlan | None = None
) -> CompiledPlan:
    """Build the plan of :func:`first_plan`; return a ``stored`` one if it has the first engine that works."""
    order, rules = request.order or (), request.rules
    native, reasons = operation_graph(request.graph, context), []
    capability, offered = compute_capability(context), heuristic_configs(native, context)
    first = list(islice(offered, len(order)))
    for offer in chain((first[i] for i in order if i < len(first)), offered):
        wrong = rules.why_wrong(offer.engine, offer.notes, capability)
        if wrong:
            reasons.append(f"{offer.engine}: {wrong}")
            continue
        if stored is not None and stored[1].algorithm == str(offer.engine):
            return stored
        made = attempt(execution_plan, native, offer.engine, context)
        if isinstance(made, CudnnError):  # errors of runtime compilation too
            reasons.append(f"{offer.engine}: {made}")
            continue
        same = "nondeterministic" not in offer.notes
        return made, Candidate("graph", str(offer.engine), "fma", offer.workspace, same, notes=offer.notes)
    raise NotSupportedError(f"no engine could be built into an execution plan: {'; '.join(reasons)}")
