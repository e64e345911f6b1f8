"""The native graphs of graphs as values, and the compiled kernels that dynamic graphs share."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from operator import mul
from typing import Any

from ..context import Context
from ..errors import CudnnError, NotSupportedError
from ..shapes.specs import ALIGNMENT
from .attributes import kind
from .layouts import check_layouts
from .offline import Planner, gpu_name, target, target_of
from .operations import OPERATIONS, Graph, Node, Tensor, tensors_of_graph, why_wrong_if_dynamic
from .plan import BackendDescriptor
from .plan_store import StoredPlan, key_here, plan_store, why_elsewhere


def operation_graph(graph: Graph, context: Context | Planner) -> BackendDescriptor:
    """Return the native graph, for the device of a context or of a planner; a context has the last one."""
    # The heuristics and the plan of a new problem need the same graph.
    if isinstance(context, Planner):
        return _native_graph(graph, context)
    text = repr(graph)  # unlike equality, it distinguishes 0.0 and -0.0
    if context.last_graph is None or context.last_graph[0] != text:
        context.last_graph = text, _native_graph(graph, context)
    native: BackendDescriptor = context.last_graph[1]
    return native


def _native_graph(graph: Graph, context: Context | Planner) -> BackendDescriptor:
    check_layouts(graph, target_of(context))
    attributes = target(context, "operationgraph")
    if graph.dynamic:
        if wrong := why_wrong_if_dynamic(graph):
            raise NotSupportedError(f"{wrong}; make a graph that is not dynamic")
        attributes["is_dynamic_shape_enabled"] = True
    native = _NativeTensors(context.library).graph(graph, attributes)
    if graph.dynamic:
        native.kernel_cache = kernel_cache(native, _topology(graph), context)
    return native


def _topology(graph: Graph) -> str:
    """Return all of a graph that its compiled kernels may depend on; graphs with the same text share them."""
    # cuDNN would share kernels for any sizes. Here the contiguous axes have to be equal, such as the inner
    # axes of a product: they decide how kernels load and what a block computes. Tensors with fewer axes, such
    # as a bias, do not count, because their contiguous axis is another.
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
    """Return a tensor with the facts of its spec that compiled kernels depend on, and without its value."""
    # These are the dtype, the axes of length 1, the order and the alignment of the strides, and whether
    # offsets fit 31 bits.
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


# --- the store of compiled kernels --------------------------------------------------------------------------


PREFIX = "kernels"
UNKNOWN = 2**62  # kernels, of a cuDNN that does not count them


class KernelCache(BackendDescriptor):
    """Compiled kernels that dynamic graphs share which differ only in sizes."""

    __slots__ = ("first", "key", "stored")

    def __init__(self, graph: BackendDescriptor, key: str, kernels: bytes | None = None) -> None:
        super().__init__(
            graph.library, "kernel_cache", operation_graph=graph, json_representation=kernels or None
        )
        # The engine that the heuristics returned for the last size they were queried for, and its notes.
        self.first: tuple[str, tuple[str, ...]] | None = None
        self.key, self.stored = key, 0  # the key of the store, and how many kernels it has

    def entry(self, facts: dict[str, Any]) -> StoredPlan | None:
        """Return the kernels for the store; None if it has all of them, or this cuDNN does not count them."""
        try:
            count = self.one("entry_count") if self.stored < UNKNOWN else 0
            text = self.get("json_representation").encode() if count > self.stored else b""
        except CudnnError:  # it is not asked again
            count, text = UNKNOWN, b""
        self.stored = max(self.stored, count)
        return StoredPlan(self.key, {**facts, "first": self.first}, text) if text else None


def kernel_cache(graph: BackendDescriptor, topology: str, context: Context | Planner) -> KernelCache:
    """Return the kernels for dynamic graphs of a topology: of this thread, of the store, or none yet."""
    found: KernelCache | None = context.kernel_caches.get(topology)
    if found is None:
        key = f"{PREFIX} | {context.library.build} | {gpu_name(context)} | {topology}"
        found = context.kernel_caches[topology] = _stored(graph, key, context) or KernelCache(graph, key)
    return found


def _stored(graph: BackendDescriptor, key: str, context: Context | Planner) -> KernelCache | None:
    store = plan_store()
    key = key_here(store, key, context)
    entry = store.get(key)
    if entry is None:
        return None
    if wrong := why_elsewhere(entry.text, entry.facts, context):
        store.discard(key, wrong)
        return None
    try:
        cache = KernelCache(graph, key, entry.text)
        cache.stored = cache.one("entry_count")
        first = entry.facts["first"]
        cache.first = first and (str(first[0]), tuple(map(str, first[1])))
    except (CudnnError, LookupError, TypeError) as error:
        reason, _, _ = str(error).partition("\n")
        store.discard(key, f"its kernels cannot be used: {type(error).__name__} {reason}")
        return None
    return cache
