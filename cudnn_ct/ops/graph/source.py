"""Candidates of built graphs: engines of the graph, or candidates of attention."""

from __future__ import annotations

from ...algo_cache import CandidateSource
from ...context import Context
from ...plans.base import Candidate, Plan
from ...plans.program import Step, chained
from ...shapes.graph.problem import GraphProblem
from .._graph_source import GraphSource
from .._reduced_source import ReducedSource, packed_source
from ..attention.source import SOURCE as ATTENTION
from .attention_problem import GraphAttention, attention_of
from .lower import REWRITES, lowered, with_copies

ENGINES = packed_source(GraphSource(lowered, handled=REWRITES), with_copies)


def source_of(problem: GraphProblem) -> CandidateSource:
    """Return the source of candidates for a graph; raise NotSupportedError if cuDNN cannot compute it."""
    attention = attention_of(problem)
    return ENGINES if attention is None else _of_attention(attention)


def _of_attention(found: GraphAttention) -> ReducedSource:
    """Return the candidates of `ops.attention` for a graph, with its rejections and plans."""

    def planned(inner: CandidateSource, _: GraphProblem, candidate: Candidate, context: Context) -> Plan:
        made = inner.plan(attention, candidate, context)
        return chained((), [Step(made, places)], about="{}", main=made)

    attention, places = found
    return ReducedSource(ATTENTION, lambda _: attention, planned, comparable=False)
