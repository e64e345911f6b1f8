"""The operations that follow a matrix product or convolution: scales, additions, an activation, and amax."""

from __future__ import annotations

from typing import Any

from ..graph.operations import Graph
from ..shapes.matmul import MatmulProblem
from ..shapes.scaled_conv import Float8Conv
from ._definition import Definition
from .graph.tensors import GraphTensor, Operand

_FACTORS = ("b_scale", "descale_a", "descale_b", "descale_x", "descale_w")
_ADDED = ("bias", "residual")

# The methods of activations with other names, and their parameters.
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu_tanh": ("gelu", {"approximate": True}),
    "silu": ("swish", {}),
}


def graph_with_epilogue(
    g: Definition, problem: MatmulProblem | Float8Conv, y: GraphTensor, alpha: float = 1.0
) -> Graph:
    """Return the graph of ``scale * act(factors * alpha * y + added)``, and of amax before ``scale``."""
    given = g.given
    factors: list[Operand] = [given[name] for name in _FACTORS if name in given]
    for factor in [*factors, alpha] if alpha != 1 else factors:
        y = y * factor
    for name in _ADDED:
        y = y + given[name] if name in given else y
    if problem.activation != "identity":
        method, parameters = _METHODS.get(problem.activation, (problem.activation, {}))
        y = getattr(g, method)(y, **parameters)
    written = y
    if "scale" in given:
        written = y * given["scale"]
    elif problem.amax and problem.y.dtype != "float32":
        # amax is that of the value before it is rounded. cuDNN 9.19 does not write exact copies.
        written = g.identity(y)
    return g.graph(y=written, **({"amax": g.reduce(y, "amax")} if problem.amax else {}))
