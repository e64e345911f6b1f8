"""The conversion of a dtype as a graph: one pointwise node, the identity."""

from __future__ import annotations

from ..context import Context
from ..dtypes import DTYPES
from ..errors import AllocationError, CudnnError, NotSupportedError
from ..legacy import ChainPlan, Step, copying
from ..problem import Candidate, TensorSpec, TransformProblem
from .engines import execution_plan, offers
from .operations import Graph, Tensor, node, operation_graph
from .plan import GraphPlan

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
    steps = [
        Step(copying(x, packed_x), (0, 2)),
        Step(_identity(packed_x, packed_y, context), (2, 3)),
        Step(copying(packed_y, y), (3, 1)),
    ]
    narrower = DTYPES[y.dtype].itemsize < DTYPES[x.dtype].itemsize
    return ChainPlan([packed_x, packed_y], steps, scaled=0 if narrower else 2)


def identity_graph(x: TensorSpec, y: TensorSpec) -> Graph:
    """Make the graph that writes the elements of x, which lie without gaps, as the dtype of y."""
    tensors = [
        # One pixel with as many channels as there are elements: engines load along these.
        Tensor(uid, TensorSpec.packed((1, x.size, 1, 1), spec.dtype, "nhwc"))
        for uid, spec in enumerate((x, y), 1)
    ]
    compute = "float64" if "float64" in (x.dtype, y.dtype) else "float32"
    one = node("pointwise", mode="identity", math_prec=compute, xdesc=tensors[0], ydesc=tensors[1])
    return Graph((one,), tuple(tensors))


def _identity(x: TensorSpec, y: TensorSpec, context: Context) -> GraphPlan:
    """A plan of the first engine that becomes one."""
    graph, refusals = identity_graph(x, y), []
    native = operation_graph(graph, context)
    for offer in offers(native, context):
        try:
            made = execution_plan(native, offer.engine, context)
        except AllocationError:
            raise
        except CudnnError as error:  # also what engines that compile at run time say
            refusals.append(f"{offer.engine}: {error}")
            continue
        candidate = Candidate("graph", str(offer.engine), "fma", offer.workspace, True, notes=offer.notes)
        return GraphPlan(graph, made, candidate)
    raise NotSupportedError(f"no engine turns {x.dtype} into {y.dtype}; {'; '.join(refusals)}")
