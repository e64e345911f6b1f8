"""Aggregation and attention of graphs by loops over nodes, and the sizes that errors are measured by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .answer import Arguments, Operands, Table, Values, named
from .tables import defined

__all__ = ["NEIGHBOURS", "NEIGHBOUR_OPEN", "NEIGHBOUR_SCALES", "edges_to", "rows_of"]

Array = np.ndarray
REDUCE = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
WHERE = {"max": np.argmax, "min": np.argmin}


def edges_to(arguments: Arguments) -> Iterator[tuple[int, list[int]]]:
    """Yield each destination with the places of its edges in ``indices``."""
    offsets = [int(one) for one in arguments["offsets"]]
    for v in range(len(offsets) - 1):
        yield v, list(range(offsets[v], offsets[v + 1]))


def rows_of(arguments: Arguments, name: str) -> Array:
    """Return the row of the features of nodes or edges for each place in ``indices``."""
    indices, order = np.asarray(arguments["indices"], int), arguments.get("order")
    if name == "x":
        return indices
    return np.arange(len(indices)) if order is None else np.asarray(order, int)


def _given(operands: Operands) -> dict[str, Array]:
    return {name: operands[name] for name in ("x", "edges") if operands.get(name) is not None}


def graph_aggregate(operands: Operands, arguments: Arguments) -> Values:
    op, lines, places = named(arguments.get("op"), "sum"), [], []
    for v, edges in edges_to(arguments):
        line, place = [], []
        for name, features in _given(operands).items():
            rows = rows_of(arguments, name)[edges]
            line += list(REDUCE[op](features[rows], axis=0))
            if op in WHERE:
                place += [rows[one] for one in WHERE[op](features[rows], axis=0)]
        concat = operands.get("concat")
        lines.append(line + ([] if concat is None else list(concat[v])))
        places.append(place)
    found = {"y": np.array(lines)}
    return found | {"positions": np.array(places)} if op in WHERE else found


def graph_aggregate_backward(operands: Operands, arguments: Arguments) -> Values:
    """Only of sums and means."""
    dy, begin, found = operands["dy"], 0, {}
    for name, result in (("x", "dx"), ("edges", "dedges")):
        if arguments.get(f"{name}_shape") is None:
            continue
        gradient = np.zeros(arguments[f"{name}_shape"])
        part = dy[:, begin : begin + gradient.shape[1]]
        begin += gradient.shape[1]
        for v, edges in edges_to(arguments):
            for row in rows_of(arguments, name)[edges]:
                gradient[row] += part[v] / (len(edges) if arguments.get("op") == "mean" else 1)
        found[result] = gradient
    return found | ({"dconcat": dy[:, begin:]} if begin < dy.shape[1] else {})


def _activation(arguments: Arguments) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Return an activation and its derivative."""
    alpha = arguments.get("coefficient", 0.2)
    return {
        "identity": (lambda x: x, np.ones_like),
        "relu": (lambda x: x * (x > 0), lambda x: 1.0 * (x > 0)),
        "sigmoid": (lambda x: 0.5 + 0.5 * np.tanh(x / 2), lambda x: 0.25 / np.cosh(x / 2) ** 2),
        "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
        "elu": (lambda x: np.where(x > 0, x, np.expm1(x)), lambda x: np.where(x > 0, 1, np.exp(x))),
        "scale": (lambda x: alpha * x, lambda x: alpha * np.ones_like(x)),
        "leaky_relu": (lambda x: x * np.where(x > 0, 1, alpha), lambda x: np.where(x < 0, alpha, 1)),
    }[named(arguments.get("activation"), "leaky_relu")]


def _heads(arguments: Arguments, features: int) -> Iterator[tuple[int, slice]]:
    count = arguments.get("heads", 1)
    for head in range(count):
        yield head, slice(head * (features // count), (head + 1) * (features // count))


def _sums(operands: Operands, arguments: Arguments) -> Array:
    """Return the vectors of the edges before their activation, in the order of ``indices``."""
    x, target = operands["x"], operands["target"]
    rows, edges = rows_of(arguments, "edges"), operands.get("edges")
    found = x[rows_of(arguments, "x")].copy()
    for v, among in edges_to(arguments):
        found[among] += target[v]
    return found if edges is None else found + edges[rows]


def _factor(operands: Operands, head: int, rows: Array) -> Array:
    mask = operands.get("mask")
    return np.ones(len(rows)) if mask is None else mask[head, rows]


def graph_attention(operands: Operands, arguments: Arguments) -> Values:
    x, w = operands["x"], operands["w"]
    vectors, features = _activation(arguments)[0](_sums(operands, arguments)), len(w)
    heads, sources, rows = arguments.get("heads", 1), rows_of(arguments, "x"), rows_of(arguments, "edges")
    y, scores = np.zeros((len(operands["target"]), features)), np.zeros((2, heads, len(rows)))
    activated = np.zeros_like(vectors)
    activated[rows] = vectors
    for head, part in _heads(arguments, features):
        logits = vectors[:, part] @ w[part]
        for v, among in edges_to(arguments):
            weights = np.exp(logits[among] - max(logits[among], default=0))
            weights = weights / weights.sum()
            scores[:, head, rows[among]] = logits[among], weights
            y[v, part] = (weights * _factor(operands, head, rows[among])) @ x[sources[among], part]
    if not arguments.get("concat", True):
        y = y.reshape(len(y), heads, -1).mean(1)
    return {"y": y, "scores": scores, "activated": activated}


def _backward(operands: Operands, arguments: Arguments, *, absolute: bool = False) -> Values:
    """Return the gradients; or the sums of the absolute values of all of their terms."""
    size = np.abs if absolute else np.asarray
    x, w, dy = (size(operands[name]) for name in ("x", "w", "dy"))
    heads, features, sign = arguments.get("heads", 1), len(w), 1 if absolute else -1
    slopes = size(_activation(arguments)[1](_sums(operands, arguments)))
    if absolute:  # a slope may be computed from the activated vector: 1 + x for elu
        slopes = np.maximum(slopes, 1)
    vectors = size(operands["activated"])
    sources, rows = rows_of(arguments, "x"), rows_of(arguments, "edges")
    dx, dtarget, dw = np.zeros_like(x), np.zeros_like(operands["target"]), np.zeros_like(w)
    dedges = np.zeros_like(vectors)
    for head, part in _heads(arguments, features):
        of_head = dy[:, part] if arguments.get("concat", True) else dy / heads
        for v, among in edges_to(arguments):
            weights = operands["scores"][1, head, rows[among]]
            kept = _factor(operands, head, rows[among])
            dweights = kept * (x[sources[among], part] @ of_head[v])
            dlogits = weights * (dweights + sign * (weights @ dweights))
            dw[part] += dlogits @ vectors[rows[among], part]
            for place, weight, dlogit in zip(among, weights * kept, dlogits, strict=True):
                through = dlogit * w[part] * slopes[place, part]
                dx[sources[place], part] += weight * of_head[v] + through
                dtarget[v, part] += through
                dedges[rows[place], part] = through
    found = {"dx": dx, "dtarget": dtarget, "dw": dw}
    return found if operands.get("edges") is None else {**found, "dedges": dedges}


def graph_attention_backward(operands: Operands, arguments: Arguments) -> Values:
    return _backward(operands, arguments)


def _aggregate_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    absolute = {name: np.abs(one) for name, one in operands.items() if one is not None}
    op = named(arguments.get("op"), "sum")
    found = graph_aggregate(absolute, {**arguments, "op": "max" if op in WHERE else op})
    return {name: found[name] for name in values}


def _gradient_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """Atomic additions in half precision round each partial sum: as many roundings as there are edges."""
    found = graph_aggregate_backward({"dy": np.abs(operands["dy"])}, arguments)
    return {name: len(arguments["indices"]) * size for name, size in found.items()}


def _attention_scale(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """An error of a logit changes its weight by as much, relative to the weight."""
    x, w = np.abs(operands["x"]), np.abs(operands["w"])
    sums = _sums({name: np.abs(one) for name, one in operands.items() if one is not None}, arguments)
    sums = np.maximum(sums, 1)
    rows, sources = rows_of(arguments, "edges"), rows_of(arguments, "x")
    activated, scores = np.zeros_like(sums), np.zeros_like(values["scores"])
    activated[rows] = sums
    y = np.zeros((len(operands["target"]), len(w)))
    for head, part in _heads(arguments, len(w)):
        logits = sums[:, part] @ w[part]
        scores[0, head, rows] = logits
        for v, among in edges_to(arguments):
            amplified = values["scores"][1, head, rows[among]] * (2 + 4 * logits[among].max(initial=0))
            scores[1, head, rows[among]] = amplified
            y[v, part] = (amplified * np.abs(_factor(operands, head, rows[among]))) @ x[sources[among], part]
    if not arguments.get("concat", True):
        y = y.reshape(len(y), arguments.get("heads", 1), -1).mean(1)
    return {"y": y, "scores": scores, "activated": activated}


def _attention_gradient_scale(
    table: Table, operands: Operands, arguments: Arguments, values: Values
) -> Values:
    return {name: 4 * size for name, size in _backward(operands, arguments, absolute=True).items()}


def _open_positions(table: Table, operands: Operands, arguments: Arguments, values: Values) -> Values:
    """cuDNN does not document the numbers of positions."""
    return {name: np.full(one.shape, name == "positions") for name, one in values.items()}


NEIGHBOURS = defined(
    globals(), "graph_aggregate", "graph_aggregate_backward", "graph_attention", "graph_attention_backward"
)
NEIGHBOUR_SCALES: dict[str, Any] = {
    "graph_aggregate": _aggregate_scale,
    "graph_aggregate_backward": _gradient_scale,
    "graph_attention": _attention_scale,
    "graph_attention_backward": _attention_gradient_scale,
}
NEIGHBOUR_OPEN: dict[str, Any] = {"graph_aggregate": _open_positions}
