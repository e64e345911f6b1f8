"""Candidates for problems that two sources compute, such as by two graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..algo_cache import CandidateSource
from ..autotune.request import AlgoRequest
from ..context import Context
from ..errors import NotSupportedError
from ..graph.offline import ShapesOnly
from ..plans.base import Candidate, Heuristic, Plan

__all__ = ["EitherSource"]


class EitherSource(NamedTuple):
    """The candidates of two sources, those of the first before those of the second.

    A candidate does not name its source. Its plan comes from the first source that supports it, so both have
    to compute the same numbers. The second source supports all problems: calls on shapes record its graphs.
    """

    first: CandidateSource
    second: CandidateSource

    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        """Return the sources of candidates of the first, then of the second."""
        return [stage for source in self for stage in source.heuristics(problem)]

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return the candidates of both to time; if both have the same one, once."""
        rows: dict[tuple[object, ...], Candidate] = {}
        for source in self:
            for row in source.autotune_candidates(problem, context, request):
                known = rows.get(row.key)
                if known is None or known.rejected:
                    rows[row.key] = row
        return sorted(rows.values(), key=lambda row: bool(row.rejected))

    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the sources for the algorithm of a name, and for its replacement, of both."""
        found = [source.by_name(problem, name) for source in self]
        return [stage for named, _ in found for stage in named], self.heuristics(problem)

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make a candidate ready to run; raise NotSupportedError if neither source supports it."""
        if isinstance(context, ShapesOnly):
            return self.second.plan(problem, candidate, context)
        try:
            return self.first.plan(problem, candidate, context)
        except NotSupportedError:
            return self.second.plan(problem, candidate, context)
