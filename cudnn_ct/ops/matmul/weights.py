"""Products with int8 weights that engines read wrong: the weights are converted first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from ...algo_cache import with_dynamic_shapes
from ...autotune.request import AlgoRequest
from ...context import Context
from ...plans.base import Candidate, Heuristic, Plan, tensors_of
from ...plans.chain import ChainPlan, Step
from ...plans.workspace import room_of
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import TensorSpec
from .._cast import cast_by_graph
from .._packed_source import PackedSource

__all__ = ["ConvertedWeights"]


class ConvertedWeights(NamedTuple):
    """The candidates of a product in half precision, whose weights are converted in every run."""

    halves: PackedSource

    def with_dynamic_shapes(self) -> Self:
        """Return the source that plans dynamic graphs where it can."""
        return self._replace(halves=with_dynamic_shapes(self.halves))

    def only_graphs(self, problem: MatmulProblem, context: Any) -> bool:  # noqa: ARG002
        """Return whether all candidates are engines of the graph of the problem, without copies."""
        return False

    def heuristics(self, problem: MatmulProblem) -> Sequence[Heuristic]:
        """Return the sources of candidates for the product in half precision."""
        return self._with_conversion(problem, self.halves.heuristics(_converted(problem)))

    def autotune_candidates(
        self, problem: MatmulProblem, context: Context, request: AlgoRequest
    ) -> list[Candidate]:
        """Return the engines to time."""
        return _with_room(problem, self.halves.autotune_candidates(_converted(problem), context, request))

    def by_name(self, problem: MatmulProblem, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the stage for the engine of a name, and the heuristics for its replacement."""
        named, instead = self.halves.by_name(_converted(problem), name)
        return self._with_conversion(problem, named), self._with_conversion(problem, instead)

    def plan(self, problem: MatmulProblem, candidate: Candidate, context: Context) -> Plan:
        """Make an engine ready to run on the operands of the problem."""
        halves = _converted(problem)
        names = list(tensors_of(problem))
        weights, count = names.index("b"), len(names)
        places = tuple(count if place == weights else place for place in range(count))
        steps = [
            Step(cast_by_graph(problem.b, halves.b, context), (weights, count)),
            Step(self.halves.plan(halves, candidate, context), places),
        ]
        return ChainPlan([halves.b], steps)

    def _with_conversion(self, problem: MatmulProblem, stages: Sequence[Heuristic]) -> list[Heuristic]:
        return [partial(_found, problem, stage) for stage in stages]


def _converted(problem: MatmulProblem) -> MatmulProblem:
    """Return the problem with contiguous weights of the dtype of a."""
    return problem._replace(b=TensorSpec.packed(problem.b.shape, problem.a.dtype))


def _found(problem: MatmulProblem, stage: Heuristic, context: Context) -> list[Candidate]:
    return _with_room(problem, stage(context))


def _with_room(problem: MatmulProblem, rows: list[Candidate]) -> list[Candidate]:
    """Add the workspace of the conversion."""
    halves = _converted(problem).b
    room = room_of([problem.b, halves, halves])
    return [row if row.rejected else row._replace(workspace=row.workspace + room) for row in rows]
