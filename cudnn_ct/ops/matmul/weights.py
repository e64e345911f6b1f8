"""Products with int8 weights that engines read wrong: the weights are converted first."""

from __future__ import annotations

from ...algo_cache import CandidateSource
from ...context import Context
from ...plans.base import Candidate, Plan, tensors_of
from ...plans.program import Step, chained
from ...plans.workspace import room_of
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import TensorSpec
from .._cast import cast_by_graph
from .._reduced_source import ReducedSource


def converted_weights(halves: CandidateSource) -> ReducedSource:
    """Return the candidates of a product in half precision, whose weights are converted in every run."""
    return ReducedSource(halves, _converted, _planned, _with_room, comparable=False)


def _planned(halves: CandidateSource, problem: MatmulProblem, candidate: Candidate, context: Context) -> Plan:
    core = _converted(problem)
    names = list(tensors_of(problem))
    weights, count = names.index("b"), len(names)
    places = tuple(count if place == weights else place for place in range(count))
    steps = [
        Step(cast_by_graph(problem.b, core.b, context), (weights, count)),
        Step(halves.plan(core, candidate, context), places),
    ]
    return chained([core.b], steps)


def _converted(problem: MatmulProblem) -> MatmulProblem:
    """Return the problem with contiguous weights of the dtype of a."""
    return problem._replace(b=TensorSpec.packed(problem.b.shape, problem.a.dtype))


def _with_room(row: Candidate, problem: MatmulProblem) -> Candidate:
    """Add the workspace of the conversion."""
    halves = _converted(problem).b
    return row._replace(workspace=row.workspace + room_of([problem.b, halves, halves]))
