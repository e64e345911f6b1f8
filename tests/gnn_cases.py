"""Calls of aggregation and attention of graphs, as values that all tiers share."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.shapes.gnn import ACTIVATIONS, EXTREMES, REDUCTIONS
from tests.layers import LayerCase, Tensor, lying

AGGREGATE = ("graph_aggregate", "graph_aggregate_backward")
ATTENTION = ("graph_attention", "graph_attention_backward")
DTYPES = ("float32", "float16", "bfloat16")


def graph_of(
    rng: np.random.Generator, destinations: int, sources: int, most: int = 4, dtype: Any = np.int32
) -> dict[str, np.ndarray]:
    """Return offsets, indices and an order of random edges; each destination has one or more."""
    lengths = rng.integers(1, most + 1, destinations)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    edges = int(offsets[-1])
    arrays = {
        "offsets": offsets,
        "indices": rng.integers(0, sources, edges),
        "order": rng.permutation(edges),
    }
    return {name: array.astype(dtype) for name, array in arrays.items()}


def aggregate_operands(
    rng: np.random.Generator, graph: dict[str, np.ndarray], sources: int, columns: tuple[int, int, int]
) -> dict[str, np.ndarray]:
    """Return features of nodes and edges, and appended ones, in float64; none without columns."""
    rows = (sources, len(graph["indices"]), len(graph["offsets"]) - 1)
    drawn = zip(("x", "edges", "concat"), rows, columns, strict=True)
    return {name: rng.standard_normal((n, count)) for name, n, count in drawn if count}


def attention_operands(
    rng: np.random.Generator, graph: dict[str, np.ndarray], sources: int, features: int, heads: int
) -> dict[str, np.ndarray]:
    """Return all operands of an attention in float64, but the mask, which is float32."""
    destinations, edges = len(graph["offsets"]) - 1, len(graph["indices"])
    shapes = {"x": (sources, features), "target": (destinations, features), "w": (features,)}
    drawn = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    drawn["edges"] = rng.standard_normal((edges, features))
    drawn["mask"] = (rng.random((heads, edges)) < 0.75).astype(np.float32) / np.float32(0.75)
    return drawn


def _host(array: np.ndarray) -> Tensor:
    return Tensor(array.shape, array.dtype.name, array)


@st.composite
def aggregate_cases(draw: st.DrawFn) -> LayerCase:
    operation, dtype = draw(st.sampled_from(AGGREGATE)), draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    sources, op = draw(st.integers(1, 5)), draw(st.sampled_from(REDUCTIONS))
    graph = graph_of(rng, draw(st.integers(1, 4)), sources, dtype=draw(st.sampled_from((np.int32, np.int64))))
    order = graph.pop("order") if draw(st.booleans()) else None
    offsets, indices = _host(graph["offsets"]), _host(graph["indices"])
    columns = draw(st.sampled_from(((3, 0, 0), (0, 2, 0), (4, 1, 2), (1, 3, 0))))
    features = aggregate_operands(rng, graph, sources, columns)
    given = {name: lying(draw, one.shape, dtype, one) for name, one in features.items()}
    placed = None if order is None else _host(order)
    if operation == AGGREGATE[0]:
        operands = (offsets, indices, *(given.get(name) for name in ("x", "edges", "concat")), placed)
        return LayerCase(operation, operands, {"op": op})
    arrays = {name: one.array() for name, one in given.items()}
    found = ct.reference.graph_aggregate(graph["offsets"], graph["indices"], **arrays, order=order, op=op)
    positions = _host(found.positions) if op in EXTREMES and found.positions is not None else None
    dy = lying(draw, found.y.shape, dtype, "floats")
    shapes = {f"{name}_shape": given[name].shape for name in ("x", "edges") if name in given}
    return LayerCase(operation, (dy, offsets, indices, positions, placed), {"op": op, **shapes})


@st.composite
def attention_cases(draw: st.DrawFn) -> LayerCase:
    operation, dtype = draw(st.sampled_from(ATTENTION)), draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    sources, heads = draw(st.integers(1, 5)), draw(st.sampled_from((1, 2, 3)))
    graph = graph_of(rng, draw(st.integers(1, 4)), sources, dtype=draw(st.sampled_from((np.int32, np.int64))))
    features = attention_operands(rng, graph, sources, heads * draw(st.integers(1, 3)), heads)
    optional = ("edges", "mask", "order")
    kept = {name for name in optional if draw(st.booleans())}
    every = {**graph, **features}
    arrays = {name: every[name] for name in every if name not in optional or name in kept}
    given = {
        name: _host(one) if name in (*graph, "mask") else lying(draw, one.shape, dtype, one)
        for name, one in arrays.items()
    }
    keywords = {
        "heads": heads,
        "concat": draw(st.booleans()),
        "activation": draw(st.sampled_from(ACTIVATIONS)),
        "coefficient": 0.25,
    }
    first = tuple(given.get(name) for name in ("offsets", "indices", "x", "target", "w"))
    last = tuple(given.get(name) for name in optional)
    if operation == ATTENTION[0]:
        return LayerCase(operation, (*first, *last), keywords)
    made = {name: one.array() for name, one in given.items()}
    y, scores, activated = ct.reference.graph_attention(**made, **keywords)
    saved = (_host(scores), lying(draw, activated.shape, dtype, activated))
    dy = lying(draw, y.shape, dtype, "floats")
    terms = dict.fromkeys(("dx", "dtarget", "dw", "dedges"), 10.0)
    return LayerCase(operation, (dy, *first, *saved, *last), keywords, terms=terms)
