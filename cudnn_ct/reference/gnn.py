"""Aggregation over neighbours and attention (GATv2) in graphs in compressed sparse columns, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.checks import FLOATS, one_dtype, result_slots
from ..shapes.gnn import (
    EXTREMES,
    WITHOUT_EDGES,
    WITHOUT_POSITIONS,
    GraphAggregateGradients,
    GraphAggregateResult,
    GraphAttention,
    GraphAttentionGradients,
    GraphAttentionResult,
    GraphReduction,
    check_rows,
    gradient_shapes,
    graph_attention_shapes,
    graph_reduction,
    graph_sizes,
)
from . import _signatures as signatures
from ._definition import Arguments, Array, Float64, check_out, defined, deliver, packed_spec, required, wide


class Edges(NamedTuple):
    """The edges of a graph.

    ``sources`` are the nodes that they come from, ``destinations`` those that they lead to, and ``rows`` the
    places of their features. ``nodes`` is the number of destinations, ``dtype`` that of the indices.
    """

    offsets: Array
    sources: Array
    destinations: Array
    rows: Array
    nodes: int
    dtype: Any

    def groups(self) -> Iterator[Array]:
        """Yield the numbers of the edges to each destination."""
        for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield np.arange(begin, end)


def edges_of(offsets: ArrayLike, indices: ArrayLike, order: ArrayLike | None = None) -> Edges:
    """Return the edges of a graph, after a check of its arrays and their contents."""
    given = required(offsets=offsets, indices=indices, **({} if order is None else {"order": order}))
    count, edges, _ = graph_sizes(*map(packed_spec, given.values()))
    starts, sources = given["offsets"], given["indices"]
    lengths = np.diff(starts)
    if starts[0] != 0 or starts[-1] != edges or (lengths < 0).any():
        raise ValueError(f"offsets are out of order: expected increasing numbers from 0 to {edges}")
    rows = given.get("order", np.arange(edges))
    return Edges(starts, sources, np.repeat(np.arange(count), lengths), rows, count, starts.dtype)


# --- aggregation -------------------------------------------------------------------------------------------


@defined(signatures.graph_aggregate)
def graph_aggregate(p: Arguments) -> GraphAggregateResult[Array]:
    """Compute ``[reduce(x[sources]), reduce(edges), concat]``. See :func:`cudnn_ct.graph_aggregate`."""
    graph = edges_of(p.offsets, p.indices, p.order)
    features = p.present("x", "edges", "concat")
    if not features.keys() & {"x", "edges"}:
        raise TypeError("x and edges are both None: expected features of nodes or of edges")
    one_dtype("graph_aggregate", FLOATS, **{name: array.dtype for name, array in features.items()})
    rows = {"x": None, "edges": len(graph.sources), "concat": graph.nodes}
    for name, array in features.items():
        check_rows(name, packed_spec(array), rows[name])
    chosen, dtype = graph_reduction(p.op), next(iter(features.values())).dtype
    parts, found = list[Float64](), list[Array]()
    for name, places in (("x", graph.sources), ("edges", graph.rows)):
        if name in features:
            values, at = _reduced(wide(features[name]), places, graph, chosen)
            parts.append(values)
            found.append(at)
    parts += [wide(features["concat"])] if "concat" in features else []
    absent = "" if chosen in EXTREMES else WITHOUT_POSITIONS
    slots = result_slots(p.out, GraphAggregateResult._fields, absent=absent)
    y = deliver(np.concatenate(parts, axis=1), dtype, 1, 0, slots[0])
    if absent:
        return GraphAggregateResult(y, None)
    return GraphAggregateResult(y, _written(np.concatenate(found, axis=1), graph.dtype, slots[1]))


@defined(signatures.graph_aggregate_backward)
def graph_aggregate_backward(p: Arguments) -> GraphAggregateGradients[Array]:
    """Compute the gradients of all features. See :func:`cudnn_ct.graph_aggregate_backward`."""
    graph, (gradient,) = edges_of(p.offsets, p.indices, p.order), p.required("dy").values()
    one_dtype("graph_aggregate_backward", FLOATS, dy=gradient.dtype)
    shapes = gradient_shapes(graph.nodes, len(graph.sources), gradient.shape, p.x_shape, p.edges_shape)
    chosen = graph_reduction(p.op)
    if (p.positions is None) != (chosen not in EXTREMES):
        wanted = "the positions of graph_aggregate" if chosen in EXTREMES else "None"
        raise ValueError(f"positions does not match op={chosen!r}: expected {wanted}")
    values, begin, results = wide(gradient), 0, list[Float64]()
    for shape, places in zip(shapes[:2], (graph.sources, graph.rows), strict=True):
        columns = slice(begin, begin + shape[1])
        results.append(_spread(values[:, columns], shape, places, graph, chosen, p.positions, columns))
        begin += shape[1]
    results.append(values[:, begin:])
    given = result_slots(p.out, GraphAggregateGradients._fields)
    rows = zip(results, given, strict=True)
    found = [deliver(one, gradient.dtype, 1, 0, slot) if one.shape[1] else None for one, slot in rows]
    return GraphAggregateGradients(*found)


def _reduced(values: Float64, places: Any, graph: Edges, op: GraphReduction) -> tuple[Float64, Array]:
    """Return the reduction of the rows at ``places`` for each destination, and the places of extremes."""
    y = np.zeros((graph.nodes, values.shape[1]))
    at = np.zeros(y.shape, np.int64)
    for v, among in enumerate(graph.groups()):
        if not len(among):
            continue
        rows = values[places[among]]
        if op in EXTREMES:
            best = rows.argmax(0) if op == "max" else rows.argmin(0)
            y[v], at[v] = np.take_along_axis(rows, best[None], 0)[0], places[among][best]
        else:
            y[v] = rows.sum(0) if op == "sum" else rows.mean(0)
    return y, at


def _spread(
    dy: Float64, shape: Any, places: Any, graph: Edges, op: GraphReduction, positions: Any, columns: slice
) -> Float64:
    """Return the gradient of the rows at ``places``."""
    found = np.zeros(shape)
    for v, among in enumerate(graph.groups() if shape[1] else ()):
        if op in EXTREMES and len(among):
            at = np.asarray(positions)[v, columns]
            found[at, np.arange(shape[1])] += dy[v]
        elif len(among):
            np.add.at(found, places[among], dy[v] / (len(among) if op == "mean" else 1))
    return found


def _written(values: Array, dtype: Any, out: Array | None) -> Array:
    """Return integers in ``out`` if it is given."""
    check_out(out, values.shape, dtype, "positions")
    if out is None:
        return values.astype(dtype)
    out[...] = values
    return out


# --- attention ---------------------------------------------------------------------------------------------


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
