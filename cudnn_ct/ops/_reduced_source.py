"""Candidates of problems that are computed as other problems: on copies, in slices, or without a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from ..algo_cache import CandidateSource
from ..autotune.request import AlgoRequest
from ..context import Context
from ..graph.operations import Graph
from ..plans.base import DYNAMIC_SHAPES, Candidate, Heuristic, Plan, tensors_of
from ..plans.workspace import room_of
from ..plans.wrappers import on_operands_of

_COMPILED = ("runtime_compilation",)


def _unchanged(row: Candidate, problem: Any) -> Candidate:  # noqa: ARG001
    return row


def _no_engines(problem: Any) -> Sequence[str]:  # noqa: ARG001
    return ()


class ReducedSource(CandidateSource):
    """The candidates of another source for the problem that ``core_of`` returns.

    ``adapted`` returns a candidate of the core as one of the problem, with the workspace of what a plan adds.
    ``planned`` makes the plan of a candidate for the problem, from the inner source. ``also`` returns names
    of further engines to time: the heuristics return few of the settings that an engine has. All of them are
    compiled at run time and deterministic.
    """

    def __init__(
        self,
        inner: CandidateSource,
        core_of: Callable[[Any], Any],
        planned: Callable[[CandidateSource, Any, Candidate, Context], Plan],
        adapted: Callable[[Candidate, Any], Candidate] = _unchanged,
        also: Callable[[Any], Sequence[str]] = _no_engines,
        *,
        comparable: bool | None = None,
    ) -> None:
        self.inner, self.core_of = inner, core_of
        self._planned, self._adapted, self._also = planned, adapted, also
        self.comparable = inner.comparable if comparable is None else comparable

    def graph_of(self, problem: Any) -> Graph | None:
        """Return the graph of the core; None if its engines have none."""
        return self.inner.graph_of(self.core_of(problem))

    def with_dynamic_shapes(self) -> Self:
        """Return the source that plans dynamic graphs where it can."""
        inner = self.inner.with_dynamic_shapes()
        return self if inner is self.inner else self.around(inner)

    def around(self, inner: CandidateSource) -> Self:
        """Return the same source around another inner one."""
        return type(self)(
            inner, self.core_of, self._planned, self._adapted, self._also, comparable=self.comparable
        )

    def only_graphs(self, problem: Any, context: Any) -> bool:
        """Return whether all candidates are engines of the graph of the core, and a plan adds nothing."""
        row = Candidate("graph", "any", "any", 0, True)
        return self._adapted(row, problem) == row and self.inner.only_graphs(self.core_of(problem), context)

    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        """Return the sources of candidates for the core."""
        return self._of(problem, self.inner.heuristics(self.core_of(problem)))

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return the candidates of the core to time, and the other engines."""
        core = self.core_of(problem)
        rows = self.inner.autotune_candidates(core, context, request)
        if request.compiled:
            known = {row.algorithm for row in rows}
            names = [name for name in self._also(core) if name not in known][: request.max_engines]
            math = rows[0].math if rows else "fma"
            notes = (*_COMPILED, DYNAMIC_SHAPES) if rows and rows[0].dynamic else _COMPILED
            # Whether cuDNN supports them shows when their plans are made.
            rows += [Candidate("graph", name, math, 0, True, notes=notes) for name in names]
        return self._all(problem, sorted(rows, key=lambda row: bool(row.rejected)))

    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the stage for the algorithm of a name, and the heuristics for its replacement."""
        named, instead = self.inner.by_name(self.core_of(problem), name)
        return self._of(problem, named), self._of(problem, instead)

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make a candidate ready to run on the operands of the problem."""
        return self._planned(self.inner, problem, candidate, context)

    def _of(self, problem: Any, stages: Sequence[Heuristic]) -> list[Heuristic]:
        return [partial(self._stage, problem, stage) for stage in stages]

    def _stage(self, problem: Any, stage: Heuristic, context: Context) -> list[Candidate]:
        return self._all(problem, stage(context))

    def _all(self, problem: Any, rows: list[Candidate]) -> list[Candidate]:
        return [row if row.rejected else self._adapted(row, problem) for row in rows]


def packed_source(
    engines: CandidateSource, packed: Callable[[Any], Any], also: Callable[[Any], Sequence[str]] = _no_engines
) -> ReducedSource:
    """Return the engines of a problem on copies of operands.

    ``packed`` returns a problem with the strides that engines support. Its operands that differ from those of
    the problem are copied in every run.
    """

    def planned(inner: CandidateSource, problem: Any, candidate: Candidate, context: Context) -> Plan:
        core = packed(problem)
        return on_operands_of(inner.plan(core, candidate, context), problem, core)

    def adapted(row: Candidate, problem: Any) -> Candidate:
        core = packed(problem)
        if core == problem:
            return row
        pairs = zip(tensors_of(problem).values(), tensors_of(core).values(), strict=True)
        room = room_of(copy for spec, copy in pairs if spec != copy)
        return row._replace(workspace=row.workspace + room)

    return ReducedSource(engines, packed, planned, adapted, also)
