"""Layouts, broadcasts and poolings that engines of cuDNN compute wrong.

Engines that are compiled at run time read some operands with the strides of another tensor, or behind their
end, and cuDNN returns them nevertheless. Random graphs with cuDNN 9.19 found the patterns, those of poolings
on an H100 and the others on an H200.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..shapes.specs import LAYOUTS, TensorSpec, equivalent_strides, packed_strides

if TYPE_CHECKING:
    from .operations import Graph, Node, Tensor

__all__ = ["check_layouts", "in_words"]

WORD = 4  # bytes

# Operations that take computed operands, and the name of their result.
_CONVOLUTIONS = {"conv_forward": "y", "conv_backward_data": "dx", "conv_backward_filter": "dw"}
_PRODUCTS = _CONVOLUTIONS | {"matmul": "cdesc"}

# Averages whose divisor includes the padding.
_COUNTING_PADDING = ("avgpool", "avgpool_include_padding")


def check_layouts(graph: Graph) -> None:
    """Raise NotSupportedError if a node has an operand that engines may read wrong.

    Attention, which has two products of matrices, reads each tensor with its own strides.
    """
    rows = [one.row for one in graph.nodes]
    if rows.count("matmul") > 1:
        return
    before = _needed_by(graph, _CONVOLUTIONS)
    of_products = _needed_by(graph, _PRODUCTS)
    for one in graph.nodes:
        if one.row in _CONVOLUTIONS and len(graph.nodes) > 1:
            _check_convolution(one)
        if one.row == "reduction":
            _check_reduction(one)
        if one.row == "gen_stats":
            _check_sums(one)
        if one.row == "resample_forward":
            _check_pooling(graph, one)
        if one.row != "pointwise":
            continue
        _check_values(graph, one, of_products)
        if _written(one) in of_products:
            _check_bytes(one)
        specs = [tensor.spec for _, tensor in _tensors(one) if tensor.value is None]
        result = max(specs, key=lambda spec: spec.size)
        for spec in specs:
            if spec.shape == result.shape:
                if not equivalent_strides(spec.shape, spec.strides, result.strides):
                    raise NotSupportedError(f"operands differ in layout: got {spec} and {result}")
            elif spec.size > 1 and not _can_broadcast(spec, result, rows, _written(one) in before):
                raise NotSupportedError(
                    f"cuDNN computes wrong results if {spec} is broadcast to {result} in such a graph; pass "
                    "an operand of the whole shape"
                )


def in_words(spec: TensorSpec) -> bool:
    """Return whether engines convert matrices of one byte an element right before they multiply them.

    They load words of adjacent elements. With cuDNN 9.19 on an H100, products of more than 32 terms were
    wrong where words cross rows or columns, where rows do not begin at words, and for a single column.
    """
    if len(spec.shape) < 2 or spec.shape[-1] == 1:
        return False
    axes = [(n, step) for n, step in zip(spec.shape, spec.strides, strict=True) if n > 1]
    adjacent = [n for n, step in axes if step == 1]
    apart = [step for _, step in axes if step != 1]
    return len(adjacent) == 1 and not any(n % WORD for n in (*adjacent, *apart))


def _check_convolution(one: Node) -> None:
    """Raise unless the tensors of a convolution among other nodes are contiguous in one layout.

    Engines read a result of one pixel as channels last, whose channels are adjacent in both layouts.
    """
    specs = {name: tensor.spec for name, tensor in _tensors(one)}
    common = [layout for layout in LAYOUTS if all(layout in spec.layouts for spec in specs.values())]
    listed = ", ".join(f"{name} {spec}" for name, spec in specs.items())
    if not common:
        raise NotSupportedError(
            f"cuDNN computes wrong results unless the tensors of this convolution have one layout: {listed}"
        )
    result = specs[_CONVOLUTIONS[one.row]]
    if prod(result.shape[2:]) == 1 and not all(map(_is_channels_last, specs.values())):
        raise NotSupportedError(
            f"cuDNN computes wrong results of one pixel unless all tensors have the layout nhwc: {listed}"
        )


def _check_reduction(one: Node) -> None:
    """Raise if the result has gaps: cuDNN clears them too before it adds."""
    y: Any = one.attributes["ydesc"]
    if not (y.virtual or y.spec.is_dense):
        raise NotSupportedError(f"cuDNN writes between the elements of a reduction's result: got {y.spec}")


def _check_sums(one: Node) -> None:
    """Raise unless sums of channels are float32, which engines write whatever the result is."""
    for name in ("sumdesc", "sqsumdesc"):
        y: Any = one.attributes.get(name)
        if y is not None and y.spec.dtype != "float32":
            raise NotSupportedError(
                f"gen_stats adds in float32: cuDNN ends the CUDA context for sums in {y.spec}"
            )


def _check_pooling(graph: Graph, one: Node) -> None:
    """Raise if engines read the operand of a pooling wrong, or do not write its indices."""
    values: dict[str, Any] = one.attributes  # type: ignore[assignment]
    x, specs = values["xdesc"], {name: tensor.spec for name, tensor in _tensors(one)}
    channels_last = all(map(_is_channels_last, specs.values()))
    listed = ", ".join(f"{name} {spec}" for name, spec in specs.items())
    if "idxdesc" in specs and not channels_last:
        raise NotSupportedError(
            f"cuDNN does not write the indices of a pooling unless all tensors have the layout nhwc: {listed}"
        )
    if x.virtual or any(other.row == "pointwise" and _written(other) == x.uid for other in graph.nodes):
        raise NotSupportedError(
            "cuDNN pools operands that the graph computes wrong; compute them in another graph"
        )
    before, after = values["pre_paddings"], values["post_paddings"]
    longer = any(more > less for less, more in zip(before, after, strict=True))
    if values["mode"] in _COUNTING_PADDING and longer and not channels_last:
        raise NotSupportedError(
            f"cuDNN divides averages by too few elements if more padding follows an axis than precedes it: "
            f"got padding {before} and {after}; pass operands of the layout nhwc: {listed}"
        )


def _is_channels_last(spec: TensorSpec) -> bool:
    return spec.strides == packed_strides(spec.shape, "nhwc")


def _check_values(graph: Graph, one: Node, of_products: set[int]) -> None:
    """Raise if cuDNN computes a node wrong or leaves its result unwritten, whatever its layouts are."""
    uses = Counter(tensor.uid for node in graph.nodes for _, tensor in _tensors(node))  # its producer is one
    values: dict[str, Any] = one.attributes  # type: ignore[assignment]
    if values["mode"] == "binary_select" and _written(one) in of_products:
        if all(_is_input(values[name], uses) for name in ("xdesc", "bdesc")):
            return
        raise NotSupportedError(
            "cuDNN computes wrong products of an operand that binary_select takes from computed tensors; "
            "compute it in another graph"
        )
    if values["mode"] == "gen_index":
        lengths = values["xdesc"].spec.shape
        if len(lengths) == 3 and values["axis"] == 0 and lengths[0] > 1:
            raise NotSupportedError(
                "cuDNN computes wrong indices along the first of three axes: got a gen_index of "
                f"{values['xdesc'].spec} along axis 0; merge or exchange axes"
            )
    if values["mode"] != "identity":
        return
    x, y = values["xdesc"], values["ydesc"]
    if x.virtual and uses[x.uid] > 2 and x.spec.dtype == y.spec.dtype:
        raise NotSupportedError(
            "cuDNN does not write the result of an identity whose operand has other uses; use the operand"
        )


def _check_bytes(one: Node) -> None:
    """Raise if an operand of a product is computed from a tensor that engines convert wrong."""
    for _, tensor in _tensors(one):
        spec = tensor.spec
        read = tensor.value is None and not tensor.virtual and spec.size > 1
        if read and DTYPES[spec.dtype].itemsize == 1 and not in_words(spec):
            raise NotSupportedError(
                f"cuDNN computes wrong products of operands that are converted from {spec}: its contiguous "
                f"axis and its other strides must be multiples of {WORD}"
            )


def _is_input(tensor: Tensor, uses: Mapping[int, int]) -> bool:
    """Return whether a tensor is an input of a graph that one node reads."""
    return tensor.value is None and not tensor.virtual and uses[tensor.uid] == 1


def _can_broadcast(spec: TensorSpec, result: TensorSpec, rows: list[str], prologue: bool) -> bool:
    """Return whether engines read a smaller operand of several elements right."""
    axes = [axis for axis, length in enumerate(spec.shape) if length > 1]
    if "matmul" in rows:
        return len(axes) < 2 or _in_order(spec, result, axes)
    if any(row in _CONVOLUTIONS for row in rows):
        if not prologue and "conv_backward_filter" in rows:
            return False
        return axes == [1] and (not prologue or "nhwc" in result.layouts)
    if all(row == "pointwise" for row in rows):
        return len(result.shape) == 3 and result.shape[0] == 1
    return True


def _in_order(spec: TensorSpec, result: TensorSpec, axes: list[int]) -> bool:
    """Return whether the axes of an operand have the order in memory that those of the result have."""

    def order(one: TensorSpec) -> list[int]:
        return sorted(axes, key=lambda axis: -one.strides[axis])

    return order(spec) == order(result)


def _needed_by(graph: Graph, products: Mapping[str, str]) -> set[int]:
    """Return the uids of tensors that are computed for a node of ``products``."""
    needed: set[int] = set()
    for one in reversed(graph.nodes):
        if one.row in products or (one.row == "pointwise" and _written(one) in needed):
            needed |= {tensor.uid for _, tensor in _tensors(one)} - {_written(one)}
    return needed


def _written(one: Node) -> int:
    """Return the uid of the result of an elementwise node, a convolution or a product."""
    name = _PRODUCTS.get(one.row, "dxdesc" if "dxdesc" in one.attributes else "ydesc")
    tensor: Any = one.attributes[name]
    return int(tensor.uid)


def _tensors(one: Node) -> Iterator[tuple[str, Tensor]]:
    for name, value in one.attributes.items():
        if hasattr(value, "uid"):
            yield name, value  # type: ignore[misc]
