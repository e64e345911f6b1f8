"""Candidates for problems whose engines need operands of other strides than the caller's: they are copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from ..algo_cache import CandidateSource, with_dynamic_shapes
from ..autotune.request import AlgoRequest
from ..context import Context
from ..plans.base import DYNAMIC_SHAPES, Candidate, Heuristic, Plan, tensors_of
from ..plans.workspace import room_of
from ..plans.wrappers import RelayoutPlan

__all__ = ["PackedSource"]


_COMPILED = ("runtime_compilation",)


def _no_engines(problem: Any) -> Sequence[str]:  # noqa: ARG001
    return ()


class PackedSource(NamedTuple):
    """The engines of a problem on copies of operands, as an `algo_cache.CandidateSource`.

    ``packed`` returns a problem with the strides that engines support. Its operands that differ from those of
    the problem are copied in every run. ``also`` returns names of engines that are timed besides those of the
    heuristics, which return few of the settings that an engine has; all of them are compiled at run time and
    deterministic.
    """

    engines: CandidateSource
    packed: Callable[[Any], Any]
    also: Callable[[Any], Sequence[str]] = _no_engines

    def graph_of(self, problem: Any) -> Any:
        """Return the graph of the packed problem; None if its engines have none."""
        of_engines = getattr(self.engines, "graph_of", None)
        return None if of_engines is None else of_engines(self.packed(problem))

    def with_dynamic_shapes(self) -> Self:
        """Return the source that plans dynamic graphs where it can."""
        engines = with_dynamic_shapes(self.engines)
        return self if engines is self.engines else self._replace(engines=engines)

    def only_graphs(self, problem: Any, context: Any) -> bool:
        """Return whether all candidates are engines of the graph of the problem, without copies."""
        of_engines = getattr(self.engines, "only_graphs", None)
        return self.packed(problem) == problem and of_engines is not None and of_engines(problem, context)

    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        """Return the sources of candidates for the packed problem."""
        return self._with_copies(problem, self.engines.heuristics(self.packed(problem)))

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return the engines of the heuristics, and the others to time."""
        packed = self.packed(problem)
        rows = self.engines.autotune_candidates(packed, context, request)
        if request.compiled:
            known = {row.algorithm for row in rows}
            names = [name for name in self.also(packed) if name not in known][: request.max_engines]
            math = rows[0].math if rows else "fma"
            notes = (*_COMPILED, DYNAMIC_SHAPES) if rows and rows[0].dynamic else _COMPILED
            # Whether cuDNN supports them shows when their plans are made.
            rows += [Candidate("graph", name, math, 0, True, notes=notes) for name in names]
        return self._with_room(problem, sorted(rows, key=lambda row: bool(row.rejected)))

    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the stage for the engine of a name, and the heuristics for its replacement."""
        named, instead = self.engines.by_name(self.packed(problem), name)
        return self._with_copies(problem, named), self._with_copies(problem, instead)

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make an engine ready to run on the operands of the problem."""
        packed = self.packed(problem)
        made = self.engines.plan(packed, candidate, context)
        if packed == problem:
            return made
        pairs = zip(tensors_of(problem).values(), tensors_of(packed).values(), strict=True)
        moves = [(spec, None if spec == copy else copy) for spec, copy in pairs]
        return RelayoutPlan(made, moves, outputs=len(problem.results))

    def _with_copies(self, problem: Any, stages: Sequence[Heuristic]) -> list[Heuristic]:
        return [partial(self._found, problem, stage) for stage in stages]

    def _found(self, problem: Any, stage: Heuristic, context: Context) -> list[Candidate]:
        return self._with_room(problem, stage(context))

    def _with_room(self, problem: Any, rows: list[Candidate]) -> list[Candidate]:
        """Add the workspace of the copies."""
        pairs = zip(tensors_of(problem).values(), tensors_of(self.packed(problem)).values(), strict=True)
        room = room_of(copy for spec, copy in pairs if spec != copy)
        return [row if row.rejected else row._replace(workspace=row.workspace + room) for row in rows]
