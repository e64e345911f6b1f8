"""Candidates of built graphs: engines of the graph, or candidates of attention."""

from __future__ import annotations

from collections.abc import Sequence

from ...algo_cache import CandidateSource
from ...autotune.request import AlgoRequest
from ...context import Context
from ...plans.base import Candidate, Heuristic, Plan
from ...shapes.graph.problem import GraphProblem
from .._graph_source import GraphSource
from .._packed_source import PackedSource
from ..attention.source import SOURCE as ATTENTION
from .attention_problem import GraphAttention, attention_of
from .copies import with_copies
from .lower import lowered

__all__ = ["source_of"]

ENGINES = PackedSource(GraphSource(lowered), with_copies)


def source_of(problem: GraphProblem) -> CandidateSource:
    """Return the source of candidates for a graph; raise NotSupportedError if cuDNN cannot compute it."""
    attention = attention_of(problem)
    return ENGINES if attention is None else _OfAttention(attention)


class _OfAttention:
    """The candidates of `ops.attention` for a graph, with its rejections and plans."""

    def __init__(self, attention: GraphAttention) -> None:
        self._problem, self._places = attention

    def heuristics(self, problem: GraphProblem) -> Sequence[Heuristic]:  # noqa: ARG002
        """Return the stages of the engines."""
        return ATTENTION.heuristics(self._problem)

    def autotune_candidates(
        self,
        problem: GraphProblem,  # noqa: ARG002
        context: Context,
        request: AlgoRequest,
    ) -> list[Candidate]:
        """Return the engines to time."""
        return ATTENTION.autotune_candidates(self._problem, context, request)

    def by_name(
        self,
        problem: GraphProblem,  # noqa: ARG002
        name: str,
    ) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the stage for the engine of a name, and the heuristics for its replacement."""
        return ATTENTION.by_name(self._problem, name)

    def plan(self, problem: GraphProblem, candidate: Candidate, context: Context) -> Plan:  # noqa: ARG002
        """Make an engine ready to run on the operands of the graph."""
        return _OrderedPlan(ATTENTION.plan(self._problem, candidate, context), self._places)


class _OrderedPlan:
    """A plan whose operands have other places among the pointers of a run."""

    __slots__ = ("_inner", "_places", "workspace")

    def __init__(self, inner: Plan, places: tuple[int, ...]) -> None:
        self._inner, self._places = inner, places
        self.workspace = inner.workspace

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        self._inner.run(context, [pointers[place] for place in self._places], alpha, beta)

    def describe(self) -> str:
        return self._inner.describe()
