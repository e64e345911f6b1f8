"""Graph nodes and tensors of convolution problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...graph.attributes import AsDouble, AsInt32
from ...graph.operations import Graph, Node, Tensor, node
from ...shapes.conv import ROLES, ConvProblem
from ...shapes.specs import LAYOUTS, TensorSpec, packed_strides

__all__ = ["DIRECTIONS", "Lowering", "conv_graph", "conv_node"]


class Direction(NamedTuple):
    """The node type of a direction, and cuDNN's names of x, w and y."""

    row: str
    x: str
    w: str
    y: str


DIRECTIONS = {
    "forward": Direction("conv_forward", "x", "w", "y"),
    "backward_data": Direction("conv_backward_data", "dx", "w", "dy"),
    "backward_filter": Direction("conv_backward_filter", "x", "dw", "dy"),
}


def conv_graph(problem: ConvProblem) -> Graph:
    """Return the graph of one convolution, a single node. The operands are in the order of :data:`ROLES`."""
    lowering = Lowering(problem)
    tensors = {name: lowering.tensor(getattr(problem, name)) for name in ("x", "w", "y")}
    operands = ROLES[problem.direction].operands
    return Graph((conv_node(problem, **tensors),), tuple(tensors[name] for name in operands))


def conv_node(problem: ConvProblem, x: Tensor, w: Tensor, y: Tensor) -> Node:
    """Return the node of a convolution on tensors, which may be virtual.

    cuDNN derives the number of groups from the channels of ``x`` and ``w``.
    """
    direction = DIRECTIONS[problem.direction]
    number = _factor(problem)
    padding, stride, dilation = problem.padding, problem.stride, problem.dilation
    if len(stride) == 1:  # like the tensors: see `_two_axes`
        padding, stride, dilation = ((0, 0), *padding), (1, *stride), (1, *dilation)
    return node(
        direction.row,
        **{direction.x: x, direction.w: w, direction.y: y},
        alpha=number(1),
        beta=number(0),
        comp_type=problem.compute,
        conv_mode=problem.mode,
        spatial_dims=len(stride),
        pre_paddings=[before for before, _ in padding],
        post_paddings=[after for _, after in padding],
        filter_strides=stride,
        dilations=dilation,
    )


def _factor(problem: ConvProblem) -> Callable[[int], Any]:
    """Return the type of alpha and beta that engines read; they would reinterpret another type."""
    if problem.compute == "float64":
        return AsDouble
    return AsInt32 if problem.y.dtype == "int32" else float


class Lowering:
    """Creates numbered tensors for a convolution's graph, with the strides that engines expect."""

    def __init__(self, problem: ConvProblem) -> None:
        self._problem = problem
        self._made = 0

    def tensor(self, spec: TensorSpec, *, virtual: bool = False) -> Tensor:
        """Return the next tensor of the graph."""
        self._made += 1
        written = _two_axes(_with_packed_strides(spec, self._problem))
        return Tensor(self._made, written, virtual)


def _layout(problem: ConvProblem) -> str:
    """Return the layout for tensors that match both: the common one, or the one with more engines."""
    specs = (problem.x, problem.w, problem.y)
    common = [layout for layout in LAYOUTS if all(layout in spec.layouts for spec in specs)]
    if len(common) == 1:
        return common[0]
    return "nhwc" if problem.tensor_cores or problem.compute == "int32" else "nchw"


def written_as(spec: TensorSpec, problem: ConvProblem) -> str:
    """Return the layout in which a contiguous tensor is passed to engines."""
    layout = _layout(problem)
    return layout if layout in spec.layouts else spec.layouts[0]


def _with_packed_strides(spec: TensorSpec, problem: ConvProblem) -> TensorSpec:
    """Give axes of length 1 the strides of a contiguous layout, because engines are selected by them."""
    if 1 not in spec.shape or not spec.layouts:
        return spec
    return spec._replace(strides=packed_strides(spec.shape, written_as(spec, problem)))


def _two_axes(spec: TensorSpec) -> TensorSpec:
    """Expand one spatial axis into two, the first of length 1: engines support two and three."""
    if len(spec.shape) != 3:
        return spec
    (n, c, length), (step_n, step_c, step) = spec.shape, spec.strides
    return TensorSpec((n, c, 1, length), (step_n, step_c, max(length * step, 1), step), spec.dtype)
