"""Attention of the nodes of a graph to their neighbours (GATv2), and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..shapes.checks import FLOATS, one_dtype
from ..shapes.gnn_attention import (
    WITHOUT_EDGES,
    GraphAttention,
    GraphAttentionGradients,
    GraphAttentionResult,
    graph_attention_shapes,
)
from . import _signatures as signatures
from ._cast import Array, Float64, packed_spec, wide
from ._definition import Arguments, defined
from .gnn_graph import Edges, edges_of


@defined(signatures.graph_attention)
def graph_attention(p: Arguments) -> GraphAttentionResult[Array]:
    """Compute ``sum(softmax(w * act(x + target + edges)) * x)``. See :func:`cudnn_ct.graph_attention`."""
    (graph, given, params), heads = _checked(p), p.heads
    dtype, values = given["x"].dtype, {name: wide(array) for name, array in given.items()}
    sums = values["x"][graph.sources] + values["target"][graph.destinations]
    if "edges" in values:
        sums += values["edges"][graph.rows]
    active = _activated(sums, params)
    logits = _by_head(active * values["w"], heads).sum(2)
    weights = np.zeros_like(logits)
    for among in graph.groups():
        if len(among):
            powers = np.exp(logits[among] - logits[among].max(0))
            weights[among] = powers / powers.sum(0)
    kept = weights * values["mask"].T[graph.rows] if "mask" in values else weights
    y = np.zeros((graph.nodes, heads, active.shape[1] // heads))
    np.add.at(y, graph.destinations, kept[..., None] * _by_head(values["x"][graph.sources], heads))
    whole = y.reshape(graph.nodes, -1) if params.concat else y.mean(1)
    scores, activated = np.zeros((2, heads, len(logits))), np.zeros_like(active)
    scores[:, :, graph.rows] = logits.T, weights.T
    activated[graph.rows] = active
    results = [(whole, dtype), (scores, _wider(dtype)), (activated, dtype)]
    return p.deliver_each(GraphAttentionResult, results)


@defined(signatures.graph_attention_backward)
def graph_attention_backward(p: Arguments) -> GraphAttentionGradients[Array]:
    """Compute the gradients of all operands. See :func:`cudnn_ct.graph_attention_backward`."""
    (graph, given, params), heads = _checked(p, "dy", "scores", "activated"), p.heads
    values = {name: wide(array) for name, array in given.items()}
    weights = values["scores"][1].T[graph.rows]
    active = values["activated"][graph.rows]
    factors = values["mask"].T[graph.rows] if "mask" in values else np.ones_like(weights)
    heads_of_dy = _by_head(values["dy"], heads) if p.concat else values["dy"][:, None] / heads
    arriving = heads_of_dy[graph.destinations]  # (edges, heads, features of a head)
    dweights = factors * (arriving * _by_head(values["x"][graph.sources], heads)).sum(2)
    totals = np.zeros((graph.nodes, heads))
    np.add.at(totals, graph.destinations, weights * dweights)
    dlogits = weights * (dweights - totals[graph.destinations])
    spread = np.repeat(dlogits, active.shape[1] // heads, axis=1)  # for each feature of a head
    dsums = spread * values["w"] * _slope(active, params)
    dx, dtarget = np.zeros_like(values["x"]), np.zeros_like(values["target"])
    direct = ((weights * factors)[..., None] * arriving).reshape(active.shape)
    np.add.at(dx, graph.sources, direct + dsums)
    np.add.at(dtarget, graph.destinations, dsums)
    results = [dx, dtarget, (spread * active).sum(0)]
    if "edges" in values:
        dedges = np.zeros_like(active)
        dedges[graph.rows] = dsums
        results.append(dedges)
    absent = "" if "edges" in values else WITHOUT_EDGES
    rows = [(one, _wider(given["x"].dtype)) for one in results]
    return p.deliver_each(GraphAttentionGradients, rows, absent)


def _checked(p: Arguments, *names: str) -> tuple[Edges, dict[str, Array], GraphAttention]:
    """Return the graph, the other arrays by name, and the parameters, after a check."""
    arrays = p.required("offsets", "indices", "x", "target", "w") | p.present("edges", "mask", "order")
    params, saved = (p.heads, p.concat, p.activation, p.coefficient), p.required(*names)
    graph = edges_of(arrays["offsets"], arrays["indices"], arrays.get("order"))
    shapes, checked = graph_attention_shapes(
        {name: packed_spec(array) for name, array in arrays.items()}, params
    )
    for name, array in saved.items():
        shape = {"dy": shapes.y, "scores": shapes.scores, "activated": shapes.activated}[name]
        if array.shape != shape:
            raise ValueError(f"{name} has a wrong shape: got {array.shape}, expected {shape}")
    arrays |= saved
    of_features = ("x", "target", "w", "edges", "activated", "dy")
    one_dtype(
        "graph_attention", FLOATS, **{name: arrays[name].dtype for name in of_features if name in arrays}
    )
    if "scores" in arrays and arrays["scores"].dtype != (wanted := _wider(arrays["x"].dtype)):
        raise TypeError(f"scores has a wrong dtype: got {arrays['scores'].dtype}, expected {wanted}")
    others = {name: array for name, array in arrays.items() if name not in ("offsets", "indices", "order")}
    return graph, others, checked


def _wider(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of scores and gradients: float64 for float64, which cuDNN lacks, else float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _by_head(rows: Float64, heads: int) -> Float64:
    return rows.reshape(len(rows), heads, rows.shape[1] // heads)


def _activated(x: Float64, params: GraphAttention) -> Float64:
    alpha = params.coefficient
    values: dict[str, Callable[[], Any]] = {
        "identity": lambda: x,
        "relu": lambda: np.maximum(x, 0),
        "sigmoid": lambda: 1 / (1 + np.exp(-x)),
        "tanh": lambda: np.tanh(x),
        "elu": lambda: np.where(x > 0, x, np.expm1(x)),
        "scale": lambda: alpha * x,
        "leaky_relu": lambda: np.where(x > 0, x, alpha * x),
    }
    return np.asarray(values[params.activation]())


def _slope(active: Float64, params: GraphAttention) -> Float64:
    """Return the derivative of an activation, by its result."""
    alpha, ones = params.coefficient, np.ones_like(active)
    values: dict[str, Callable[[], Any]] = {
        "identity": lambda: ones,
        "relu": lambda: np.where(active > 0, ones, 0),
        "sigmoid": lambda: active * (1 - active),
        "tanh": lambda: 1 - active * active,
        "elu": lambda: np.where(active > 0, ones, 1 + active),
        "scale": lambda: alpha * ones,
        "leaky_relu": lambda: np.where(active >= 0, ones, alpha),  # as cuDNN; PyTorch has alpha at 0
    }
    return np.asarray(values[params.activation]())
