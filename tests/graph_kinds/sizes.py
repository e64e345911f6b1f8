"""Graphs of a kind with another length of an axis."""

from __future__ import annotations

from math import prod
from typing import Any

from cudnn_ct.graph.operations import Graph, Node, Tensor

__all__ = ["with_length"]


def with_length(graph: Graph, before: int, length: int, *, dynamic: bool = True) -> Graph:
    """Return a graph in which another length replaces ``before``; tensors keep their memory order."""

    def resized(value: Any) -> Any:
        if isinstance(value, Node):
            return Node(value.row, {name: resized(one) for name, one in value.attributes.items()})
        if isinstance(value, Graph):
            return Graph(tuple(map(resized, value.nodes)), tuple(map(resized, value.operands)))
        if not isinstance(value, Tensor):
            return value
        spec = value.spec
        shape = tuple(length if one == before else one for one in spec.shape)
        axes = list(zip(shape, spec.shape, spec.strides, strict=True))
        strides = tuple(prod(new for new, old, s in axes if s < step and old > 1) for step in spec.strides)
        return value._replace(spec=spec._replace(shape=shape, strides=strides))

    return resized(graph)._replace(dynamic=dynamic)
