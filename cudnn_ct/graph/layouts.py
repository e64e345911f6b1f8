"""Layouts and broadcasts of elementwise nodes that engines of cuDNN compute wrong.

Engines that are compiled at run time read some operands with the strides of another tensor, or behind their
end, and cuDNN returns them nevertheless. Random graphs on an H200 with cuDNN 9.19 found the patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import NotSupportedError
from ..shapes.specs import TensorSpec, equivalent_strides

if TYPE_CHECKING:
    from .operations import Graph, Node, Tensor

__all__ = ["check_layouts"]

_CONVOLUTIONS = ("conv_forward", "conv_backward_data", "conv_backward_filter")


def check_layouts(graph: Graph) -> None:
    """Raise NotSupportedError if an elementwise node has an operand that engines may read wrong.

    Attention, which has two products of matrices, reads each tensor with its own strides.
    """
    rows = [one.row for one in graph.nodes]
    if rows.count("matmul") > 1:
        return
    before = _inputs_of_convolutions(graph)
    for one in graph.nodes:
        if one.row != "pointwise":
            continue
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


def _can_broadcast(spec: TensorSpec, result: TensorSpec, rows: list[str], prologue: bool) -> bool:
    """Return whether engines read a smaller operand of several elements right."""
    axes = [axis for axis, length in enumerate(spec.shape) if length > 1]
    if "matmul" in rows:
        return len(axes) < 2 or _in_order(spec, result, axes)
    if any(row in _CONVOLUTIONS for row in rows):
        return axes == [1] and (not prologue or "nhwc" in result.layouts)
    if all(row == "pointwise" for row in rows):
        return len(result.shape) == 3 and result.shape[0] == 1
    return True


def _in_order(spec: TensorSpec, result: TensorSpec, axes: list[int]) -> bool:
    """Return whether the axes of an operand have the order in memory that those of the result have."""

    def order(one: TensorSpec) -> list[int]:
        return sorted(axes, key=lambda axis: -one.strides[axis])

    return order(spec) == order(result)


def _inputs_of_convolutions(graph: Graph) -> set[int]:
    """Return the uids of tensors that are computed for a convolution."""
    needed: set[int] = set()
    for one in reversed(graph.nodes):
        if one.row in _CONVOLUTIONS or (one.row == "pointwise" and _written(one) in needed):
            needed |= {tensor.uid for _, tensor in _tensors(one)} - {_written(one)}
    return needed


def _written(one: Node) -> int:
    """Return the uid of the result of an elementwise node or a convolution."""
    names = {"conv_forward": "y", "conv_backward_data": "dx", "conv_backward_filter": "dw"}
    name = names.get(one.row, "dxdesc" if "dxdesc" in one.attributes else "ydesc")
    tensor: Any = one.attributes[name]
    return int(tensor.uid)


def _tensors(one: Node) -> Iterator[tuple[str, Tensor]]:
    for name, value in one.attributes.items():
        if hasattr(value, "uid"):
            yield name, value  # type: ignore[misc]
