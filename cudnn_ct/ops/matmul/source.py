"""Candidates for products of matrices: engines of graphs, and cuBLASLt."""

from __future__ import annotations

from typing import Any

from ...algo_cache import CandidateSource
from ...context import Context
from ...graph.operations import Graph
from ...legal.rules import more_engines_of
from ...plans.axes import sliced
from ...plans.base import Candidate, Plan, tensors_of
from ...plans.program import Step, chained, room_of
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import TensorSpec
from .._formulas import cast_by_graph
from .._graph_source import GraphSource, ReducedSource, packed_source
from ..graph.native import Definition, defines, graph_with_epilogue
from .cublaslt import with_cublaslt
from .views import packed_operands, slices_of

# --- the graph of a product of matrices of three axes, with its epilogue as pointwise nodes ----------------


@defines
def matmul_graph(problem: MatmulProblem) -> Graph:
    """Return the graph of a problem, whose operands have three axes."""
    # Sums of int8 are int32, those of all others float32, which the epilogue computes in.
    g = Definition(problem, problem.compute)
    a, b = g.given["a"], g.given["b"]
    if b.dtype == "int8" != a.dtype:  # each int8 is exact in half precision
        b = g.converted(b)
    return graph_with_epilogue(g, problem, a @ b, problem.alpha)


# --- products with int8 weights that engines read wrong: the weights are converted first -------------------


def _planned(halves: CandidateSource, problem: MatmulProblem, candidate: Candidate, context: Context) -> Plan:
    core = _converted(problem)
    names = list(tensors_of(problem))
    weights, count = names.index("b"), len(names)
    places = tuple(count if place == weights else place for place in range(count))
    convert, run = cast_by_graph(problem.b, core.b, context), halves.plan(core, candidate, context)
    return chained([core.b], [Step(convert, (weights, count)), Step(run, places)])


def _converted(problem: MatmulProblem) -> MatmulProblem:
    """Return the problem with contiguous weights of the dtype of a."""
    return problem._replace(b=TensorSpec.packed(problem.b.shape, problem.a.dtype))


def _with_room(row: Candidate, problem: MatmulProblem) -> Candidate:
    """Add the workspace of the conversion."""
    halves = _converted(problem).b
    return row._replace(workspace=row.workspace + room_of([problem.b, halves, halves]))


# --- candidates --------------------------------------------------------------------------------------------


def sliced_products(cores: CandidateSource) -> ReducedSource:
    """Return the candidates of products of three axes, run once for each slice of a problem."""

    def planned(inner: CandidateSource, problem: Any, candidate: Candidate, context: Context) -> Plan:
        core, offsets = slices_of(problem)
        made = inner.plan(core, candidate, context)
        return made if len(offsets) == 1 else sliced([(made, one) for one in offsets])

    return ReducedSource(cores, lambda problem: slices_of(problem).core, planned, comparable=False)


_ENGINES = GraphSource(matmul_graph)
TENSOR_CORES = packed_source(sliced_products(_ENGINES), packed_operands, more_engines_of)
WITH_CONVERTED_WEIGHTS = ReducedSource(TENSOR_CORES, _converted, _planned, _with_room, comparable=False)
PRODUCTS = packed_source(sliced_products(with_cublaslt(_ENGINES)), packed_operands, more_engines_of)
