"""Operands of graphs that engines repeat along axes, or convert, wrong.

Engines that are compiled at run time read some operands with the strides of another tensor, or behind their
end. A sweep of broadcasts with cuDNN 9.19 on Hopper, and random graphs on an H200, found what is right: rows
along the innermost axis in nearly all graphs, and columns of inputs, except for gradients of activations. A
column that the graph computes, or that the gradient of an activation reads, is read like a whole tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ..dtypes import DTYPES
from ..shapes.specs import TensorSpec, packed_strides
from .operations import Graph, Node, Tensor

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
    for one in graph.nodes:
        if one.row != "pointwise":
            continue
        operands = [tensor for _, tensor in tensors_of_node(one) if tensor.value is None]
        result = max((tensor.spec for tensor in operands), key=lambda spec: spec.size)
        given = [tensor for tensor in operands if tensor.uid != result_of(one)]
        largest = max(given, key=lambda tensor: tensor.spec.size, default=None)
        if rows == {"pointwise"} and largest is not None and largest.spec.shape != result.shape:
            yield largest, result  # engines need an operand of the whole shape
            continue
        for tensor in given:
            if tensor.spec.shape == result.shape:
                continue
            of = _Broadcast(one, tensor, result, rows, result_of(one) in before, tensor.uid in computed)
            if not of.is_right():
                yield tensor, result


def wrong_conversions(graph: Graph) -> Iterator[tuple[Tensor, str]]:
    """Yield tensors whose conversion to a wider operand of a product is wrong, with the dtype of the operand.

    Engines load words of adjacent elements. Products of half precision converted to float32 were wrong, or
    ended the CUDA context, where rows are not whole words; those of equal dtypes are right.
    """
    if sum(one.row == "matmul" for one in graph.nodes) > 1:
        return
    needed = needed_by_products(graph)
    for one in graph.nodes:
        if one.row != "pointwise" or result_of(one) not in needed:
            continue
        for _, tensor in tensors_of_node(one):
            spec = tensor.spec
            if tensor.value is not None or tensor.virtual or spec.size == 1 or spec.dtype not in DTYPES:
                continue
            width = DTYPES[spec.dtype].itemsize
            known = sorted(needed[result_of(one)] & DTYPES.keys())
            wider = [dtype for dtype in known if DTYPES[dtype].itemsize > width]
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
            if len(self.result.shape) != 3:
                return False
            return self.result.shape[0] == 1 or self._is_row_of_each() or self.axes == [0, 1]
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


def _computed(graph: Graph) -> set[int]:
    """Return the uids of tensors that elementwise nodes compute from tensors in memory."""
    found: set[int] = set()
    for one in graph.nodes:
        if one.row == "pointwise":
            given = [tensor for _, tensor in tensors_of_node(one) if tensor.uid != result_of(one)]
            if any(tensor.value is None and (not tensor.virtual or tensor.uid in found) for tensor in given):
                found.add(result_of(one))
    return found
