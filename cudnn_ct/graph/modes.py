"""The heuristic modes that may be queried for a graph."""

from __future__ import annotations

from ..context import Context
from ..facts import facts, ignores
from .engines import HEURISTICS
from .offline import Planner, ShapesOnly, target_of
from .operations import Graph


def heuristic_modes(graph: Graph, context: Context | Planner | ShapesOnly) -> tuple[str, ...]:
    """Return the heuristic modes for a graph, best first: facts of the kind ``modes`` exclude some."""
    nodes = [one.attributes for one in graph.nodes]
    if not [one for one in nodes if one.get("pre_paddings") != one.get("post_paddings")]:
        return HEURISTICS
    known = [fact for fact in facts("modes", "convolution", target_of(context)) if not ignores(fact.name)]
    return tuple(mode for mode in HEURISTICS if not any(mode in fact.row["modes"] for fact in known))
