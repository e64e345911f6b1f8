"""Directed graphs of nodes and edges: checks of their arrays, aggregation over neighbours and attention."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Generic, Literal, NamedTuple

from .checks import as_bool, as_choice, as_float, one_dtype, packed_result
from .specs import Outs, Shape, Specs, T, TensorSpec, check_shape, problem_class

FEATURES = ("float16", "bfloat16", "float32")  # dtypes of features
INDICES = ("int32", "int64")  # dtypes of offsets and indices


class GraphSizes(NamedTuple):
    """The numbers of destinations and edges of a graph, and the dtype of its indices."""

    destinations: int
    edges: int
    dtype: str


def graph_sizes(offsets: TensorSpec, indices: TensorSpec, order: TensorSpec | None = None) -> GraphSizes:
    """Return the sizes of a graph, after a check of the specs of its arrays.

    >>> offsets, indices = TensorSpec.packed((4,), "int32"), TensorSpec.packed((7,), "int32")
    >>> graph_sizes(offsets, indices)
    GraphSizes(destinations=3, edges=7, dtype='int32')
    """
    given = {"offsets": offsets, "indices": indices} | ({} if order is None else {"order": order})
    for name, spec in given.items():
        if spec.dtype not in INDICES:
            raise TypeError(f"{name} has a wrong dtype: got {spec.dtype}, expected int32 or int64")
        if spec.dtype != offsets.dtype:
            raise TypeError(f"offsets is {offsets.dtype} and {name} is {spec.dtype}; a graph needs one dtype")
        if len(spec.shape) != 1:
            raise ValueError(f"{name} has a wrong shape: got {spec.shape}, expected one axis")
        if not spec.is_dense:
            raise ValueError(f"{name} is not contiguous: got the strides {spec.strides}; pass a copy")
    if not offsets.size:
        raise ValueError("offsets has a wrong shape: got (0,), expected (destinations + 1,)")
    if order is not None and order.shape != indices.shape:
        raise ValueError(f"order has a wrong shape: got {order.shape}, expected {indices.shape}, as indices")
    return GraphSizes(offsets.shape[0] - 1, indices.shape[0], offsets.dtype)


def check_rows(name: str, spec: TensorSpec, rows: int | None, columns: int | None = None) -> int:
    """Check the shape of features, one row for each node or edge, and return the number of columns."""
    wanted = ("nodes" if rows is None else rows, "features" if columns is None else columns)
    wrong = len(spec.shape) != 2 or any(
        want not in (None, got) for got, want in zip(spec.shape, (rows, columns), strict=True)
    )
    if wrong or not spec.shape[1]:
        expected = ", ".join(map(str, wanted))
        raise ValueError(f"{name} has a wrong shape: got {spec.shape}, expected ({expected})")
    return spec.shape[1]


GraphReduction = Literal["sum", "mean", "max", "min"]
REDUCTIONS: tuple[GraphReduction, ...] = ("sum", "mean", "max", "min")
# --- aggregation of the features of neighbours -------------------------------------------------------------

EXTREMES = ("max", "min")
WITHOUT_POSITIONS = "op is not max or min"  # why a result has no positions


class GraphAggregateResult(NamedTuple, Generic[T]):
    """The aggregated features; for maxima and minima also their positions, which the gradient reads."""

    y: T
    positions: T | None


class GraphAggregateGradients(NamedTuple, Generic[T]):
    """Gradients of the features of nodes, of edges and of those that are appended; None for absent ones."""

    dx: T | None
    dedges: T | None
    dconcat: T | None


@problem_class("aggregation of neighbours", "y positions")
class GraphAggregateProblem(NamedTuple):
    """An aggregation; features that are not given are None."""

    offsets: TensorSpec
    indices: TensorSpec
    order: TensorSpec | None
    x: TensorSpec | None
    edges: TensorSpec | None
    concat: TensorSpec | None
    y: TensorSpec
    positions: TensorSpec | None
    op: GraphReduction


@problem_class("gradient of an aggregation of neighbours", "dx dedges dconcat")
class GraphAggregateGradientProblem(NamedTuple):
    """The gradients of an aggregation; those of features that are not given have no columns."""

    offsets: TensorSpec
    indices: TensorSpec
    order: TensorSpec | None
    positions: TensorSpec | None
    dy: TensorSpec
    dx: TensorSpec
    dedges: TensorSpec
    dconcat: TensorSpec
    op: GraphReduction


def graph_reduction(op: Any) -> GraphReduction:
    """Return the name of a reduction of neighbours."""
    return as_choice(op, REDUCTIONS, "op")


def graph_aggregate_problem(specs: Specs, outs: Outs, op: Any) -> GraphAggregateProblem:
    """Validate the operands of an aggregation; ``outs`` are y and, for maxima and minima, positions."""
    graph = graph_sizes(specs["offsets"], specs["indices"], specs.get("order"))
    features = {name: specs[name] for name in ("x", "edges", "concat") if name in specs}
    if not features.keys() & {"x", "edges"}:
        raise TypeError("x and edges are both None: expected features of nodes or of edges")
    dtype = one_dtype("graph_aggregate", FEATURES, **{name: spec.dtype for name, spec in features.items()})
    rows = {"x": None, "edges": graph.edges, "concat": graph.destinations}
    columns = {name: check_rows(name, spec, rows[name]) for name, spec in features.items()}
    chosen = graph_reduction(op)
    y = packed_result((graph.destinations, sum(columns.values())), dtype, outs[0], "out")
    positions = None
    if chosen in EXTREMES:
        reduced = (graph.destinations, sum(columns.values()) - columns.get("concat", 0))
        positions = packed_result(reduced, graph.dtype, outs[1], "positions of out")
    x, edges, concat = (features.get(name) for name in ("x", "edges", "concat"))
    arrays = (specs["offsets"], specs["indices"], specs.get("order"))
    return GraphAggregateProblem(*arrays, x, edges, concat, y, positions, chosen)


def graph_aggregate_gradient_problem(
    specs: Specs, outs: Outs, op: Any, x_shape: Any, edges_shape: Any
) -> GraphAggregateGradientProblem:
    """Validate the operands of the gradients of an aggregation; ``outs`` are dx, dedges and dconcat."""
    graph = graph_sizes(specs["offsets"], specs["indices"], specs.get("order"))
    dy, positions, chosen = specs["dy"], specs.get("positions"), graph_reduction(op)
    dtype = one_dtype("graph_aggregate_backward", FEATURES, dy=dy.dtype)
    shapes = gradient_shapes(graph.destinations, graph.edges, dy.shape, x_shape, edges_shape)
    if (positions is not None) != (chosen in EXTREMES):
        wanted = "the positions of graph_aggregate" if chosen in EXTREMES else "None"
        given = "None" if positions is None else str(positions)
        raise ValueError(f"positions does not match op={chosen!r}: got {given}, expected {wanted}")
    if positions is not None:
        reduced = (graph.destinations, shapes[0][1] + shapes[1][1])
        if positions.shape != reduced or positions.dtype != graph.dtype:
            expected = f"{graph.dtype}{list(reduced)}"
            raise ValueError(f"positions has a wrong shape or dtype: got {positions}, expected {expected}")
    names = ("out", "dedges of out", "dconcat of out")
    dx, dedges, dconcat = (packed_result(*row) for row in zip(shapes, (dtype,) * 3, outs, names, strict=True))
    arrays = (specs["offsets"], specs["indices"], specs.get("order"), positions, dy)
    return GraphAggregateGradientProblem(*arrays, dx, dedges, dconcat, chosen)


def gradient_shapes(
    destinations: int,
    edges: int,
    dy_shape: Iterable[int],
    x_shape: Iterable[int] | None,
    edges_shape: Iterable[int] | None,
) -> tuple[Shape, Shape, Shape]:
    """Return the shapes of the gradients of x, edges and concat; absent features have no columns.

    >>> gradient_shapes(3, 7, (3, 12), (5, 8), None)
    ((5, 8), (7, 0), (3, 4))
    """
    if x_shape is None and edges_shape is None:
        raise TypeError("x_shape and edges_shape are both None: expected the shape of either")
    x = (0, 0) if x_shape is None else check_shape(x_shape, "x_shape")
    of_edges = (edges, 0) if edges_shape is None else check_shape(edges_shape, "edges_shape")
    for name, shape in (("x_shape", x), ("edges_shape", of_edges)):
        if len(shape) != 2:
            raise ValueError(f"{name} is wrong: got {shape}, expected two axes")
    if of_edges[0] != edges:
        raise ValueError(f"edges_shape is wrong: got {of_edges}, expected ({edges}, features)")
    dy, reduced = check_shape(dy_shape, "dy_shape"), x[1] + of_edges[1]
    if len(dy) != 2 or dy[0] != destinations or dy[1] < reduced:
        raise ValueError(f"dy has a wrong shape: got {dy}, expected ({destinations}, {reduced} or more)")
    return x, of_edges, (destinations, dy[1] - reduced)


GraphActivation = Literal["identity", "relu", "sigmoid", "tanh", "elu", "scale", "leaky_relu"]
ACTIVATIONS: tuple[GraphActivation, ...] = (
    "identity",
    "relu",
    "sigmoid",
    "tanh",
    "elu",
    "scale",
    "leaky_relu",
)
# --- attention of nodes to their neighbours ----------------------------------------------------------------

WITHOUT_EDGES = "edges is not given"  # why a gradient has no dedges


class GraphAttentionResult(NamedTuple, Generic[T]):
    """The attended features, and the scores and activated vectors of the edges, which the gradient reads.

    ``scores`` are the logits and the weights of the attention, without dropout.
    """

    y: T
    scores: T
    activated: T


class GraphAttentionGradients(NamedTuple, Generic[T]):
    """Gradients of :func:`graph_attention` in float32; ``dedges`` is None without features of edges."""

    dx: T
    dtarget: T
    dw: T
    dedges: T | None


class GraphAttention(NamedTuple):
    """Parameters of an attention."""

    heads: int
    concat: bool
    activation: GraphActivation
    coefficient: float


@problem_class("attention of a graph", "y scores activated")
class GraphAttentionProblem(NamedTuple):
    """An attention; operands that are not given are None."""

    offsets: TensorSpec
    indices: TensorSpec
    order: TensorSpec | None
    x: TensorSpec
    target: TensorSpec
    w: TensorSpec
    edges: TensorSpec | None
    mask: TensorSpec | None
    y: TensorSpec
    scores: TensorSpec
    activated: TensorSpec
    params: GraphAttention


@problem_class("gradient of an attention of a graph", "dx dtarget dw dedges")
class GraphAttentionGradientProblem(NamedTuple):
    """The gradients of an attention; operands that are not given are None."""

    offsets: TensorSpec
    indices: TensorSpec
    order: TensorSpec | None
    x: TensorSpec
    target: TensorSpec
    w: TensorSpec
    edges: TensorSpec | None
    mask: TensorSpec | None
    scores: TensorSpec
    activated: TensorSpec
    dy: TensorSpec
    dx: TensorSpec
    dtarget: TensorSpec
    dw: TensorSpec
    dedges: TensorSpec | None
    params: GraphAttention


def graph_attention_params(params: tuple[Any, ...], features: int) -> GraphAttention:
    """Return the parameters of an attention over vectors of ``features`` numbers, after a check."""
    heads, concat, activation, coefficient = params
    if isinstance(heads, bool) or not isinstance(heads, int) or not 1 <= heads <= features:
        raise ValueError(f"heads is out of range: got {heads!r}, expected an int from 1 to {features}")
    if features % heads:
        raise ValueError(f"heads does not divide the features: got {heads} heads, {features} features")
    chosen = as_choice(activation, ACTIVATIONS, "activation")
    slope = as_float(coefficient, "coefficient")
    if not math.isfinite(slope) or (chosen == "leaky_relu" and slope <= 0):
        raise ValueError(f"coefficient is out of range: got {slope}, expected a finite number above 0")
    return GraphAttention(heads, as_bool(concat, "concat"), chosen, slope)


class AttentionShapes(NamedTuple):
    """The shapes of the tensors of an attention."""

    y: Shape
    scores: Shape
    activated: Shape
    mask: Shape


def graph_attention_shapes(specs: Specs, params: tuple[Any, ...]) -> tuple[AttentionShapes, GraphAttention]:
    """Return the shapes of the results and of a mask, and the parameters, after a check of the operands."""
    graph = graph_sizes(specs["offsets"], specs["indices"], specs.get("order"))
    features = check_rows("x", specs["x"], None)
    check_rows("target", specs["target"], graph.destinations, features)
    if specs["w"].shape != (features,):
        raise ValueError(f"w has a wrong shape: got {specs['w'].shape}, expected ({features},)")
    if "edges" in specs:
        check_rows("edges", specs["edges"], graph.edges, features)
    checked = graph_attention_params(params, features)
    columns = features if checked.concat else features // checked.heads
    per_head = (checked.heads, graph.edges)
    shapes = AttentionShapes((graph.destinations, columns), (2, *per_head), (graph.edges, features), per_head)
    if "mask" in specs and specs["mask"].shape != per_head:
        raise ValueError(f"mask has a wrong shape: got {specs['mask'].shape}, expected {per_head}")
    return shapes, checked


def graph_attention_problem(specs: Specs, outs: Outs, *params: Any) -> Any:
    """Validate the operands of an attention, or of its gradients with dy.

    ``outs`` are y, scores and activated, or dx, dtarget, dw and, with features of edges, dedges.
    """
    shapes, checked = graph_attention_shapes(specs, params)
    of_features = ("x", "target", "w", "edges", "activated", "dy")
    dtypes = {name: specs[name].dtype for name in of_features if name in specs}
    dtype = one_dtype("graph_attention", FEATURES, **dtypes)
    for name in ("mask", "scores"):
        if name in specs and specs[name].dtype != "float32":
            raise TypeError(f"{name} has a wrong dtype: got {specs[name].dtype}, expected float32")
    x, target, w = (specs[name] for name in ("x", "target", "w"))
    graph = (specs["offsets"], specs["indices"], specs.get("order"))
    edges, mask = specs.get("edges"), specs.get("mask")
    if "dy" not in specs:
        y = packed_result(shapes.y, dtype, outs[0], "out")
        scores = packed_result(shapes.scores, "float32", outs[1], "scores of out")
        activated = packed_result(shapes.activated, dtype, outs[2], "activated of out")
        return GraphAttentionProblem(*graph, x, target, w, edges, mask, y, scores, activated, checked)
    for name, wanted in (("scores", shapes.scores), ("activated", shapes.activated), ("dy", shapes.y)):
        if specs[name].shape != wanted:
            raise ValueError(f"{name} has a wrong shape: got {specs[name].shape}, expected {wanted}")
    names = ("out", "dtarget of out", "dw of out", "dedges of out")
    given = (x, target, w) if edges is None else (x, target, w, edges)
    results = [
        packed_result(spec.shape, "float32", out, name)
        for spec, out, name in zip(given, outs, names, strict=False)
    ]
    saved = (specs["scores"], specs["activated"], specs["dy"])
    dedges = results[3] if edges else None
    return GraphAttentionGradientProblem(
        *graph, x, target, w, edges, mask, *saved, results[0], results[1], results[2], dedges, checked
    )
