"""Graphs of every kind, planned by the real cuDNN for a GPU that is only described."""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnn_ct.autotune.request import AlgoRequest
from cudnn_ct.errors import CudnnError, NotSupportedError
from cudnn_ct.graph.engines import execution_plan, heuristic_configs
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.operations import OPERATIONS, Graph, operation_graph
from cudnn_ct.graph.reasons import rejection_reasons
from cudnn_ct.ops._graph_source import GraphSource
from cudnn_ct.shapes.specs import TensorSpec
from tests.graph_kinds import KINDS, SINCE, UNSUPPORTED
from tests.graph_kinds.matmuls import matmul

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
        reasons.append("; ".join([str(error), *getattr(error, "__notes__", ())]))
    return "; ".join(reasons)


@in_child
def test_graphs_without_engines_are_built_and_rejected_with_reasons() -> None:
    """Their nodes are finalised, so cuDNN took every attribute with its type."""
    planner = Planner(DEVICE)
    for name, (since, make) in UNSUPPORTED.items():
        if since <= planner.library.version:
            graph = make()
            assert plan_of(graph, planner), name
            assert rejection_reasons(graph, planner), name


def test_the_kinds_have_nodes_of_all_rows() -> None:
    graphs = [make() for make in KINDS.values()] + [make() for _, make in UNSUPPORTED.values()]
    nodes = [node for graph in graphs for node in graph.nodes]
    nodes += [
        node
        for one in nodes
        for value in one.attributes.values()
        if isinstance(value, Graph)
        for node in value.nodes
    ]
    assert {node.row for node in nodes} == set(OPERATIONS)


class Product(NamedTuple):
    """The problem c = a @ b."""

    a: TensorSpec
    b: TensorSpec
    c: TensorSpec
    aligned: bool = True

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        return (self.c,)


def product(dtype: str) -> Product:
    return Product(*(tensor.spec for tensor in matmul(dtype).operands))


SOURCE = GraphSource(lambda problem: matmul(problem.a.dtype))


@in_child
def test_graph_source_has_the_engines_of_a_product_and_their_plans() -> None:
    context: Any = Planner(DEVICE)
    problem = product("bfloat16")
    first, *more = (find(context) for find in SOURCE.heuristics(problem))
    assert [row.rejected for row in first] == [""]
    assert first[0] in more[0]
    timed = SOURCE.autotune_candidates(problem, context, AlgoRequest("autotune", max_engines=2))
    assert len(timed) >= 2
    assert all(row.compiled for row in timed)
    assert len(SOURCE.autotune_candidates(problem, context, AlgoRequest("autotune", compiled=False))) >= 2
    ((find,), _) = SOURCE.by_name(problem, first[0].algorithm)
    assert find(context) == first
    assert SOURCE.plan(problem, first[0], context).workspace == first[0].workspace
    moved = problem._replace(aligned=False)
    (row,) = next(iter(SOURCE.heuristics(moved)))(context)
    assert row.workspace > first[0].workspace
    assert "misaligned operands copied" in SOURCE.plan(moved, row, context).describe()


@in_child
def test_graph_source_names_the_dtypes_that_a_product_does_not_support() -> None:
    context: Any = Planner(DEVICE)
    rows = [row for find in SOURCE.heuristics(product("int8")) for row in find(context)]
    assert rows[-1].algorithm == "engines of heuristics fallback"
    assert "type" in rows[-1].rejected
    assert "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE" in rows[-1].rejected
