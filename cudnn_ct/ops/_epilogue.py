"""The nodes of a matrix product or convolution with scales, additions, an activation and amax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..graph.operations import Node, Tensor, node
from ..typing import MatmulActivation

# The mode of the pointwise node of an activation, and its parameters.
MODES: dict[str, tuple[str, dict[str, float]]] = {
    "relu": ("relu_fwd", {}),
    "gelu": ("gelu_fwd", {}),
    "gelu_tanh": ("gelu_approx_tanh_fwd", {}),
    "silu": ("swish_fwd", {"swish_beta": 1.0}),
    "sigmoid": ("sigmoid_fwd", {}),
    "tanh": ("tanh_fwd", {}),
}


def nodes_with_epilogue(
    sums: Callable[[Tensor], Node],
    given: Mapping[str, Tensor],
    virtual: Callable[[], Tensor],
    *,
    factors: Sequence[Tensor] = (),
    added: Sequence[Tensor] = (),
    activation: MatmulActivation = "identity",
) -> list[Node]:
    """Return the nodes that compute ``y = scale * act(factors * sums + added)``, and amax before ``scale``.

    ``sums`` returns the node that writes sums to a tensor, ``virtual`` a new virtual tensor of the shape of
    y. ``given`` are the tensors in memory: y, and ``scale`` and ``amax`` if they exist. Each node reads the
    result of the node before it.
    """
    y, scale, amax = given["y"], given.get("scale"), given.get("amax")
    # Whether y is not the value of which amax is computed. If it is, a node that copies it to y must be left
    # out: cuDNN 9.19 does not write the copy.
    rounded = scale is not None or y.spec.dtype != "float32"
    steps: list[dict[str, object]] = [{"mode": "mul", "bdesc": factor} for factor in factors]
    steps += [{"mode": "add", "bdesc": one} for one in added]
    if activation != "identity":
        mode, parameters = MODES[activation]
        steps.append({"mode": mode, **parameters})
    if scale is not None:
        steps.append({"mode": "mul", "bdesc": scale})
    elif amax is not None and rounded:
        steps.append({"mode": "identity"})
    values = [*(virtual() for _ in steps), y]
    nodes = [sums(values[0])]
    for step, read, written in zip(steps, values, values[1:], strict=False):
        nodes.append(node("pointwise", math_prec="float32", xdesc=read, ydesc=written, **step))
    if amax is not None:  # of the value before the last node, if that scales or rounds it
        whole = values[-2] if rounded else y
        nodes.append(node("reduction", operator="amax", comp_type="float32", xdesc=whole, ydesc=amax))
    return nodes
