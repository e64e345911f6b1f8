"""The graph of a convolution with scale and bias, and its engines."""

from __future__ import annotations

from itertools import count
from typing import Any

from ...graph.operations import Graph, Tensor, node
from ...plans.base import packed_of, tensors_of
from ...shapes.scaled_conv import ScaledConv
from ...shapes.specs import TensorSpec, packed_strides
from .._graph_source import GraphSource
from .._reduced_source import packed_source
from .graph_nodes import activation_step, conv_node, two_axes


def scaled_conv_graph(problem: ScaledConv) -> Graph:
    """Return the graph of a problem whose operands are contiguous with channels last."""
    numbers = count(1)

    def tensor(spec: TensorSpec, virtual: bool = False) -> Tensor:
        return Tensor(next(numbers), channels_last(spec), virtual)

    tensors = {name: tensor(spec) for name, spec in tensors_of(problem).items()}
    wide = problem.y._replace(dtype="float32")
    steps: list[dict[str, Any]] = [
        {"mode": "mul", "bdesc": tensors["scale"]},
        *({"mode": "add", "bdesc": tensors[name]} for name in ("bias", "z") if name in tensors),
    ]
    if problem.activation != "identity":
        steps.append(activation_step(problem.activation, problem.coefficient))
    between = [tensor(wide, virtual=True) for _ in steps]
    outputs = [*between, tensors["y"]]
    nodes = [conv_node(problem.core, x=tensors["x"], w=tensors["w"], y=outputs[0])]
    for step, read, written in zip(steps, outputs, outputs[1:], strict=False):
        nodes.append(node("pointwise", math_prec="float32", **step, xdesc=read, ydesc=written))
    return Graph(tuple(nodes), tuple(tensors[name] for name in tensors_of(problem)))


def channels_last(spec: TensorSpec) -> TensorSpec:
    """Return a contiguous tensor with two or three spatial axes and the strides of channels last."""
    # Engines are selected by the strides of axes of length 1 too.
    return two_axes(spec._replace(strides=packed_strides(spec.shape, "nhwc")))


def packed_operands(problem: Any) -> Any:
    """Return the problem with contiguous copies of operands that do not have channels last."""
    # Runtime-compiled engines give wrong sums unless x, w and y have one layout, and read a residual with the
    # strides of the result.
    return packed_of(problem, "nhwc")


SOURCE = packed_source(GraphSource(scaled_conv_graph), packed_operands)
"""The engines of a graph with channels last."""
