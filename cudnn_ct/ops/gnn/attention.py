"""Attention of the nodes of a graph to their neighbours, and its gradients, by libcudnn_ext."""

from __future__ import annotations

from ctypes import byref
from typing import Any, Never

from ..._bindings.enums import GnnActivationOp
from ..._bindings.types import cudnnGnnMhaParams_t
from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...dtypes import DTYPES
from ...plans.base import Plan, tensors_of
from ...plans.program import PointerSlot, Step, chained
from ...plans.stream_call import on_contiguous, require_function
from ...plans.wrappers import zero_results
from ...shapes.gnn import (
    WITHOUT_EDGES,
    GraphActivation,
    GraphAttention,
    GraphAttentionGradientProblem,
    GraphAttentionGradients,
    GraphAttentionProblem,
    GraphAttentionResult,
    graph_attention_problem,
)
from ...shapes.specs import results_of
from ...typing import ArrayLike, OutLike, StreamLike
from .._call import execute_as
from .._documented import documented
from .._implementations import of_problem
from .._operation import Operation
from .aggregate import GraphCall, slots

C_NAMES = {"identity": "LINEAR", "scale": "SCALAR"}  # activations with another name in C


@documented()
def graph_attention(
    offsets: ArrayLike,
    indices: ArrayLike,
    x: ArrayLike,
    target: ArrayLike,
    w: ArrayLike,
    edges: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    order: ArrayLike | None = None,
    *more: Never,
    heads: int = 1,
    concat: bool = True,
    activation: GraphActivation = "leaky_relu",
    coefficient: float = 0.2,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> GraphAttentionResult[DeviceArray]:
    """Attend to the neighbours of each node in a graph, with several heads, as GATv2 does.

    The graph is that of :func:`graph_aggregate`. For each edge e from node s to node v, and each head, which
    has an equal part of the features ::

        activated[e] = activation(x[s] + target[v] + edges[e])
        logit[e] = sum(w * activated[e])
        y[v] = sum(softmax(logit)[e] * mask[e] * x[s])  # over the edges to v

    Parameters
    ----------
    offsets : device array, shape (destinations + 1,), int32 | int64
        Contiguous. The first is 0, and the last is the number of edges.
    indices : device array, shape (edges,), dtype of offsets
        Contiguous. Nothing checks them: an index without a row of x reads other memory.
    x : device array, shape (sources, features), float16 | bfloat16 | float32
        Projected features of the sources. For strides that are not contiguous a copy is made.
    target : device array, shape (destinations, features), dtype of x
        Projected features of the destinations; x itself, if both are the same nodes with one projection.
    w : device array, shape (features,), dtype of x
        The attention weights of all heads.
    edges : device array, shape (edges, features), dtype of x, optional
    mask : device array, shape (heads, edges), float32, optional
        Factors of dropout: 0, or 1 / (1 - p).
    order : device array, shape (edges,), dtype of offsets, optional
        The row of ``edges``, and the place in ``mask`` and in the results, for each index; by default they
        have the same order.
    heads : int, at least 1
        It divides the features.
    concat : bool
        Whether the heads are adjacent in the result; otherwise it has their mean.
    activation : {"leaky_relu", "identity", "relu", "sigmoid", "tanh", "elu", "scale"}
    coefficient : float
        Slope of the leaky relu below 0, or factor of ``"scale"``.

    Returns
    -------
    GraphAttentionResult
        ``y``, shape (destinations, features), or (destinations, features / heads) without concat, dtype of x;
        ``scores``, shape (2, heads, edges), float32; ``activated``, shape (edges, features), dtype of x.

    Notes
    -----
    ``cudnnGnnMhaGatV2Forward``. It needs cuDNN 9.28, its library libcudnn_ext, which JIT wheels lack, and
    compute capability 8.0. cuDNN compiles a kernel for each dtype of features and of indices by NVRTC, and
    keeps it until the process ends. Whether results are the same bits from run to run is not documented.

    Examples
    --------
    >>> offsets, indices = ct.asarray([0, 2, 3], "int32"), ct.asarray([0, 1, 0], "int32")
    >>> x, w = ct.asarray([[1, 2], [3, 4]], "float32"), ct.zeros((2,))
    >>> ct.graph_attention(offsets, indices, x, x, w).y.numpy()
    array([[2., 3.],
           [1., 2.]], dtype=float32)
    """
    if more or unknown or any(one is UNSET for one in (offsets, indices, x, target, w)):
        return corrected(graph_attention, locals())
    operands = _operands(offsets, indices, order, x, target, w, edges, mask)
    params = (heads, concat, activation, coefficient)
    return execute_as(GraphAttentionResult, _ATTENTION, operands, params, out, stream)


@documented(graph_attention)
def graph_attention_backward(
    dy: ArrayLike,
    offsets: ArrayLike,
    indices: ArrayLike,
    x: ArrayLike,
    target: ArrayLike,
    w: ArrayLike,
    scores: ArrayLike,
    activated: ArrayLike,
    edges: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    order: ArrayLike | None = None,
    *more: Never,
    heads: int = 1,
    concat: bool = True,
    activation: GraphActivation = "leaky_relu",
    coefficient: float = 0.2,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> GraphAttentionGradients[DeviceArray]:
    """Compute the gradients of :func:`graph_attention` with regard to all features and the weights.

    Parameters
    ----------
    dy : device array, shape of y, dtype of x
        The gradient of ``y``.
    scores, activated : device array
        The other results of :func:`graph_attention`.

    Returns
    -------
    GraphAttentionGradients
        ``dx``, ``dtarget``, ``dw`` and ``dedges``, with the shapes of the operands, float32; ``dedges`` is
        None without ``edges``. If x is the target as well, its gradient is ``dx + dtarget``.

    Notes
    -----
    ``cudnnGnnMhaGatV2Backward`` with sums by atomic additions in float32, which have no defined order, so the
    last bits may vary from run to run. The slope of the leaky relu at 0 is 1, and ``coefficient`` in PyTorch.
    Needs and costs are those of the forward pass.

    Examples
    --------
    >>> offsets, indices = ct.asarray([0, 2, 3], "int32"), ct.asarray([0, 1, 0], "int32")
    >>> x, w = ct.asarray([[1, 2], [3, 4]], "float32"), ct.zeros((2,))
    >>> y, scores, activated = ct.graph_attention(offsets, indices, x, x, w)
    >>> dy = ct.full((2, 2), 1)
    >>> ct.graph_attention_backward(dy, offsets, indices, x, x, w, scores, activated).dx.numpy()
    array([[1.5, 1.5],
           [0.5, 0.5]], dtype=float32)
    """
    if (
        more
        or unknown
        or any(one is UNSET for one in (dy, offsets, indices, x, target, w, scores, activated))
    ):
        return corrected(graph_attention_backward, locals())
    operands = _operands(offsets, indices, order, x, target, w, edges, mask)
    operands |= {"scores": scores, "activated": activated, "dy": dy}
    absent = WITHOUT_EDGES if edges is None else ""
    params = (heads, concat, activation, coefficient)
    return execute_as(GraphAttentionGradients, _GRADIENT, operands, params, out, stream, absent)


def _operands(*arrays: Any) -> dict[str, Any]:
    """Return the operands of both directions by name, in the order of a problem, without absent ones."""
    names = ("offsets", "indices", "order", "x", "target", "w", "edges", "mask")
    given = zip(names, arrays, strict=True)
    return {name: one for name, one in given if one is not None or name not in ("order", "edges", "mask")}


def _plan(problem: GraphAttentionProblem | GraphAttentionGradientProblem) -> Plan:
    if not problem.indices.size:
        return zero_results(results_of(problem))
    if isinstance(problem, GraphAttentionProblem):
        return on_contiguous("graph_attention", problem, _forward)
    return on_contiguous("graph_attention", problem, _backward)


def _forward(problem: GraphAttentionProblem) -> Plan:
    function = "cudnnGnnMhaGatV2Forward"
    require_function("graph_attention", function)
    tensors = tensors_of(problem)
    arguments = slots(tensors, "x", "target", "edges", "w", "mask", "y", "scores", "activated")
    features, code = problem.w.shape[0], DTYPES[problem.x.dtype].code
    more = (features, _c_params(problem.params), code)
    return GraphCall(function, problem, problem.x.shape[0], [*arguments, *more], tuple(tensors))


def _backward(problem: GraphAttentionGradientProblem) -> Plan:
    """Return the call without the workspaces of its deterministic variant, which reads a reversed graph."""
    function = "cudnnGnnMhaGatV2Backward"
    require_function("graph_attention", function)
    tensors = tensors_of(problem)
    given = slots(tensors, "dy", "x", "target", "edges", "w", "scores", "activated", "mask")
    written = slots(tensors, "dx", "dtarget", "dedges", "dw")
    features, codes = problem.w.shape[0], [DTYPES[spec.dtype].code for spec in (problem.x, problem.dx)]
    rest = (features, _c_params(problem.params), *codes)
    arguments = [*given, None, *written, PointerSlot("dscores"), None, None, *rest]
    names = (*tensors, "dscores")
    call = GraphCall(function, problem, problem.x.shape[0], arguments, names)
    return chained([problem.scores], [Step(call, tuple(range(len(names))))])


def _c_params(params: GraphAttention) -> object:
    name = C_NAMES.get(params.activation, params.activation.upper())
    activation = GnnActivationOp[name]
    return byref(cudnnGnnMhaParams_t(activation, params.coefficient, params.heads, params.concat))


# cuDNN does not document the alignment that it needs, so misaligned operands are copied.
_IMPLEMENTATIONS = (of_problem(_plan, aligned=True),)
_ATTENTION = Operation(
    "an attention of a graph",
    graph_attention_problem,
    _IMPLEMENTATIONS,
    written=("out", "scores of out", "activated of out"),
    relayout=False,
)
_GRADIENT = Operation(
    "the gradient of an attention of a graph",
    graph_attention_problem,
    _IMPLEMENTATIONS,
    written=("out", "dtarget of out", "dw of out", "dedges of out"),
    relayout=False,
)
