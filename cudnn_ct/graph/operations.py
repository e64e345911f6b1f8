"""Graphs of operations as values, tensors and nodes, and the native graph of them.

A kind of operation is a row of a table; its attributes come from its descriptors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import gcd
from operator import mul
from typing import Any, NamedTuple

from ..context import Context
from ..errors import NotSupportedError
from ..shapes.specs import ALIGNMENT, TensorSpec
from .attributes import kind
from .backend import BackendDescriptor
from .kernels import kernel_cache
from .layouts import check_layouts
from .offline import Planner, target, target_of


class OpDescriptor(NamedTuple):
    """One kind of operation: its descriptor, the attribute for its parameters, and their descriptor."""

    operation: str
    holder: str = ""
    parameters: str = ""


# Operations without a descriptor of parameters, which cuDNN gives the same names.
_PLAIN = (
    "norm_forward", "norm_backward", "gen_stats", "bn_finalize_statistics", "diagonal_band_mask",
    "paged_cache_load", "softmax", "reshape", "transpose", "slice", "concat", "signal",
    "block_scale_quantize", "block_scale_dequantize", "expand_band_matrix", "contract_band_matrix",
    "moe_grouped_matmul",
)  # fmt: skip
OPERATIONS = {
    "conv_forward": OpDescriptor("operation_convolution_forward", "conv_desc", "convolution"),
    "conv_backward_data": OpDescriptor("operation_convolution_backward_data", "conv_desc", "convolution"),
    "conv_backward_filter": OpDescriptor("operation_convolution_backward_filter", "conv_desc", "convolution"),
    "pointwise": OpDescriptor("operation_pointwise", "pw_descriptor", "pointwise"),
    "matmul": OpDescriptor("operation_matmul", "desc", "matmul"),
    "reduction": OpDescriptor("operation_reduction", "desc", "reduction"),
    "resample_forward": OpDescriptor("operation_resample_fwd", "desc", "resample"),
    "resample_backward": OpDescriptor("operation_resample_bwd", "desc", "resample"),
    "bn_backward_weights": OpDescriptor("operation_bn_bwd_weights"),
    "sdpa_forward": OpDescriptor("operation_sdpa_fwd"),
    "sdpa_backward": OpDescriptor("operation_sdpa_bwd"),
    "rope_forward": OpDescriptor("operation_rope_fwd"),
    "rope_backward": OpDescriptor("operation_rope_bwd"),
    "rng": OpDescriptor("operation_rng", "desc", "rng"),
    "moe_grouped_matmul_backward": OpDescriptor("operation_moe_grouped_matmul_bwd"),
    **{name: OpDescriptor(f"operation_{name}") for name in _PLAIN},
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

    def mapped(value: Any) -> Any:
        if isinstance(value, Tensor):
            ragged = None if value.ragged is None else mapped(value.ragged)
            return tensor(value)._replace(ragged=ragged)
        if isinstance(value, Graph):
            return mapped_graph(value, tensor, node)
        if isinstance(value, Node):
            changed = node(value)
            return changed._replace(
                attributes={name: mapped(each) for name, each in changed.attributes.items()}
            )
        if isinstance(value, tuple) and any(isinstance(each, Tensor) for each in value):
            return tuple(mapped(each) for each in value)
        return value

    return Graph(tuple(mapped(one) for one in graph.nodes), tuple(mapped(one) for one in graph.operands))


def why_static(graph: Graph) -> str:
    """Return why a graph should not be dynamic; an empty text if it may be.

    Only graphs whose results at other sizes were compared on a GPU may be. No engine supports dynamic graphs
    of pointwise operations and reductions alone, in 9.19 and 9.28.
    """
    rows = {one.row for one in graph.nodes}
    dtypes = {tensor.spec.dtype for tensor in tensors_of_graph(graph).values()}
    untested = [*sorted(rows - _COMPARED_ROWS), *sorted(dtypes - _COMPARED_DTYPES)]
    if _is_wrong_if_dynamic(graph):
        return _WRONG_IF_DYNAMIC
    if untested:
        return f"dynamic graphs with {untested[0]} were not compared with static ones"
    if "matmul" not in rows:
        return "cuDNN has no engine for dynamic graphs of pointwise operations"
    return ""


_WRONG_IF_DYNAMIC = (
    "cuDNN computes wrong results for other sizes of dynamic graphs with attention or norms, or crashes"
)
_COMPARED_ROWS = {"matmul", "pointwise"}
_COMPARED_DTYPES = {"float16", "bfloat16", "float32"}


def _is_wrong_if_dynamic(graph: Graph) -> bool:
    # Found with cuDNN 9.19 on an H200: attention and gradients of norms were wrong, RMS norms ended the
    # process. 9.28 compiles norms for each number of rows although it has the kernels.
    rows = [one.row for one in graph.nodes]
    return any(row.startswith("norm_") for row in rows) or rows.count("matmul") > 1


def _native_graph(graph: Graph, context: Context | Planner) -> BackendDescriptor:
    check_layouts(graph, target_of(context))
    attributes = target(context, "operationgraph")
    if not graph.dynamic:
        return _NativeTensors(context.library).graph(graph, attributes)
    if _is_wrong_if_dynamic(graph):
        raise NotSupportedError(f"{_WRONG_IF_DYNAMIC}; make a graph that is not dynamic")
    attributes["is_dynamic_shape_enabled"] = True
    native = _NativeTensors(context.library).graph(graph, attributes)
    native.kernel_cache = kernel_cache(native, _topology(graph), context)
    return native


def _topology(graph: Graph) -> str:
    """Return all of a graph that its compiled kernels may depend on; graphs with the same text share them.

    cuDNN would share kernels for any sizes. Here the contiguous axes have to be equal, such as the inner
    axes of a product: they decide how kernels load and what a block computes. Tensors with fewer axes, such
    as a bias, do not count, because their contiguous axis is another.
    """
    tensors = tensors_of_graph(graph)
    long = [
        [pair for pair in zip(one.spec.strides, one.spec.shape, strict=True) if pair[1] != 1]
        for one in tensors.values()
    ]
    most = max(map(len, long))
    inner = [min(pairs) for pairs in long if pairs and len(pairs) == most]
    order = [tensor.uid for tensor in graph.operands]
    return repr((_named(graph.nodes), order, inner, list(map(_without_sizes, tensors.values()))))


def _named(value: Any) -> Any:
    """Return nodes and graphs with the numbers of their tensors."""
    if isinstance(value, Tensor):
        return "tensor", value.uid
    if isinstance(value, Node):
        return value.row, [(name, _named(one)) for name, one in value.attributes.items()]
    if isinstance(value, tuple | list):
        return list(map(_named, value))
    return value


def _without_sizes(tensor: Tensor) -> Any:
    """Return a tensor with the facts of its spec that compiled kernels depend on, and without its value.

    These are the dtype, the axes of length 1, the order and the alignment of the strides, and whether offsets
    fit 31 bits.
    """
    shape, strides, dtype = tensor.spec
    order = sorted(range(len(shape)), key=strides.__getitem__)
    aligned = [
        0 if length == 1 else gcd(stride, ALIGNMENT) for length, stride in zip(shape, strides, strict=True)
    ]
    small = sum(map(mul, shape, strides)) * ALIGNMENT < 2**31
    facts = dtype, [length == 1 for length in shape], order, aligned, small
    uid, _, virtual, value, ragged, *others = tensor
    return uid, facts, virtual, value is not None, _named(ragged), others


_NUMBERS = {int, float, bool, str}


class _NativeTensors:
    """Makes the native objects of a graph; tensors are shared by its nodes and sub-graphs."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._tensors: dict[Tensor, BackendDescriptor] = {}

    def graph(self, graph: Graph, attributes: Mapping[str, Any]) -> BackendDescriptor:
        """Return the descriptor of a graph; a sub-graph has no other attributes."""
        operations = [self._operation(*one) for one in graph.nodes]
        return BackendDescriptor(self._library, "operationgraph", **attributes, ops=operations)

    def native(self, value: Any) -> Any:
        """Return the descriptor of a tensor, a node or a graph, and other values unchanged."""
        if isinstance(value, Tensor):
            if value not in self._tensors:
                self._tensors[value] = self._tensor(value)
            return self._tensors[value]
        if isinstance(value, Graph):
            return self.graph(value, {})
        if isinstance(value, Node):
            return self._operation(*value)
        if isinstance(value, tuple | list):
            return [self.native(element) for element in value]
        return value

    def _tensor(self, tensor: Tensor) -> BackendDescriptor:
        return BackendDescriptor(
            self._library,
            "tensor",
            unique_id=tensor.uid,
            data_type=tensor.spec.dtype,
            dimensions=tensor.spec.shape,
            strides=tensor.spec.strides,
            byte_alignment=ALIGNMENT,
            is_virtual=tensor.virtual or None,
            is_by_value=True if tensor.value is not None else None,
            ragged_offset_desc=tensor.ragged and self.native(tensor.ragged),
            reordering_mode=tensor.reordering,
        )

    def _operation(self, name: str, attributes: Mapping[str, Any]) -> BackendDescriptor:
        """Build an operation; an attribute belongs to its parameters if they have one of that name."""
        row = OPERATIONS[name]
        known = kind(row.parameters).attributes if row.parameters else {}
        own, given = dict[str, Any](), dict[str, Any]()
        for attribute, value in attributes.items():
            if attribute in known:
                given[attribute] = value
            else:
                own[attribute] = value if type(value) in _NUMBERS else self.native(value)
        if row.parameters:
            own[row.holder] = BackendDescriptor(self._library, row.parameters, **given)
        return BackendDescriptor(self._library, row.operation, **own)
