"""The conversion of a dtype as a graph: one pointwise node, the identity."""

from __future__ import annotations

from ..context import Context
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..graph.operations import Graph, Tensor, node
from ..graph.pixels import in_pixels
from ..graph.plan import first_plan
from ..plans.chain import ChainPlan, Step
from ..plans.elementwise import copy_plan
from ..shapes.elementwise import TransformProblem
from ..shapes.specs import TensorSpec

__all__ = ["conversion", "identity_graph"]


def conversion(problem: TransformProblem, context: Context) -> ChainPlan:
    """Copy x without gaps, convert the copy, copy that to y: a graph has no factors and one memory order.

    alpha is a factor in the wider dtype of the two, so that what it brings into range is not lost before.

    Raises
    ------
    NotSupportedError
        Nothing is to be converted, or cuDNN has no engine for it.
    """
    x, y = problem.x, problem.y
    if x.dtype == y.dtype:
        raise NotSupportedError(f"x and the result are {x.dtype}: there is nothing to convert")
    packed_x, packed_y = (TensorSpec.packed(x.shape, spec.dtype) for spec in (x, y))
    identity = in_pixels(lambda a, b: first_plan(identity_graph(a, b), context), packed_x, packed_y)
    steps = [
        Step(copy_plan(x, packed_x), (0, 2)),
        Step(identity, (2, 3)),
        Step(copy_plan(packed_y, y), (3, 1)),
    ]
    narrower = DTYPES[y.dtype].itemsize < DTYPES[x.dtype].itemsize
    return ChainPlan([packed_x, packed_y], steps, scaled=0 if narrower else 2)


def identity_graph(x: TensorSpec, y: TensorSpec) -> Graph:
    """Make the graph that writes the elements of x as the dtype of y; both are images of pixels."""
    first, last = (Tensor(uid, spec) for uid, spec in enumerate((x, y), 1))
    compute = "float64" if "float64" in (x.dtype, y.dtype) else "float32"
    one = node("pointwise", mode="identity", math_prec=compute, xdesc=first, ydesc=last)
    return Graph((one,), (first, last))
