"""Graphs of every kind, planned by the real cuDNN for a GPU that is only described."""

from __future__ import annotations

from cudnn_ct.errors import CudnnError, NotSupportedError
from cudnn_ct.graph.engines import execution_plan, heuristic_configs
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.operations import Graph, operation_graph
from tests.graph_kinds import KINDS, SINCE

from .test_graph import DEVICE, _can_plan, in_child

__all__ = ["_can_plan"]  # a fixture, known here by its import


@in_child
def test_every_kind_of_graph_becomes_a_plan() -> None:
    planner = Planner(DEVICE)
    without = {}
    for name, make in KINDS.items():
        if SINCE.get(name, 0) <= planner.library.version:
            without[name] = plan_of(make(), planner)
    assert {name: reason for name, reason in without.items() if reason} == {}


def plan_of(graph: Graph, planner: Planner) -> str:
    """Build the first engine that becomes a plan; return why there is none."""
    native, reasons = operation_graph(graph, planner), []
    try:
        for offer in heuristic_configs(native, planner):
            try:
                execution_plan(native, offer.engine, planner)
                return ""
            except CudnnError as error:
                reasons.append(f"{offer.engine}: {error}")
    except NotSupportedError as error:
        reasons.append("; ".join([str(error), *error.__notes__]))
    return "; ".join(reasons)
