"""Convolution with fused operations as one graph, without intermediate results in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...graph.operations import Graph, Node, Tensor, node
from ...shapes.fused import FusedConv
from .graph_nodes import Lowering, conv_node

__all__ = ["MODES", "chain", "fused_graph"]


# The mode of the pointwise node, and its parameter that `coefficient` is.
MODES = {
    "identity": ("identity", ""),
    "relu": ("relu_fwd", ""),
    "clipped_relu": ("relu_fwd", "relu_upper_clip"),
    "sigmoid": ("sigmoid_fwd", ""),
    "tanh": ("tanh_fwd", ""),
    "elu": ("elu_fwd", "elu_alpha"),
    "gelu": ("gelu_fwd", ""),
    "swish": ("swish_fwd", ""),
}


def fused_graph(problem: FusedConv) -> Graph:
    """Return the graph of a convolution with the bias, residual and activation of a problem."""
    conv = problem.conv
    lowering = Lowering(conv)
    x, w, y = (lowering.tensor(spec) for spec in (conv.x, conv.w, conv.y))
    z, bias = (lowering.tensor(spec) if spec else None for spec in (problem.z, problem.bias))
    between = conv.y._replace(dtype=conv.compute)
    nodes = chain(
        lambda out: conv_node(conv, x, w, out),
        _steps(problem, z, bias),
        y,
        lambda: lowering.tensor(between, virtual=True),
    )
    return Graph(nodes, tuple(tensor for tensor in (x, w, z, bias, y) if tensor))


def chain(
    first: Callable[[Tensor], Node],
    steps: Sequence[Mapping[str, Any]],
    last: Tensor,
    virtual: Callable[[], Tensor],
) -> tuple[Node, ...]:
    """Join a node and pointwise steps, each of which reads the output of the previous one.

    ``first`` returns the first node for the tensor that it writes. ``steps`` are attributes of pointwise
    nodes without input and output. ``last`` is the output of the last node. ``virtual`` creates a tensor
    between two nodes.
    """
    outputs = [*(virtual() for _ in steps), last]
    rest = [
        node("pointwise", **step, xdesc=read, ydesc=written)
        for step, read, written in zip(steps, outputs, outputs[1:], strict=False)
    ]
    return (first(outputs[0]), *rest)


def _steps(problem: FusedConv, z: Tensor | None, bias: Tensor | None) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    scale: float | None = problem.alpha1 if problem.alpha1 != 1 else None  # applied in the first addition
    for tensor, factor in ((z, problem.alpha2), (bias, 1.0)):
        if tensor:
            other = factor if factor != 1 else None
            steps.append({"mode": "add", "bdesc": tensor, "alpha1": scale, "alpha2": other})
            scale = None
    mode, parameter = MODES[problem.activation]
    if mode != "identity" or scale is not None:
        steps.append(
            {"mode": mode, "alpha1": scale} | ({parameter: problem.coefficient} if parameter else {})
        )
    return [{"math_prec": problem.compute, **step} for step in steps]
