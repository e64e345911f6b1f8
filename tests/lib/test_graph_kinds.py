"""Graphs of every kind, planned by the real cuDNN for a GPU that is only described."""

from __future__ import annotations

import statistics
import time
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct._bindings import enums
from cudnn_ct.errors import CudnnError, NotSupportedError
from cudnn_ct.graph.candidates import engine_candidates
from cudnn_ct.graph.engines import Engine, execution_plan, heuristic_configs, heuristic_modes
from cudnn_ct.graph.explain import explain_graph
from cudnn_ct.graph.native import operation_graph
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.operations import OPERATIONS, Graph, why_static
from cudnn_ct.graph.plan_store import StoredPlan, plan_store
from cudnn_ct.graph.recording import PlanRequest
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.graph.stored import to_store
from cudnn_ct.ops._graph_source import GraphSource
from cudnn_ct.plans.base import AlgoRequest
from cudnn_ct.shapes.specs import TensorSpec
from tests.graph_kinds import KINDS, SINCE, UNSUPPORTED
from tests.graph_kinds.matmuls import matmul
from tests.graph_kinds.norms import ROWS
from tests.graph_kinds.sizes import with_length

from .test_graph import DEVICE, in_child, parameter

pytestmark = pytest.mark.usefixtures("can_plan")


@parameter("compiled", 24, 1)
@in_child
def test_every_kind_of_graph_has_engines(compiled: int) -> None:
    """Every ``compiled``-th kind also becomes a plan: compiling one takes a third of a second."""
    planner = Planner(DEVICE)
    without = {}
    for number, (name, make) in enumerate(KINDS.items()):
        if SINCE.get(name, 0) <= planner.library.version:
            without[name] = plan_of(make(), planner, compiled=number % compiled == 0)
    assert {name: reason for name, reason in without.items() if reason} == {}


def plan_of(graph: Graph, planner: Planner, *, compiled: bool = True) -> str:
    """Build the first engine that becomes a plan, or find an engine; return why there is none."""
    native, reasons = operation_graph(graph, planner), []
    try:
        for offer in heuristic_configs(native, planner):
            if not compiled:
                return ""
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
            assert explain_graph(graph, planner).reasons, name


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


# --- graphs whose sizes may change -------------------------------------------------------------------------


@in_child
def test_dynamic_graphs_of_all_sizes_share_compiled_kernels() -> None:
    planner = Planner(DEVICE)
    seconds = []
    for rows in (ROWS, 2 * ROWS, 64):
        native = operation_graph(with_length(KINDS["matmul bias gelu"](), ROWS, rows), planner)
        assert native.kernel_cache is list(planner.kernel_caches.values())[-1]
        engine = next(heuristic_configs(native, planner)).engine
        start = time.perf_counter()
        execution_plan(native, engine, planner)
        seconds.append(time.perf_counter() - start)
    assert len(planner.kernel_caches) == 1
    assert max(seconds[1:]) < seconds[0] / 5, seconds
    assert operation_graph(KINDS["matmul"](), planner).kernel_cache is None


@in_child
def test_kernels_of_dynamic_graphs_are_stored_for_later_processes() -> None:
    with TemporaryDirectory() as folder:
        ct.config.algo_cache = folder
        seconds = []
        for rows in (ROWS, 2 * ROWS):
            planner = Planner(DEVICE)  # each has kernels of its own, as a process
            graph = with_length(KINDS["matmul bias gelu"](), ROWS, rows)
            native = operation_graph(graph, planner)
            (row,) = engine_candidates(
                graph, EngineRules(), planner, heuristic_modes(graph, planner), first=1
            )
            start = time.perf_counter()
            plan = execution_plan(native, Engine.parse(row.algorithm), planner)
            seconds.append(time.perf_counter() - start)
            entry = to_store(PlanRequest(graph), plan, row, planner)
            if _lib.load().version < enums.SINCE["BackendAttributeName.KERNEL_CACHE_ENTRY_COUNT"]:
                assert "cuDNN is too old" in str(entry)
                return
            assert isinstance(entry, StoredPlan)
            again = to_store(PlanRequest(graph), plan, row, planner)  # as another size in one file
            assert isinstance(again, StoredPlan)
            assert again.text == entry.text
            plan_store().put(entry)
        assert seconds[1] < seconds[0] / 5, seconds


@pytest.mark.nightly
@in_child
def test_graph_source_plans_other_sizes_without_heuristics_and_compiling() -> None:
    """The engines of other lengths are those of the first, and cuDNN's kernel cache has their kernels."""
    context: Any = Planner(DEVICE)
    for name in ("matmul", "matmul bias gelu"):
        source = GraphSource(
            lambda problem, name=name: with_length(KINDS[name](), ROWS, problem.rows, dynamic=False)
        )
        source = source.with_dynamic_shapes()
        of_other_sizes, first, *_ = source.heuristics(Rows(ROWS))
        assert of_other_sizes(context) == []
        (row,) = first(context)
        start = time.perf_counter()
        source.plan(Rows(ROWS), row, context)
        compiled, seconds = time.perf_counter() - start, []
        for rows in (64, 100, 333, 1000):
            start = time.perf_counter()
            (same,) = source.heuristics(Rows(rows))[0](context)
            assert same.algorithm == row.algorithm
            assert same.dynamic
            source.plan(Rows(rows), same, context)
            seconds.append(time.perf_counter() - start)
        assert statistics.median(seconds) < compiled / 5, (name, compiled, seconds)


@in_child
def test_graph_source_keeps_other_graphs_static() -> None:
    expected = {
        "layer norm": "cuDNN computes wrong results",
        "RMS norm backward": "cuDNN computes wrong results",
        "attention": "cuDNN computes wrong results",
        "elementwise": "no engine for dynamic graphs of pointwise operations",
        "reduction": "dynamic graphs with reduction were not compared",
        "convolution bias gelu": "dynamic graphs with conv_forward were not compared",
        "matmul int8": "dynamic graphs with int8 were not compared",
    }
    for name, reason in expected.items():
        source = GraphSource(lambda _, name=name: KINDS[name]()).with_dynamic_shapes()
        static = GraphSource(lambda _, name=name: KINDS[name]())
        assert len(source.heuristics(Rows(ROWS))) == len(static.heuristics(Rows(ROWS))), name
        assert reason in why_static(KINDS[name]()), name


class Rows(NamedTuple):
    """The problem of a graph with a number of rows."""

    rows: int
    aligned: bool = True
