"""The conversion of a dtype as a graph: one pointwise node, the identity."""

from __future__ import annotations

from ..context import Context
from ..dtypes import DTYPES
from ..errors import CudnnError, NotSupportedError
from ..legacy import ChainPlan, Step, copying
from ..problem import Candidate, TensorSpec, TransformProblem
from .engines import execution_plan, offers
from .operations import Graph, Tensor, node, operation_graph
from .plan import GraphPlan

__all__ = ["conversion"]


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
    steps = [
        Step(copying(x, packed_x), (0, 2)),
        Step(_identity(packed_x, packed_y, context), (2, 3)),
        Step(copying(packed_y, y), (3, 1)),
    ]
    narrower = DTYPES[y.dtype].itemsize < DTYPES[x.dtype].itemsize
    return ChainPlan([packed_x, packed_y], steps, scaled=0 if narrower else 2)


def _identity(x: TensorSpec, y: TensorSpec, context: Context) -> GraphPlan:
    tensors = [
        # One pixel with as many channels as there are elements: engines load along these.
        Tensor(uid, TensorSpec.packed((1, x.size, 1, 1), spec.dtype, "nhwc"))
        for uid, spec in enumerate((x, y), 1)
    ]
    compute = "float64" if "float64" in (x.dtype, y.dtype) else "float32"
    one = node("pointwise", mode="identity", math_prec=compute, xdesc=tensors[0], ydesc=tensors[1])
    graph = Graph((one,), tuple(tensors))
    try:
        native = operation_graph(graph, context)
        offer = next(offers(native, context))
        made = execution_plan(native, offer.engine, context)
    except NotSupportedError:
        raise
    except CudnnError as error:  # also what engines that compile at run time say
        raise NotSupportedError(f"no engine turns {x.dtype} into {y.dtype}: {error}") from error
    candidate = Candidate("graph", str(offer.engine), "fma", offer.workspace, True, notes=offer.notes)
    return GraphPlan(graph, made, candidate)
