"""Candidates for convolutions whose padding may differ between the two sides of an axis.

Such a problem is computed on a padded copy of the image, with padding that is even: legacy calls support no
other, and eight engines of cuDNN 9.19 gave wrong results or accessed memory that is not theirs.
"""

from __future__ import annotations

from typing import Any

from ...algo_cache import CandidateSource
from ...context import Context
from ...dtypes import DTYPES
from ...plans.base import Candidate, Plan
from ...plans.elementwise import copy_plan, fill_plan
from ...plans.program import Step, chained
from ...plans.tiling import sliced
from ...plans.workspace import room_of
from ...shapes.fused import FusedConv
from ...shapes.specs import TensorSpec, nearest_layout
from .._reduced_source import ReducedSource
from .candidates import CONVOLUTIONS
from .relayout import operands_of


def with_even_padding(problem: Any) -> Any:
    """Return the problem on a padded image, whose padding is the same on both sides of each axis.

    int8 problems are returned as they are: copies support only floating-point numbers.
    """
    core = problem.core
    if not core.asymmetric_padding or core.x.dtype == "int8":
        return problem
    sizes = [
        n + abs(after - before) for n, (before, after) in zip(core.x.shape[2:], core.padding, strict=True)
    ]
    layout = nearest_layout(*(spec for spec in (core.x, core.w, core.y) if spec.layouts), core.x)
    even = core._replace(
        x=TensorSpec.packed((*core.x.shape[:2], *sizes), core.x.dtype, layout),
        padding=tuple((min(pair), min(pair)) for pair in core.padding),
    )
    return problem._replace(conv=even) if isinstance(problem, FusedConv) else even


def _planned(inner: CandidateSource, problem: Any, candidate: Candidate, context: Context) -> Plan:
    even = with_even_padding(problem)
    made = inner.plan(even, candidate, context)
    if even is problem:
        return made
    x, padded = problem.core.x, even.core.x
    inside = x._replace(strides=padded.strides)
    strides = zip(problem.core.padding, padded.strides[2:], strict=True)
    start = sum((before - min(before, after)) * step for (before, after), step in strides)
    start *= DTYPES[x.dtype].itemsize
    names = list(operands_of(problem))
    image, copy = names.index("x"), len(names)
    places = tuple(copy if place == image else place for place in range(len(names)))
    if problem.core.direction == "backward_data":
        out_of = sliced([(copy_plan(inside, x), (start, 0))])
        steps = [Step(made, places), Step(out_of, (copy, image))]
    else:
        edge = fill_plan(padded, 0.0)
        into = sliced([(copy_plan(x, inside), (0, start))])
        steps = [Step(edge, (copy,)), Step(into, (image, copy)), Step(made, places)]
    scaled = 0 if problem.core.direction == "backward_data" else 2
    return chained([padded], steps, scaled, about="{}; on a padded copy of the image", main=made)


def _with_room(row: Candidate, problem: Any) -> Candidate:
    """Add the workspace of the padded copy."""
    even = with_even_padding(problem)
    return row if even is problem else row._replace(workspace=row.workspace + room_of([even.core.x]))


class PaddedConvolutions(ReducedSource):
    """The candidates of convolutions with any padding."""

    def all_candidates(self, problem: Any, context: Context) -> list[Candidate]:
        """Return all engines of each heuristic and all legacy algorithms, rejected ones with reasons."""
        return self._all(problem, CONVOLUTIONS.all_candidates(with_even_padding(problem), context))


SOURCE = PaddedConvolutions(CONVOLUTIONS, with_even_padding, _planned, _with_room)
