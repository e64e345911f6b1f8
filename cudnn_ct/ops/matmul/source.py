"""Candidates for products of matrices: engines of graphs, or 1 x 1 convolutions without tensor cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from ...algo_cache import CandidateSource, with_dynamic_shapes
from ...autotune.request import AlgoRequest
from ...context import Context
from ...graph.broadcasts import in_words
from ...graph.offline import target_of
from ...legal.rules import more_engines
from ...legal.subjects import subjects_of
from ...plans.base import Candidate, Heuristic, Plan
from ...plans.tiling import SlicedPlan
from ...shapes.matmul import MatmulProblem
from .._graph_source import GraphSource
from .._packed_source import PackedSource
from .graph import matmul_graph
from .views import packed_operands, slices_of
from .weights import ConvertedWeights

__all__ = ["TENSOR_CORES", "source_of"]


class _Sliced(NamedTuple):
    """The candidates of products of three axes, run once for each slice of a problem."""

    cores: Any  # a CandidateSource

    def with_dynamic_shapes(self) -> Self:
        """Return the source that plans dynamic graphs where it can."""
        cores = with_dynamic_shapes(self.cores)
        return self if cores is self.cores else self._replace(cores=cores)

    def only_graphs(self, problem: Any, context: Any) -> bool:
        """Return whether all candidates are engines of the graph of a slice, without copies."""
        of_cores = getattr(self.cores, "only_graphs", None)
        return of_cores is not None and of_cores(slices_of(problem).core, context)

    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        """Return the sources of candidates for a slice."""
        found: Sequence[Heuristic] = self.cores.heuristics(slices_of(problem).core)
        return found

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return the candidates to time for a slice."""
        core = slices_of(problem).core
        rows: list[Candidate] = self.cores.autotune_candidates(core, context, request)
        return rows

    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the stages for the algorithm of a name, and for its replacement."""
        found: tuple[Sequence[Heuristic], Sequence[Heuristic]] = self.cores.by_name(
            slices_of(problem).core, name
        )
        return found

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make a candidate ready to run for all slices."""
        core, offsets = slices_of(problem)
        made: Plan = self.cores.plan(core, candidate, context)
        return made if len(offsets) == 1 else SlicedPlan([(made, one) for one in offsets])


def _more_engines(problem: MatmulProblem) -> tuple[str, ...]:
    """Return more engines to time than the heuristics list."""
    (subject,) = subjects_of(problem)
    return more_engines(subject, target_of(None))


TENSOR_CORES = PackedSource(_Sliced(GraphSource(matmul_graph)), packed_operands, _more_engines)


def source_of(problem: MatmulProblem) -> CandidateSource:
    """Return the candidates of a product."""
    if problem.b_scale and not in_words(problem.b):
        return ConvertedWeights(TENSOR_CORES)
    if problem.tensor_cores or problem.compute == "int32":
        return TENSOR_CORES
    from .as_conv import AS_CONVOLUTION  # with the convolutions, which half precision does not need

    return PackedSource(_Sliced(AS_CONVOLUTION), packed_operands)
