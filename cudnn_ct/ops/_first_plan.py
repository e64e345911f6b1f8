"""The plan of the first engine that facts allow, for operations that need no autotuning."""

from __future__ import annotations

from collections.abc import Sequence

from ..context import Context
from ..graph import first
from ..graph.offline import target_of
from ..graph.operations import Graph
from ..graph.plan import GraphPlan
from ..legal.rules import rules_of_subjects
from ..legal.subjects import subjects_of_native


def first_plan(graph: Graph, context: Context, order: Sequence[int] = ()) -> GraphPlan:
    """Return a plan of the first engine that no fact rejects; ``order`` has places in the heuristics."""
    rules = rules_of_subjects(tuple(subjects_of_native(graph)), target_of(context))
    return first.first_plan(graph, context, order, rules)
