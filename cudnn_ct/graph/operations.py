"""Graphs of operations as values: tensors and nodes.

A kind of operation is a row of operations.json; its attributes come from its descriptors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from cudnn_doctor.read.files import resource

from ..shapes.specs import TensorSpec


class OpDescriptor(NamedTuple):
    """One kind of operation: its descriptor, the attribute for its parameters, and their descriptor."""

    operation: str
    holder: str = ""
    parameters: str = ""


OPERATIONS = {
    name: OpDescriptor(**row) for name, row in json.loads(resource("cudnn_ct/graph/operations.json")).items()
}


class Tensor(NamedTuple):
    """A tensor of a graph.

    The pointers of tensors in memory are multiples of 16 bytes: with fewer, only the slowest engines remain,
    and more adds none. A tensor with ``same_memory_as`` is not an operand itself: engines may need a
    descriptor for each use.
    """

    uid: int  # unique in a graph and its sub-graphs
    spec: TensorSpec
    virtual: bool = False  # connects two nodes and has no memory
    value: float | int | None = None  # passed by value: the plan hands it to cuDNN from host memory
    ragged: Tensor | None = None  # the offsets (int32 or int64, in elements): an operand of the graph itself
    reordering: str | None = None  # such as ``"f8_128x4"`` for the scales of blocks
    scratch: bool = False  # connects nodes in memory: the plan places it in the workspace
    same_memory_as: int | None = None  # the operand whose pointer it has


class Node(NamedTuple):
    """One operation: the name of its row, its attributes and those of its parameters, by short names.

    The value of an attribute may be a tensor, a tuple of tensors, another node, or a graph: a sub-graph.
    """

    row: str
    attributes: Mapping[str, object]


class Graph(NamedTuple):
    """Operations that one plan computes, and the tensors in memory in the order of a run's pointers.

    Scratch tensors, those that are passed by value, and those with the memory of another tensor are not among
    the ``operands``. The kernels of a ``dynamic`` graph are compiled once for all sizes of its tensors (cuDNN
    >= 9.4); fewer engines support it.
    """

    nodes: tuple[Node, ...]
    operands: tuple[Tensor, ...]
    dynamic: bool = False


def node(row: str, **attributes: object) -> Node:
    """Make a node: ``node("pointwise", mode="relu_fwd", math_prec="float32", xdesc=t, ydesc=y)``."""
    return Node(row, attributes)


def tensors_of_graph(graph: Graph) -> dict[int, Tensor]:
    """Return the tensors of a graph and its sub-graphs by uid."""
    return {tensor.uid: tensor for one in graph.nodes for tensor in _tensors_of(one)}


def _tensors_of(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        yield from _tensors_of(value.ragged)
    elif isinstance(value, Node):
        for attribute in value.attributes.values():
            yield from _tensors_of(attribute)
    elif isinstance(value, tuple | list):  # a graph is the tuple of its nodes and operands
        for element in value:
            yield from _tensors_of(element)


def mapped_graph(
    graph: Graph,
    tensor: Callable[[Tensor], Tensor] = lambda one: one,
    node: Callable[[Node], Node] = lambda one: one,
) -> Graph:
    """Return a graph with changed tensors and nodes, sub-graphs included."""
    nodes, operands = (tuple(_mapped(one, tensor, node) for one in part) for part in graph[:2])
    return Graph(nodes, operands)


def _mapped(value: Any, tensor: Callable[[Tensor], Tensor], node: Callable[[Node], Node]) -> Any:
    """Return a part of a graph with changed tensors and nodes."""
    if isinstance(value, Tensor):
        ragged = None if value.ragged is None else _mapped(value.ragged, tensor, node)
        return tensor(value)._replace(ragged=ragged)
    if isinstance(value, Graph):
        return mapped_graph(value, tensor, node)
    if isinstance(value, Node):
        changed = node(value)
        attributes = {name: _mapped(each, tensor, node) for name, each in changed.attributes.items()}
        return changed._replace(attributes=attributes)
    if isinstance(value, tuple) and any(isinstance(each, Tensor) for each in value):
        return tuple(_mapped(each, tensor, node) for each in value)
    return value


def why_static(graph: Graph) -> str:
    """Return why a graph should not be dynamic; an empty text if it may be."""
    # Only graphs whose results at other sizes were compared on a GPU may be. No engine supports dynamic
    # graphs of pointwise operations and reductions alone, in 9.19 and 9.28.
    rows = {one.row for one in graph.nodes}
    dtypes = {tensor.spec.dtype for tensor in tensors_of_graph(graph).values()}
    untested = [*sorted(rows - _COMPARED_ROWS), *sorted(dtypes - _COMPARED_DTYPES)]
    if wrong := why_wrong_if_dynamic(graph):
        return wrong
    if untested:
        return f"dynamic graphs with {untested[0]} were not compared with static ones"
    if "matmul" not in rows:
        return "cuDNN has no engine for dynamic graphs of pointwise operations"
    return ""


_COMPARED_ROWS = {"matmul", "pointwise"}
_COMPARED_DTYPES = {"float16", "bfloat16", "float32"}


def why_wrong_if_dynamic(graph: Graph) -> str:
    """Return why a dynamic graph would be computed wrong; an empty text if that was not seen."""
    # Found with cuDNN 9.19 on an H200: attention and gradients of norms were wrong, RMS norms ended the
    # process. 9.28 compiles norms for each number of rows although it has the kernels.
    rows = [one.row for one in graph.nodes]
    if not any(row.startswith("norm_") for row in rows) and rows.count("matmul") < 2:
        return ""
    return (
        "cuDNN computes wrong results for other sizes of dynamic graphs with attention or norms, or crashes"
    )
