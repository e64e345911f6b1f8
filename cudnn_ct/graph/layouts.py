"""Layouts, values and poolings that engines of cuDNN compute wrong, and their rejection.

Engines that are compiled at run time read some operands with the strides of another tensor, or behind their
end, and cuDNN returns them nevertheless. Random graphs with cuDNN 9.19 found the patterns, those of poolings
on an H100 and the others on an H200.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..shapes.specs import LAYOUTS, equivalent_strides
from .broadcasts import (
    CONVOLUTIONS,
    WORD,
    is_channels_last,
    needed_by_products,
    result_of,
    tensors_of_node,
    wrong_broadcasts,
    wrong_conversions,
)

if TYPE_CHECKING:
    from .operations import Graph, Node, Tensor

__all__ = ["check_layouts"]

# Averages whose divisor includes the padding.
_COUNTING_PADDING = ("avgpool", "avgpool_include_padding")


def check_layouts(graph: Graph) -> None:
    """Raise NotSupportedError if a node has an operand that engines may read wrong.

    Attention, which has two products of matrices, reads each tensor with its own strides.
    """
    rows = [one.row for one in graph.nodes]
    if rows.count("matmul") > 1:
        return
    modes = [str(one.attributes.get("mode")) for one in graph.nodes]
    if "norm_forward" in rows and any(mode.endswith("_bwd") for mode in modes):
        raise NotSupportedError(
            "cuDNN ends the process when it compiles a norm and the gradient of an activation together; "
            "compute them in two graphs"
        )
    for tensor, dtype in wrong_conversions(graph):
        count = WORD // DTYPES[tensor.spec.dtype].itemsize
        raise NotSupportedError(
            f"cuDNN computes wrong products of operands that are converted from {tensor.spec}"
            f"{f' to {dtype}' if dtype else ''}: its contiguous axis and its other strides must be multiples "
            f"of {count}"
        )
    of_products = needed_by_products(graph)
    for one in graph.nodes:
        if one.row in CONVOLUTIONS and len(graph.nodes) > 1:
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
        specs = [tensor.spec for _, tensor in tensors_of_node(one) if tensor.value is None]
        result = max(specs, key=lambda spec: spec.size)
        for spec in specs:
            if spec.shape == result.shape and not equivalent_strides(
                spec.shape, spec.strides, result.strides
            ):
                raise NotSupportedError(f"operands differ in layout: got {spec} and {result}")
    for tensor, result in wrong_broadcasts(graph):
        raise NotSupportedError(
            f"cuDNN computes wrong results if {tensor.spec} is broadcast to {result} in such a graph; pass "
            "an operand of the whole shape"
        )


def _check_convolution(one: Node) -> None:
    """Raise unless the tensors of a convolution among other nodes are contiguous in one layout.

    Engines read a result of one pixel as channels last, whose channels are adjacent in both layouts.
    """
    specs = {name: tensor.spec for name, tensor in tensors_of_node(one)}
    common = [layout for layout in LAYOUTS if all(layout in spec.layouts for spec in specs.values())]
    listed = ", ".join(f"{name} {spec}" for name, spec in specs.items())
    if not common:
        raise NotSupportedError(
            f"cuDNN computes wrong results unless the tensors of this convolution have one layout: {listed}"
        )
    result = specs[CONVOLUTIONS[one.row]]
    if prod(result.shape[2:]) == 1 and not all(map(is_channels_last, specs.values())):
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
    x, specs = values["xdesc"], {name: tensor.spec for name, tensor in tensors_of_node(one)}
    channels_last = all(map(is_channels_last, specs.values()))
    listed = ", ".join(f"{name} {spec}" for name, spec in specs.items())
    if "idxdesc" in specs and not channels_last:
        raise NotSupportedError(
            f"cuDNN does not write the indices of a pooling unless all tensors have the layout nhwc: {listed}"
        )
    if x.virtual or any(other.row == "pointwise" and result_of(other) == x.uid for other in graph.nodes):
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


def _check_values(graph: Graph, one: Node, of_products: Collection[int]) -> None:
    """Raise if cuDNN computes a node wrong or leaves its result unwritten, whatever its layouts are."""
    uses = Counter(
        tensor.uid for node in graph.nodes for _, tensor in tensors_of_node(node)
    )  # its producer is one
    values: dict[str, Any] = one.attributes  # type: ignore[assignment]
    if values["mode"] == "binary_select" and result_of(one) in of_products:
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


def _is_input(tensor: Tensor, uses: Mapping[int, int]) -> bool:
    """Return whether a tensor is an input of a graph that one node reads."""
    return tensor.value is None and not tensor.virtual and uses[tensor.uid] == 1
