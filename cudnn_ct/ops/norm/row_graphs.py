"""Graphs of layer, RMS and adaptive layer normalisation, which see x as rows."""

from __future__ import annotations

from itertools import count

from ...graph.operations import Graph, Node, Tensor, node
from ...legal.subjects import node_mode
from ...plans.base import tensors_of
from ...shapes.layer_norm import RowNorm, RowNormGradient
from ...shapes.specs import Shape, TensorSpec

_DATA = ("x", "y", "dy", "dx")
_STATISTICS = ("mean", "invstd")

# The parameters, and the mode of the pointwise node that applies each, in this order.
_PARAMETERS = {"scale": "mul", "bias": "add"}

# Attributes of the nodes by the names of a problem's tensors.
_ATTRIBUTES = {
    "x": "xdesc",
    "scale": "scale_desc",
    "bias": "bias_desc",
    "y": "ydesc",
    "mean": "mean_desc",
    "invstd": "inv_variance_desc",
    "dy": "dydesc",
    "dx": "dxdesc",
    "dscale": "dscale_desc",
    "dbias": "dbias_desc",
}


def row_norm_graph(problem: RowNorm | RowNormGradient) -> Graph:
    """Return the graph of a normalisation or its gradient; all operands are contiguous."""
    tensors = _tensors(problem)
    names = {_ATTRIBUTES[name]: tensor for name, tensor in tensors.items()}
    if isinstance(problem, RowNormGradient):
        step = node("norm_backward", mode=node_mode(problem), **names)
    else:
        step = _forward(problem, names, uid=len(tensors) + 1)
    return Graph((step,), tuple(tensors.values()))


def has_wide_parameters(problem: RowNorm | RowNormGradient) -> bool:
    """Return whether `parameters_last_graph` has engines: for half precision with float32 parameters."""
    wide = problem.scale.dtype != problem.x.dtype and problem.shape.columns % 64 == 0
    return wide and isinstance(problem, RowNorm) and node_mode(problem) != "ada_layer_norm"


def parameters_last_graph(problem: RowNorm) -> Graph:
    """Return the graph of a normalisation without parameters, whose float32 result they scale and shift.

    If the parameters have another dtype than x, the node of `row_norm_graph` has one engine, which takes four
    times as long as reading and writing x. A node without parameters has faster ones, which also compute
    products and sums.
    """
    tensors = _tensors(problem)
    uids = count(len(tensors) + 1)
    given = {name: tensor for name, tensor in tensors.items() if name not in _PARAMETERS}
    wide = tensors["y"].spec._replace(dtype="float32")
    value = Tensor(next(uids), wide, virtual=True)
    names = {_ATTRIBUTES[name]: tensor for name, tensor in (given | {"y": value}).items()}
    nodes = [_forward(problem, names, uid=next(uids))]
    steps = [(mode, tensors[name]) for name, mode in _PARAMETERS.items() if name in tensors]
    for place, (mode, parameter) in enumerate(steps, 1):
        y = tensors["y"] if place == len(steps) else Tensor(next(uids), wide, virtual=True)
        nodes.append(node("pointwise", mode=mode, math_prec="float32", xdesc=value, bdesc=parameter, ydesc=y))
        value = y
    return Graph(tuple(nodes), tuple(tensors.values()))


def shifted_graph(problem: RowNorm) -> Graph:
    """Return the graph of a normalisation of x minus a float32 number for each row, the first operand."""
    tensors = _tensors(problem)
    uids = count(len(tensors) + 1)
    shift = Tensor(next(uids), TensorSpec.packed(_axes("mean", problem), "float32"))
    shifted = Tensor(next(uids), tensors["x"].spec._replace(dtype="float32"), virtual=True)
    names = {_ATTRIBUTES[name]: tensor for name, tensor in (tensors | {"x": shifted}).items()}
    difference = node(
        "pointwise", mode="sub", math_prec="float32", xdesc=tensors["x"], bdesc=shift, ydesc=shifted
    )
    return Graph((difference, _forward(problem, names, uid=next(uids))), (shift, *tensors.values()))


def _tensors(problem: RowNorm | RowNormGradient) -> dict[str, Tensor]:
    """Return the operands of a problem by name, with four axes."""
    return {
        name: Tensor(uid, TensorSpec.packed(_axes(name, problem), spec.dtype))
        for uid, (name, spec) in enumerate(tensors_of(problem).items(), 1)
    }


def _forward(problem: RowNorm, tensors: dict[str, Tensor], uid: int) -> Node:
    epsilon = Tensor(uid, TensorSpec.packed((1, 1, 1, 1), "float32"), value=problem.epsilon)
    phase = "training" if problem.invstd else "inference"
    return node("norm_forward", mode=node_mode(problem), phase=phase, epsilon_desc=epsilon, **tensors)


def _axes(name: str, problem: RowNorm | RowNormGradient) -> Shape:
    """Return the four axes of a tensor: (rows, columns, 1, 1), or (samples, rows, columns, 1)."""
    samples, rows, columns, _ = problem.shape
    kept = rows if name in _DATA or name in _STATISTICS else 1
    length = 1 if name in _STATISTICS else columns
    return (samples, kept, length, 1) if node_mode(problem) == "ada_layer_norm" else (kept, length, 1, 1)
