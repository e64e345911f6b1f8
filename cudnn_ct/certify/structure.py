"""The structure of a graph: all of it that decides whether an engine computes it right.

Wrong results of engines depend on kinds of nodes, dtypes, layouts, and on whether lengths are odd, multiples
of vectors and tiles, or large. Graphs with the same structure share a certificate.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from ..dtypes import GRAPH_DTYPES
from ..graph.operations import Graph, Node, Tensor, tensors_of_graph
from ..shapes.specs import ALIGNMENT, TensorSpec

TILE = 64  # elements; lengths with the same common divisor with it are in one class
OCTAVES = 2  # lengths from one power of 4 to the next are in one class


def structure_of(graph: Graph) -> str:
    """Return the structure of a graph as text.

    Values of float constants are left out, except for their class: 0, 1, negative, infinite or another one.
    """
    tensors = tensors_of_graph(graph)
    number = {uid: place for place, uid in enumerate(tensors)}
    rows = [_tensor(tensor, number) for tensor in tensors.values()]
    dynamic = " dynamic" if graph.dynamic else ""
    return f"{_plain(graph.nodes, number)} of {', '.join(rows)}{dynamic}"


def _plain(value: Any, number: dict[int, int]) -> str:
    """Return an attribute as text, with tensors by their numbers."""
    if isinstance(value, Tensor):
        return f"t{number[value.uid]}"
    if isinstance(value, Node):
        given = ", ".join(f"{name}={_plain(one, number)}" for name, one in value.attributes.items())
        return f"{value.row}({given})"
    if isinstance(value, Graph):
        return _plain(value.nodes, number)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_plain(one, number) for one in value)}]"
    return repr(value)


def _tensor(tensor: Tensor, number: dict[int, int]) -> str:
    facts = [tensor.spec.dtype]
    if tensor.value is not None:
        return f"{tensor.spec.dtype} {_kind_of_value(tensor.value)}"
    facts += ["virtual"] if tensor.virtual else []
    facts += ["scratch"] if tensor.scratch else []
    facts += [f"as t{number.get(tensor.same_memory_as, '?')}"] if tensor.same_memory_as else []
    facts += [f"ragged by {_plain(tensor.ragged, number)}"] if tensor.ragged is not None else []
    facts += [tensor.reordering] if tensor.reordering else []
    return f"{' '.join(facts)} {_layout(tensor.spec)}"


def _layout(spec: TensorSpec) -> str:
    """Return the class of each length, the order of the axes in memory, gaps, and aligned strides."""
    shape, strides, dtype = spec
    lengths = "x".join(map(_length, shape))
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    order = "".join(str(axis) for axis in sorted(axes, key=lambda axis: (-strides[axis], axis)))
    itemsize = GRAPH_DTYPES[dtype].itemsize or 1
    aligned = [gcd(strides[axis] * itemsize, ALIGNMENT) for axis in axes if strides[axis] != 1]
    gaps = "" if spec.is_dense else " with gaps"
    return f"{lengths} order {order or '-'} steps {min(aligned, default=ALIGNMENT)}{gaps}"


def _length(length: int) -> str:
    """Return the class of a length: its magnitude, and its common divisor with a tile."""
    if length < 2:
        return str(length)
    return f"{(length.bit_length() - 1) // OCTAVES}d{gcd(length, TILE)}"


def _kind_of_value(value: float) -> str:
    if value in (0, 1):
        return str(int(value))
    if value in (float("inf"), float("-inf")):
        return "infinite"
    return "negative" if value < 0 else "positive"
