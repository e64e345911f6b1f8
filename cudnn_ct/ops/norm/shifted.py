"""Layer normalisation of values from which the mean was subtracted first, for versions that need it.

Engines of these versions compute the variance as the mean of the squares minus the square of the mean, which
has no digits left if the mean is large next to the deviation. Their mean is right. y and the inverse
deviation do not depend on a constant that is subtracted from a row, so a normalisation runs twice: once for
the mean, and then on x without it. The mean of the second run is the rounding error of the first one, which
float32 does not hold.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ...context import Context
from ...errors import LibraryLoadError, NotSupportedError
from ...graph.offline import ShapesOnly
from ...plans.base import Candidate, Plan, tensors_of
from ...plans.elementwise import op_tensor_of
from ...plans.program import Step, chained
from ...plans.wrappers import on_operands_of
from ...shapes.layer_norm import RowNorm
from ...shapes.specs import TensorSpec
from .._elementwise_graph import elementwise_graph
from .._first_plan import first_plan
from .._graph_source import GraphSource
from .row_graphs import row_norm_graph, shifted_graph

LOSES_VARIANCE = "layer-norm-variance"  # the fact that these plans compute around


class _TwoRuns(GraphSource):
    """The engines of the second run."""

    def only_graphs(self, problem: Any, context: Any) -> bool:  # noqa: ARG002
        """Return False: a call runs the graph of the first run, too."""
        return False

    def _plan(self, problem: RowNorm, candidate: Candidate, context: Context) -> Plan:
        whole = _with_statistics(problem)._replace(aligned=True)
        made = self._chain(problem, whole, super()._plan(whole, candidate, context), context)
        return on_operands_of(made, problem, problem, align=not problem.aligned)

    def _chain(self, problem: RowNorm, whole: RowNorm, second: Plan, context: Context) -> Plan:
        raise NotImplementedError


class _Fused(_TwoRuns):
    """The engine subtracts the mean while it reads x: float32, in rows of 64 elements or a multiple."""

    def _chain(self, problem: RowNorm, whole: RowNorm, second: Plan, context: Context) -> Plan:
        first = first_plan(row_norm_graph(whole), context)
        names = tuple(tensors_of(whole))
        places, temporaries = _places(problem, whole, rest=_statistics(whole))
        again = places | {"mean": places["rest"]}
        steps = [
            Step(first, tuple(places[name] for name in names)),
            Step(second, (places["mean"], *(again[name] for name in names))),
        ]
        return chained(temporaries, steps)


class _Separate(_TwoRuns):
    """An engine runs on x, and again on a float32 copy from which the mean was subtracted."""

    def plan(self, problem: RowNorm, candidate: Candidate, context: Context) -> Plan:
        """Make an engine ready to run; calls on shapes record the form that has engines."""
        fused = problem.x.dtype == "float32" and problem.shape.columns % 64 == 0
        if fused and self.before is not None and isinstance(context, ShapesOnly):
            return self.before.plan(problem, candidate, context)
        return super().plan(problem, candidate, context)

    def _chain(self, problem: RowNorm, whole: RowNorm, second: Plan, context: Context) -> Plan:
        shifted = _in_float32(whole).x
        first = second if shifted == whole.x else first_plan(row_norm_graph(whole), context)
        places, temporaries = _places(problem, whole, shifted=shifted, rest=_statistics(whole))
        again = places | {"x": places["shifted"], "mean": places["rest"]}
        names = tuple(tensors_of(whole))
        steps = [
            Step(first, tuple(places[name] for name in names)),
            Step(_difference(whole, context), (places["x"], places["mean"], places["shifted"])),
            Step(second, tuple(again[name] for name in names)),
        ]
        return chained(temporaries, steps)


SHIFTED = _Separate(
    lambda problem: row_norm_graph(_in_float32(_with_statistics(problem))),
    handled=(LOSES_VARIANCE,),
    before=_Fused(lambda problem: shifted_graph(_with_statistics(problem)), handled=(LOSES_VARIANCE,)),
)
"""The source of candidates; problems have contiguous operands."""


def _statistics(problem: RowNorm) -> TensorSpec:
    return TensorSpec.packed(problem.shape.statistics, "float32")


def _with_statistics(problem: RowNorm) -> RowNorm:
    return problem._replace(mean=_statistics(problem), invstd=_statistics(problem))


def _in_float32(problem: RowNorm) -> RowNorm:
    """Return the problem of a float32 x: the difference from a mean needs more digits than x."""
    return problem._replace(x=problem.x._replace(dtype="float32"))


def _places(problem: RowNorm, whole: RowNorm, **more: TensorSpec) -> tuple[dict[str, int], list[TensorSpec]]:
    """Return the places of tensors in a chain, and its temporaries: unwanted statistics, then ``more``."""
    wanted = tensors_of(problem)
    temporaries = {name: spec for name, spec in tensors_of(whole).items() if name not in wanted} | more
    return {name: place for place, name in enumerate([*wanted, *temporaries])}, list(temporaries.values())


def _difference(problem: RowNorm, context: Context) -> Plan:
    """Return a plan that subtracts the mean of each row from x; the legacy call needs no compilation."""
    columns = problem.shape.columns
    rows = problem.x.size // columns
    mean, y = (TensorSpec.packed((1, rows, length), "float32") for length in (1, columns))
    x = y._replace(dtype=problem.x.dtype)
    if x == y:
        with suppress(LibraryLoadError, NotSupportedError):  # no legacy calls, or too many elements
            return op_tensor_of("add", x, mean, y, alpha2=-1.0)
    return first_plan(elementwise_graph("sub", x, mean, y), context)
