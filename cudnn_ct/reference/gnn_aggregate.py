"""Aggregation of the features of neighbours in a graph, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..shapes.checks import FLOATS, one_dtype, result_slots
from ..shapes.gnn_aggregate import (
    EXTREMES,
    WITHOUT_POSITIONS,
    GraphAggregateGradients,
    GraphAggregateResult,
    GraphReduction,
    gradient_shapes,
    graph_reduction,
)
from ..shapes.gnn_graph import check_rows
from . import _signatures as signatures
from ._cast import Array, Float64, check_out, deliver, packed_spec, wide
from ._definition import Arguments, defined
from .gnn_graph import Edges, edges_of


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
