"""Graphs of operations as values, tensors and nodes, and the native graph of them.

A kind of operation is a row of a table; its attributes come from its descriptors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..context import Context
from ..errors import NotSupportedError
from ..shapes.specs import ALIGNMENT, TensorSpec, equivalent_strides
from .attributes import kind
from .backend import BackendDescriptor
from .offline import Planner, target

__all__ = ["ALIGNMENT", "OPERATIONS", "Graph", "Node", "Tensor", "node", "operation_graph"]


class OpDescriptor(NamedTuple):
    """One kind of operation: its descriptor, the attribute for its parameters, and their descriptor."""

    operation: str
    holder: str = ""
    parameters: str = ""


OPERATIONS = {
    "conv_forward": OpDescriptor("operation_convolution_forward", "conv_desc", "convolution"),
    "conv_backward_data": OpDescriptor("operation_convolution_backward_data", "conv_desc", "convolution"),
    "conv_backward_filter": OpDescriptor("operation_convolution_backward_filter", "conv_desc", "convolution"),
    "pointwise": OpDescriptor("operation_pointwise", "pw_descriptor", "pointwise"),
    "matmul": OpDescriptor("operation_matmul", "desc", "matmul"),
    "reduction": OpDescriptor("operation_reduction", "desc", "reduction"),
    "resample_forward": OpDescriptor("operation_resample_fwd", "desc", "resample"),
    "resample_backward": OpDescriptor("operation_resample_bwd", "desc", "resample"),
    "norm_forward": OpDescriptor("operation_norm_forward"),
    "norm_backward": OpDescriptor("operation_norm_backward"),
}


class Tensor(NamedTuple):
    """A tensor of a graph.

    ``uid`` is unique in a graph. A virtual tensor connects two nodes and has no memory. The pointers of other
    tensors are multiples of 16 bytes: with fewer, only the slowest engines remain, and more adds none.
    """

    uid: int
    spec: TensorSpec
    virtual: bool = False


class Node(NamedTuple):
    """One operation: the name of its row, its attributes and those of its parameters, by short names."""

    row: str
    attributes: Mapping[str, object]


class Graph(NamedTuple):
    """Operations that one plan computes, and the tensors in memory in the order of a run's pointers."""

    nodes: tuple[Node, ...]
    operands: tuple[Tensor, ...]


def node(row: str, **attributes: object) -> Node:
    """Make a node: ``node("pointwise", mode="relu_fwd", math_prec="float32", xdesc=t, ydesc=y)``."""
    return Node(row, attributes)


def operation_graph(graph: Graph, context: Context | Planner) -> BackendDescriptor:
    """Return the native graph, for the device of a context or of a planner; a context has the last one.

    The heuristics and the plan of a new problem need the same graph.
    """
    if isinstance(context, Planner):
        return _native_graph(graph, context)
    text = repr(graph)  # unlike equality, it distinguishes 0.0 and -0.0
    if context.last_graph is None or context.last_graph[0] != text:
        context.last_graph = text, _native_graph(graph, context)
    native: BackendDescriptor = context.last_graph[1]
    return native


def _native_graph(graph: Graph, context: Context | Planner) -> BackendDescriptor:
    for one in graph.nodes:
        _check_layouts(one)
    library = context.library
    tensors: dict[Tensor, BackendDescriptor] = {}

    def native(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value not in tensors:
            tensors[value] = _tensor(library, value)
        return tensors[value]

    operations = [_operation(library, *one, native) for one in graph.nodes]
    return BackendDescriptor(library, "operationgraph", **target(context, "operationgraph"), ops=operations)


def _check_layouts(one: Node) -> None:
    """Raise unless all tensors of a pointwise node with the result's shape have its strides.

    Runtime-compiled engines read all of them with the strides of one. cuDNN 9.19 returns such an engine (52)
    for tensors of different strides too, and its results are wrong.
    """
    if one.row != "pointwise":
        return
    specs = [value.spec for value in one.attributes.values() if isinstance(value, Tensor)]
    result = max(specs, key=lambda spec: spec.size)
    for spec in specs:
        if spec.shape == result.shape and not equivalent_strides(spec.shape, spec.strides, result.strides):
            raise NotSupportedError(f"operands differ in layout: got {spec} and {result}")


def _tensor(library: Any, tensor: Tensor) -> BackendDescriptor:
    return BackendDescriptor(
        library,
        "tensor",
        unique_id=tensor.uid,
        data_type=tensor.spec.dtype,
        dimensions=tensor.spec.shape,
        strides=tensor.spec.strides,
        byte_alignment=ALIGNMENT,
        is_virtual=tensor.virtual or None,
    )


def _operation(library: Any, name: str, attributes: Mapping[str, Any], native: Any) -> BackendDescriptor:
    """Build an operation; an attribute belongs to its parameters if they have one of that name."""
    row = OPERATIONS[name]
    known = kind(row.parameters).attributes if row.parameters else {}
    own = {name: native(value) for name, value in attributes.items() if name not in known}
    if row.parameters:
        given = {name: value for name, value in attributes.items() if name in known}
        own[row.holder] = BackendDescriptor(library, row.parameters, **given)
    return BackendDescriptor(library, row.operation, **own)
