"""Attention of the nodes of a graph to their neighbours: its problems and its shapes."""

from __future__ import annotations

import math
from typing import Any, Generic, Literal, NamedTuple

from .checks import Outs, Specs, one_dtype, packed_result
from .gnn_graph import FEATURES, check_rows, graph_sizes
from .layer import problem_class
from .parse import as_bool, as_choice, as_float
from .specs import Shape, T, TensorSpec

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
