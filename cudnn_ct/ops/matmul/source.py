"""Candidates for products of matrices: engines of graphs, or 1 x 1 convolutions without tensor cores."""

from __future__ import annotations

from typing import Any

from ...algo_cache import CandidateSource
from ...context import Context
from ...graph.broadcasts import in_words
from ...legal.rules import more_engines_of
from ...plans.base import Candidate, Plan
from ...plans.tiling import sliced
from ...shapes.matmul import MatmulProblem
from .._graph_source import GraphSource
from .._reduced_source import ReducedSource, packed_source
from .graph import matmul_graph
from .views import packed_operands, slices_of
from .weights import converted_weights


def _sliced(cores: CandidateSource) -> ReducedSource:
    """Return the candidates of products of three axes, run once for each slice of a problem."""

    def planned(inner: CandidateSource, problem: Any, candidate: Candidate, context: Context) -> Plan:
        core, offsets = slices_of(problem)
        made = inner.plan(core, candidate, context)
        return made if len(offsets) == 1 else sliced([(made, one) for one in offsets])

    return ReducedSource(cores, lambda problem: slices_of(problem).core, planned, comparable=False)


TENSOR_CORES = packed_source(_sliced(GraphSource(matmul_graph)), packed_operands, more_engines_of)


def source_of(problem: MatmulProblem) -> CandidateSource:
    """Return the candidates of a product."""
    if problem.b_scale and not in_words(problem.b):
        return converted_weights(TENSOR_CORES)
    if problem.tensor_cores or problem.compute == "int32":
        return TENSOR_CORES
    from .as_conv import AS_CONVOLUTION  # with the convolutions, which half precision does not need

    return packed_source(_sliced(AS_CONVOLUTION), packed_operands)
