"""Candidates for problems that two sources compute, such as by two graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ..algo_cache import CandidateSource
from ..autotune.request import AlgoRequest
from ..context import Context
from ..errors import NotSupportedError
from ..graph.offline import ShapesOnly
from ..graph.operations import Graph
from ..plans.base import Candidate, Heuristic, Plan

__all__ = ["EitherSource"]


class EitherSource(CandidateSource):
    """The candidates of two sources, those of the first before those of the second.

    A candidate does not name its source. Its plan comes from the first source that supports it, so both have
    to compute the same numbers. The second source supports all problems: calls on shapes record its graphs.
    """

    def __init__(self, first: CandidateSource, second: CandidateSource) -> None:
        self.first, self.second = first, second

    def graph_of(self, problem: Any) -> Graph | None:
        """Return the graph of the second source."""
        return self.second.graph_of(problem)

    def with_dynamic_shapes(self) -> Self:
        """Return the source whose parts plan dynamic graphs where they can."""
        first, second = self.first.with_dynamic_shapes(), self.second.with_dynamic_shapes()
        return self if (first, second) == (self.first, self.second) else type(self)(first, second)

    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        """Return the sources of candidates of the first, then of the second."""
        return [stage for source in (self.first, self.second) for stage in source.heuristics(problem)]

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return the candidates of both to time; if both have the same one, once."""
        rows: dict[tuple[object, ...], Candidate] = {}
        for source in (self.first, self.second):
            for row in source.autotune_candidates(problem, context, request):
                known = rows.get(row.key)
                if known is None or known.rejected:
                    rows[row.key] = row
        return sorted(rows.values(), key=lambda row: bool(row.rejected))

    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the sources for the algorithm of a name, and for its replacement, of both."""
        found = [source.by_name(problem, name) for source in (self.first, self.second)]
        return [stage for named, _ in found for stage in named], self.heuristics(problem)

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make a candidate ready to run; raise NotSupportedError if neither source supports it."""
        if isinstance(context, ShapesOnly):
            return self.second.plan(problem, candidate, context)
        try:
            return self.first.plan(problem, candidate, context)
        except NotSupportedError:
            return self.second.plan(problem, candidate, context)
