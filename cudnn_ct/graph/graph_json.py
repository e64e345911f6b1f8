"""Graphs as JSON, so that another process or machine can plan them."""

from __future__ import annotations

import json
import numbers
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ..dtypes import GRAPH_DTYPES
from ..shapes.specs import TensorSpec
from .attributes import AsDouble, AsInt32
from .operations import OPERATIONS, Graph, Node, Tensor, tensors_of_graph


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """Return a graph as JSON: its tensors by uid, its nodes, and the uids of its operands."""
    tensors = {**{one.uid: one for one in graph.operands}, **tensors_of_graph(graph)}
    ordered = [_tensor_to_json(tensors[uid]) for uid in sorted(tensors)]
    dynamic = {"dynamic": True} if graph.dynamic else {}
    return {"tensors": ordered, **_nodes_to_json(graph), **dynamic}


def graph_text(graph: Graph) -> str:
    """Return a graph as text that is the same for equal graphs: it has all shapes, strides and attributes."""
    return json.dumps(graph_to_json(graph), sort_keys=True)


def graph_from_json(found: Mapping[str, Any]) -> Graph:
    """Return the graph that :func:`graph_to_json` wrote; raise ValueError if it is malformed."""
    try:
        rows = {int(row["uid"]): row for row in found["tensors"]}
        return _graph(found, rows)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a graph: {type(error).__name__} {error}") from None


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    row: dict[str, Any] = {"uid": tensor.uid, **tensor.spec._asdict()}
    row |= {name: True for name in ("virtual", "scratch") if getattr(tensor, name)}
    given = {name: getattr(tensor, name) for name in ("value", "reordering", "same_memory_as")}
    given["ragged"] = tensor.ragged and tensor.ragged.uid
    return row | {name: value for name, value in given.items() if value is not None}


def _nodes_to_json(graph: Graph) -> dict[str, Any]:
    return {
        "nodes": [_node_to_json(one) for one in graph.nodes],
        "operands": [one.uid for one in graph.operands],
    }


def _node_to_json(one: Node) -> dict[str, Any]:
    return {"row": one.row, "attributes": {key: _to_json(value) for key, value in one.attributes.items()}}


def _to_json(value: Any) -> Any:
    for tag, (kind, encode, _) in _TAGS.items():
        if isinstance(value, kind):
            return {tag: encode(value)}
    if isinstance(value, tuple | list):
        return [_to_json(element) for element in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"an attribute of a graph cannot be written as JSON: got {value!r}")


def _graph(found: Mapping[str, Any], rows: Mapping[int, Any]) -> Graph:
    return Graph(
        tuple(_node(one, rows) for one in found["nodes"]),
        tuple(_tensor(uid, rows) for uid in found["operands"]),
        bool(found.get("dynamic", False)),
    )


def _node(found: Mapping[str, Any], rows: Mapping[int, Any]) -> Node:
    if found["row"] not in OPERATIONS:
        raise ValueError(f"unknown operation in a graph: got {found['row']!r}")
    return Node(found["row"], {key: _value(value, rows) for key, value in found["attributes"].items()})


def _tensor(uid: Any, rows: Mapping[int, Any]) -> Tensor:
    row = rows[uid]
    if row["dtype"] not in GRAPH_DTYPES:
        raise ValueError(f"unknown dtype in a graph: got {row['dtype']!r}")
    shape, strides = (tuple(map(int, row[name])) for name in ("shape", "strides"))
    if len(shape) != len(strides):
        raise ValueError(f"tensor {uid} has {len(shape)} lengths and {len(strides)} strides")
    return Tensor(
        int(uid),
        TensorSpec(shape, strides, row["dtype"]),
        bool(row.get("virtual", False)),
        row.get("value"),
        _tensor(row["ragged"], rows) if "ragged" in row else None,
        row.get("reordering"),
        bool(row.get("scratch", False)),
        None if row.get("same_memory_as") is None else int(row["same_memory_as"]),
    )


def _value(value: Any, rows: Mapping[int, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_value(element, rows) for element in value)
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    return _TAGS[tag][2](content, rows)


# The types of attributes that JSON lacks, by tag: the conversion to JSON, and that back, with all tensors.
_TAGS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any, Mapping[int, Any]], Any]]] = {
    "tensor": (Tensor, lambda tensor: tensor.uid, _tensor),
    "graph": (Graph, _nodes_to_json, _graph),
    "node": (Node, _node_to_json, _node),
    "double": (AsDouble, float, lambda number, _: AsDouble(number)),
    "int32": (AsInt32, int, lambda number, _: AsInt32(number)),
    "fraction": (Fraction, lambda one: [*one.as_integer_ratio()], lambda pair, _: Fraction(*map(int, pair))),
}
