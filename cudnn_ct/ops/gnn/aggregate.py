"""Aggregation of the features of neighbours in a graph, and its gradients, by libcudnn_ext."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import byref
from typing import Any, Never

from ..._bindings.enums import GnnAggOp
from ..._bindings.types import cudnnGnnCscGraph_t
from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...plans.base import Plan, tensors_of
from ...plans.elementwise import fill_plan
from ...plans.program import ArgumentTemplate, PointerSlot, Step, chained
from ...plans.stream_call import StreamCall, on_contiguous, require_function
from ...plans.wrappers import zero_results
from ...shapes.checks import result_slots
from ...shapes.gnn import (
    EXTREMES,
    WITHOUT_POSITIONS,
    GraphAggregateGradientProblem,
    GraphAggregateGradients,
    GraphAggregateProblem,
    GraphAggregateResult,
    GraphReduction,
    graph_aggregate_gradient_problem,
    graph_aggregate_problem,
    graph_reduction,
)
from ...shapes.specs import TensorSpec, results_of
from ...typing import ArrayLike, OutLike, StreamLike
from .._call import execute, execute_as
from .._documented import documented
from .._implementations import of_problem
from .._operands import present
from .._operation import Operation


@documented()
def graph_aggregate(
    offsets: ArrayLike,
    indices: ArrayLike,
    x: ArrayLike | None = None,
    edges: ArrayLike | None = None,
    concat: ArrayLike | None = None,
    order: ArrayLike | None = None,
    *more: Never,
    op: GraphReduction = "sum",
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> GraphAggregateResult[DeviceArray]:
    """Reduce the features of the neighbours of each node in a graph, as graph neural networks do.

    The graph is in compressed sparse columns: the edges to node v begin at ``indices[offsets[v]]`` and end
    before ``indices[offsets[v + 1]]``, and each index is the node that the edge comes from. With the
    reduction over these edges ::

        y[v] = [reduce(x[indices[e]]), reduce(edges[e]), concat[v]]

    Parameters
    ----------
    offsets : device array, shape (destinations + 1,), int32 | int64
        Contiguous. The first is 0, and the last is the number of edges. A destination needs an edge: cuDNN
        does not document the result without one.
    indices : device array, shape (edges,), dtype of offsets
        Contiguous. Nothing checks them: an index without a row of x reads other memory.
    x : device array, shape (sources, features), float16 | bfloat16 | float32, optional
        For strides that are not contiguous a copy is made, as for all features.
    edges : device array, shape (edges, features of edges), dtype of x, optional
        Features of edges; either these or x are needed.
    concat : device array, shape (destinations, appended features), dtype of x, optional
        Features that are copied behind the others.
    order : device array, shape (edges,), dtype of offsets, optional
        The row of ``edges`` for each index; by default they have the same order.
    op : {"sum", "mean", "max", "min"}

    Returns
    -------
    GraphAggregateResult
        ``y``, shape (destinations, sum of the features), dtype of x; ``positions`` of the maxima and minima,
        shape (destinations, features of nodes and edges), dtype of offsets, None for sums and means.

    Notes
    -----
    ``cudnnGnnAggSimpleForward``. It needs cuDNN 9.26, its library libcudnn_ext, which JIT wheels lack, and
    compute capability 8.0. cuDNN compiles a kernel for each dtype of features and of indices by NVRTC, and
    keeps it until the process ends. Whether results are the same bits from run to run is not documented.

    Examples
    --------
    >>> offsets, indices = ct.asarray([0, 2, 3], "int32"), ct.asarray([0, 1, 2], "int32")
    >>> x = ct.asarray([[1, 2], [3, 4], [5, 6]], "float32")
    >>> ct.graph_aggregate(offsets, indices, x, op="mean").y.numpy()
    array([[2., 3.],
           [5., 6.]], dtype=float32)
    """
    if more or unknown or offsets is UNSET or indices is UNSET:
        return corrected(graph_aggregate, locals())
    operands = {"offsets": offsets, "indices": indices}
    operands |= present(order=order, x=x, edges=edges, concat=concat)
    absent = "" if graph_reduction(op) in EXTREMES else WITHOUT_POSITIONS
    return execute_as(GraphAggregateResult, _AGGREGATE, operands, (op,), out, stream, absent)


@documented(graph_aggregate)
def graph_aggregate_backward(
    dy: ArrayLike,
    offsets: ArrayLike,
    indices: ArrayLike,
    positions: ArrayLike | None = None,
    order: ArrayLike | None = None,
    *more: Never,
    x_shape: Iterable[int] | None = None,
    edges_shape: Iterable[int] | None = None,
    op: GraphReduction = "sum",
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> GraphAggregateGradients[DeviceArray]:
    """Compute the gradients of :func:`graph_aggregate` with regard to all features.

    Parameters
    ----------
    dy : device array, shape of y, float16 | bfloat16 | float32
        The gradient of ``y``. Columns behind those of x and edges are those of ``concat``.
    positions : device array, optional
        The second result of :func:`graph_aggregate`, for maxima and minima.
    x_shape : tuple of two ints, optional
        The shape of x, if it was given.
    edges_shape : tuple of two ints, optional
        The shape of edges, if they were given.

    Returns
    -------
    GraphAggregateGradients
        ``dx``, ``dedges`` and ``dconcat``, with the shapes of the features and the dtype of dy; None for
        features that were not given.

    Notes
    -----
    ``cudnnGnnAggSimpleBackward``, after the gradients are set to 0. The sums of dx have no defined order, so
    their last bits may vary from run to run, and in half precision each addition is rounded. Needs and costs
    are those of the forward pass.

    Examples
    --------
    >>> offsets, indices = ct.asarray([0, 2, 3], "int32"), ct.asarray([0, 1, 1], "int32")
    >>> dy = ct.asarray([[1, 2], [3, 4]], "float32")
    >>> ct.graph_aggregate_backward(dy, offsets, indices, x_shape=(2, 2)).dx.numpy()
    array([[1., 2.],
           [4., 6.]], dtype=float32)
    """
    if more or unknown or dy is UNSET or offsets is UNSET or indices is UNSET:
        return corrected(graph_aggregate_backward, locals())
    operands = {"offsets": offsets, "indices": indices}
    operands |= present(order=order, positions=positions) | {"dy": dy}
    outs = result_slots(out, GraphAggregateGradients._fields)
    params = (op, x_shape, edges_shape)
    results = execute(_GRADIENT, tuple(operands), tuple(operands.values()), params, outs=outs, stream=stream)
    return GraphAggregateGradients(*(one if one.shape[1] else None for one in results))


def _plan(problem: GraphAggregateProblem | GraphAggregateGradientProblem) -> Plan:
    forward = isinstance(problem, GraphAggregateProblem)
    if not problem.indices.size:
        appended = problem.concat if isinstance(problem, GraphAggregateProblem) else problem.dconcat
        if problem.offsets.size > 1 and (problem.op in EXTREMES or (appended and appended.size)):
            raise NotSupportedError("graph_aggregate needs an edge for max, min and concat: got 0 edges")
        return zero_results(results_of(problem))
    return on_contiguous("graph_aggregate", problem, _forward if forward else _backward)


def _forward(problem: GraphAggregateProblem) -> Plan:
    function = "cudnnGnnAggSimpleForward"
    require_function("graph_aggregate", function)
    tensors = tensors_of(problem)
    arguments = slots(tensors, "x", "edges", "concat", "y", "positions")
    columns = [_columns(spec) for spec in (problem.x, problem.edges, problem.concat)]
    sources = problem.x.shape[0] if problem.x else problem.offsets.shape[0] - 1
    more = (*columns, DTYPES[problem.y.dtype].code, GnnAggOp[problem.op.upper()])
    return GraphCall(function, problem, sources, [*arguments, *more], tuple(tensors))


def _backward(problem: GraphAggregateGradientProblem) -> Plan:
    function = "cudnnGnnAggSimpleBackward"
    require_function("graph_aggregate", function)
    tensors = tensors_of(problem)
    arguments = slots(tensors, "dy", "positions", "dx", "dedges", "dconcat")
    results = results_of(problem)
    columns = [_columns(spec) for spec in results]
    sources = problem.dx.shape[0] if problem.dx.shape[1] else problem.offsets.shape[0] - 1
    more = (*columns, DTYPES[problem.dy.dtype].code, GnnAggOp[problem.op.upper()])
    call = GraphCall(function, problem, sources, [*arguments, *more], tuple(tensors))
    first = len(tensors) - len(results)
    zeros = [Step(fill_plan(spec, 0.0), (first + i,)) for i, spec in enumerate(results) if spec.size]
    return chained((), [*zeros, Step(call, tuple(range(len(tensors))))])


def _columns(spec: TensorSpec | None) -> int:
    return spec.shape[1] if spec else 0


# cuDNN does not document the alignment that it needs, so misaligned operands are copied.
_IMPLEMENTATIONS = (of_problem(_plan, aligned=True),)
_AGGREGATE = Operation(
    "an aggregation of neighbours",
    graph_aggregate_problem,
    _IMPLEMENTATIONS,
    written=("out", "positions of out"),
    relayout=False,
)
_GRADIENT: Any = Operation(
    "the gradient of an aggregation of neighbours",
    graph_aggregate_gradient_problem,
    _IMPLEMENTATIONS,
    written=("out", "dedges of out", "dconcat of out"),
    relayout=False,
)


class GraphCall(StreamCall):
    """The call ``f(stream, graph, *arguments)``; ``sources`` is the number of nodes that edges begin at."""

    __slots__ = ("_graph",)

    def __init__(
        self, function: str, problem: Any, sources: int, arguments: Sequence[Any], names: Sequence[str]
    ) -> None:
        super().__init__(function, [None, *arguments], names)
        destinations, edges = problem.offsets.shape[0] - 1, problem.indices.shape[0]
        arrays = [PointerSlot(name) for name in ("offsets", "indices", "order")]
        code = DTYPES[problem.offsets.dtype].code
        self._graph = ArgumentTemplate([*arrays, None, sources, destinations, edges, code, None], names)

    def _filled(self, pointers: Sequence[int]) -> list[Any]:
        arguments = super()._filled(pointers)
        arguments[0] = byref(cudnnGnnCscGraph_t(*self._graph.filled(pointers)))
        return arguments


def slots(tensors: dict[str, TensorSpec], *names: str) -> list[PointerSlot | None]:
    """Return the arguments for tensors by name: null for those without elements, and for absent ones."""
    return [PointerSlot(name) if name in tensors and tensors[name].size else None for name in names]
