"""Broadcasts, layouts and values that engines of cuDNN compute wrong: conditions of facts, and rejections.

Engines that are compiled at run time read some operands with the strides of another tensor, or behind their
end, and cuDNN returns them nevertheless. Random graphs with cuDNN 9.19 found the patterns, those of poolings
on an H100 and the others on an H200. facts.json has a row for each, with its range of versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from math import prod
from typing import Any

from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..facts import Fact, Target, facts, ignores
from ..shapes.specs import LAYOUTS, TensorSpec, equivalent_strides, packed_strides
from .operations import Graph, Node, Tensor

# --- broadcasts --------------------------------------------------------------------------------------------

# A sweep of broadcasts with cuDNN 9.19 on Hopper, and random graphs on an H200, found the right ones: rows
# along the innermost axis in nearly all graphs, and columns of inputs, except for gradients of activations.
# Columns that the graph computes, or that the gradient of an activation reads, are read like a whole tensor.

WORD = 4  # bytes

# Operations that take computed operands, and the name of their result.
CONVOLUTIONS = {"conv_forward": "y", "conv_backward_data": "dx", "conv_backward_filter": "dw"}
PRODUCTS = CONVOLUTIONS | {"matmul": "cdesc"}


def wrong_broadcasts(graph: Graph) -> Iterator[tuple[Tensor, TensorSpec]]:
    """Yield operands of elementwise nodes that engines would repeat wrong, with the spec of the result."""
    # Those for which cuDNN has no engine are among them if all nodes of the graph are elementwise. Attention,
    # which has two products of matrices, reads each tensor with its own strides.
    rows = {one.row for one in graph.nodes}
    if sum(one.row == "matmul" for one in graph.nodes) > 1:
        return
    before = needed_by_products(graph, CONVOLUTIONS)
    computed = _computed(graph)
    for one in _nodes(graph, "pointwise"):
        operands = [tensor for _, tensor in tensors_of_node(one) if tensor.value is None]
        result = max((tensor.spec for tensor in operands), key=lambda spec: spec.size)
        given = [tensor for tensor in operands if tensor.uid != result_of(one)]
        largest = max(given, key=lambda tensor: tensor.spec.size, default=None)
        if rows == {"pointwise"} and largest is not None and largest.spec.shape != result.shape:
            yield largest, result  # engines need an operand of the whole shape
            continue
        for tensor in given:
            of = _Broadcast(one, tensor, result, rows, result_of(one) in before, tensor.uid in computed)
            if tensor.spec.shape != result.shape and not of.is_right():
                yield tensor, result


def wrong_conversions(graph: Graph) -> Iterator[tuple[Tensor, str]]:
    """Yield tensors whose conversion to a wider operand of a product is wrong, with the dtype of the operand.

    Engines load words of adjacent elements. Products of half precision converted to float32 were wrong, or
    ended the CUDA context, where rows are not whole words; those of equal dtypes are right.
    """
    if sum(one.row == "matmul" for one in graph.nodes) > 1:
        return
    needed = needed_by_products(graph)
    converting = [one for one in _nodes(graph, "pointwise") if result_of(one) in needed]
    for one in converting:
        for _, tensor in tensors_of_node(one):
            spec = tensor.spec
            if tensor.value is not None or tensor.virtual or spec.size == 1 or spec.dtype not in DTYPES:
                continue
            width = DTYPES[spec.dtype].itemsize
            known = needed[result_of(one)] & DTYPES.keys()
            wider = sorted(dtype for dtype in known if DTYPES[dtype].itemsize > width)
            if width < WORD and (width == 1 or wider) and not in_words(spec):
                yield tensor, (wider or [""])[0]


def in_words(spec: TensorSpec) -> bool:
    """Return whether engines convert matrices of less than a word an element right before they multiply them.

    They load words of adjacent elements. With cuDNN 9.19, products of more than 32 terms of one byte were
    wrong on an H100 where words cross rows or columns, where rows do not begin at words, and for a single
    column; those of two bytes for any number of terms.
    """
    count = WORD // DTYPES[spec.dtype].itemsize  # elements of a word
    if len(spec.shape) < 2 or spec.shape[-1] == 1:
        return False
    axes = [(n, step) for n, step in zip(spec.shape, spec.strides, strict=True) if n > 1]
    adjacent = [n for n, step in axes if step == 1]
    apart = [step for _, step in axes if step != 1]
    return len(adjacent) == 1 and not any(n % count for n in (*adjacent, *apart))


class _Broadcast:
    """An operand that a node repeats along axes of length 1, and the graph around it."""

    def __init__(
        self, one: Node, tensor: Tensor, result: TensorSpec, rows: set[str], prologue: bool, computed: bool
    ) -> None:
        self.spec, self.result, self.rows, self.prologue = tensor.spec, result, rows, prologue
        self.computed = computed
        self.gradient = str(one.attributes["mode"]).endswith("_bwd")
        self.slope = self.gradient and one.attributes["xdesc"] == tensor  # the operand of the activation
        self.axes = [axis for axis, length in enumerate(self.spec.shape) if length > 1]

    def is_right(self) -> bool:
        """Return whether engines repeat the operand right."""
        if self.gradient and not self._in_gradient():
            return False
        if self.computed and not self._is_row():
            return False
        return not self.axes or self._in_graph()

    def _in_gradient(self) -> bool:
        """Return whether the gradient of an activation reads a smaller operand right."""
        if "matmul" in self.rows:
            return False  # not measured
        if not self.axes:
            return self.slope
        if self.rows & set(CONVOLUTIONS):
            last = is_channels_last(self.spec) and is_channels_last(self.result)
            return self.slope and self.axes == [1] and last
        return self._is_row() or self._is_row_of_each()

    def _in_graph(self) -> bool:
        """Return whether the other operations of the graph allow a smaller operand of several elements."""
        if "matmul" in self.rows:
            return len(self.axes) < 2 or self._in_order()
        if self.rows & set(CONVOLUTIONS):
            if not self.prologue and "conv_backward_filter" in self.rows:
                return False
            return self.axes == [1] and (not self.prologue or "nhwc" in self.result.layouts)
        if self.rows == {"pointwise"}:
            shape = self.result.shape
            return len(shape) == 3 and (shape[0] == 1 or self._is_row_of_each() or self.axes == [0, 1])
        return True

    def _is_row(self) -> bool:
        """Return whether the only axis is the innermost one of the result in memory; none for one element."""
        long = [axis for axis, length in enumerate(self.result.shape) if length > 1]
        return self.axes == sorted(long, key=lambda axis: self.result.strides[axis])[:1]

    def _is_row_of_each(self) -> bool:
        """Return whether there is a row for each of several matrices."""
        return self.rows == {"pointwise"} and len(self.result.shape) == 3 and self.axes == [0, 2]

    def _in_order(self) -> bool:
        """Return whether the axes have the order in memory that those of the result have."""

        def order(one: TensorSpec) -> list[int]:
            return sorted(self.axes, key=lambda axis: -one.strides[axis])

        return order(self.spec) == order(self.result)


def is_channels_last(spec: TensorSpec) -> bool:
    """Return whether all strides, those of axes of length 1 too, are those of channels last."""
    return spec.strides == packed_strides(spec.shape, "nhwc")


def needed_by_products(graph: Graph, products: Collection[str] = PRODUCTS) -> dict[int, set[str]]:
    """Return the uids of tensors that are computed for products, and the dtypes of the products' operands."""
    needed: dict[int, set[str]] = {}
    for one in reversed(graph.nodes):
        if one.row in products:
            for _, tensor in tensors_of_node(one):
                if tensor.uid != result_of(one):
                    needed.setdefault(tensor.uid, set()).add(tensor.spec.dtype)
        if one.row == "pointwise" and result_of(one) in needed:
            for _, tensor in tensors_of_node(one):
                needed.setdefault(tensor.uid, set()).update(needed[result_of(one)])
    return needed


def result_of(one: Node) -> int:
    """Return the uid of the result of an elementwise node, a convolution or a product."""
    name = PRODUCTS.get(one.row, "dxdesc" if "dxdesc" in one.attributes else "ydesc")
    tensor: Any = one.attributes[name]
    return int(tensor.uid)


def tensors_of_node(one: Node) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a node with the names of the attributes."""
    for name, value in one.attributes.items():
        if isinstance(value, Tensor):
            yield name, value


def _nodes(graph: Graph, row: str, mode: str = "") -> Iterator[Node]:
    """Return the nodes of a kind, and of a mode if one is given."""
    return (one for one in graph.nodes if one.row == row and mode in ("", one.attributes.get("mode")))


def _computed(graph: Graph) -> set[int]:
    """Return the uids of tensors that elementwise nodes compute from tensors in memory."""
    found: set[int] = set()
    for one in _nodes(graph, "pointwise"):
        given = [tensor for _, tensor in tensors_of_node(one) if tensor.uid != result_of(one)]
        if any(tensor.value is None and (not tensor.virtual or tensor.uid in found) for tensor in given):
            found.add(result_of(one))
    return found


# --- layouts -----------------------------------------------------------------------------------------------

NATIVE = "native graph"  # the operation of these facts
BROADCASTS, CONVERSIONS = "a broadcast that engines read wrong", "rows of part words converted for a product"

# Averages whose divisor includes the padding.
_COUNTING_PADDING = ("avgpool", "avgpool_include_padding")


def check_layouts(graph: Graph, target: Target) -> None:
    """Raise NotSupportedError if a fact says that engines compute a graph wrong."""
    # Attention, which has two products of matrices, reads each tensor with its own strides.
    if sum(one.row == "matmul" for one in graph.nodes) > 1:
        return
    if len(graph.nodes) == 1 and graph.nodes[0].row in CONVOLUTIONS:
        return  # most graphs: facts about a convolution alone are about engines
    rejections = facts("reject", NATIVE, target)
    for name, tensors_that_meet in CONDITIONS.items():
        for fact in rejections:
            if name in fact.when:
                for detail in tensors_that_meet(graph):
                    if not ignores(fact.name):
                        raise NotSupportedError(_reason(fact, detail))


def known(condition: str, target: Target) -> bool:
    """Return whether a fact about native graphs has a condition."""
    return any(condition in fact.when and not ignores(fact.name) for fact in facts("reject", NATIVE, target))


def _reason(fact: Fact, detail: str) -> str:
    return fact._replace(message=f"{fact.message}: {detail}").reason if detail else fact.reason


# --- conditions: each yields the tensors that meet it ------------------------------------------------------


def _specs(one: Node) -> dict[str, TensorSpec]:
    return {name: tensor.spec for name, tensor in tensors_of_node(one)}


def _listed(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{name} {spec}" for name, spec in specs.items())


def _norm_and_gradient(graph: Graph) -> Iterator[str]:
    modes = [str(one.attributes.get("mode")) for one in graph.nodes]
    if any(_nodes(graph, "norm_forward")) and any(mode.endswith("_bwd") for mode in modes):
        yield ""


def _part_words(graph: Graph) -> Iterator[str]:
    for tensor, dtype in wrong_conversions(graph):
        count = WORD // DTYPES[tensor.spec.dtype].itemsize
        wanted = f"its contiguous axis and its other strides must be multiples of {count}"
        yield f"got {tensor.spec}{f' converted to {dtype}' if dtype else ''}; {wanted}"


def _images(graph: Graph) -> Iterator[tuple[Node, dict[str, TensorSpec], bool]]:
    """Yield each convolution among other nodes, its tensors, and whether these have a common layout."""
    if len(graph.nodes) > 1:
        for one in graph.nodes:
            if one.row in CONVOLUTIONS:
                specs = _specs(one)
                common = any(all(name in spec.layouts for spec in specs.values()) for name in LAYOUTS)
                yield one, specs, common


def _one_pixel(graph: Graph) -> Iterator[str]:
    """Engines read a result of one pixel as channels last: channels are adjacent in both layouts."""
    for one, specs, common in _images(graph):
        pixels = prod(specs[CONVOLUTIONS[one.row]].shape[2:])
        if common and pixels == 1 and not all(map(is_channels_last, specs.values())):
            yield _listed(specs)


def _two_half_precisions(graph: Graph) -> Iterator[str]:
    """Engine 2 accepts them and computes wrong results; all other engines reject them."""
    for one, specs, _ in _images(graph):
        result = CONVOLUTIONS[one.row]
        operands = {name: spec for name, spec in specs.items() if name != result}
        if {spec.dtype for spec in operands.values()} == {"float16", "bfloat16"}:
            yield _listed(operands)


def _reduction_with_gaps(graph: Graph) -> Iterator[str]:
    """The gaps are cleared too before elements are added."""
    for one in _nodes(graph, "reduction"):
        y: Any = one.attributes["ydesc"]
        if not (y.virtual or y.spec.is_dense):
            yield f"got {y.spec}"


def _narrow_sums(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "gen_stats"):
        for name in ("sumdesc", "sqsumdesc"):
            y: Any = one.attributes.get(name)
            if y is not None and y.spec.dtype != "float32":
                yield f"got {y.spec}"


def _indices_of_pooling(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "resample_forward"):
        specs = _specs(one)
        if "idxdesc" in specs and not all(map(is_channels_last, specs.values())):
            yield _listed(specs)


def _computed_pooling(graph: Graph) -> Iterator[str]:
    results = {result_of(other) for other in _nodes(graph, "pointwise")}
    for one in _nodes(graph, "resample_forward"):
        x: Any = one.attributes["xdesc"]
        if x.virtual or x.uid in results:
            yield ""


def _averages_with_padding(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "resample_forward"):
        values: dict[str, Any] = one.attributes  # type: ignore[assignment]
        before, after, specs = values["pre_paddings"], values["post_paddings"], _specs(one)
        longer = any(more > less for less, more in zip(before, after, strict=True))
        counts = values["mode"] in _COUNTING_PADDING
        if counts and longer and not all(map(is_channels_last, specs.values())):
            yield f"got padding {before} and {after}"


def _computed_choice(graph: Graph) -> Iterator[str]:
    of_products, uses = needed_by_products(graph), _uses(graph)
    for one in _nodes(graph, "pointwise", "binary_select"):
        if result_of(one) in of_products:
            tensors: list[Any] = [one.attributes[name] for name in ("xdesc", "bdesc")]
            # Each must be an input of the graph that one node reads.
            if any(one.value is not None or one.virtual or uses[one.uid] != 1 for one in tensors):
                yield ""


def _first_index(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "pointwise", "gen_index"):
        x: Any = one.attributes["xdesc"]
        if one.attributes["axis"] == 0 and len(x.spec.shape) == 3 and x.spec.shape[0] > 1:
            yield f"got a gen_index of {x.spec} along axis 0"


def _identity_of_used(graph: Graph) -> Iterator[str]:
    uses = _uses(graph)
    for one in _nodes(graph, "pointwise", "identity"):
        tensors = dict(tensors_of_node(one))
        x, y = (tensors[name] for name in ("xdesc", "ydesc"))
        if x.virtual and uses[x.uid] > 2 and x.spec.dtype == y.spec.dtype:
            yield ""


def _other_strides(graph: Graph) -> Iterator[str]:
    for one in _nodes(graph, "pointwise"):
        specs = [tensor.spec for _, tensor in tensors_of_node(one) if tensor.value is None]
        result = max(specs, key=lambda spec: spec.size)
        for spec in (spec for spec in specs if spec.shape == result.shape):
            if not equivalent_strides(spec.shape, spec.strides, result.strides):
                yield f"got {spec} and {result}"


def _shared_element(graph: Graph) -> Iterator[str]:
    products = (_specs(one)["cdesc"].shape for one in _nodes(graph, "matmul"))
    if any(shape[-1] == 1 < prod(shape[:-2]) for shape in products):
        for one in _nodes(graph, "pointwise"):
            for _, tensor in tensors_of_node(one):
                if tensor.spec.size == 1 and tensor.value is None and not tensor.virtual:
                    yield f"got {tensor.spec}"


def _uses(graph: Graph) -> Counter[int]:
    """Return the number of nodes that have each tensor; its producer is one of them."""
    return Counter(tensor.uid for one in graph.nodes for _, tensor in tensors_of_node(one))


CONDITIONS: dict[str, Callable[[Graph], Iterator[str]]] = {
    "a norm and the gradient of an activation": _norm_and_gradient,
    CONVERSIONS: _part_words,
    "a convolution whose tensors differ in layout": lambda graph: (
        _listed(specs) for _, specs, common in _images(graph) if not common
    ),
    "a convolution to one pixel that is not in NHWC": _one_pixel,
    "a convolution of float16 and bfloat16": _two_half_precisions,
    "one element beside several products of one column": _shared_element,
    "a reduction to a tensor with gaps": _reduction_with_gaps,
    "sums of channels that are not float32": _narrow_sums,
    "indices of a pooling that is not in NHWC": _indices_of_pooling,
    "a pooling of a computed tensor": _computed_pooling,
    "averages with more padding behind than before": _averages_with_padding,
    "a selection from computed tensors for a product": _computed_choice,
    "an index along the first of three axes": _first_index,
    "an identity of a tensor with other uses": _identity_of_used,
    "elementwise operands of different layouts": _other_strides,
    BROADCASTS: lambda graph: (f"{x.spec} is broadcast to {shape}" for x, shape in wrong_broadcasts(graph)),
}
"""The conditions of facts about native graphs, by name; a fact has one of them."""
