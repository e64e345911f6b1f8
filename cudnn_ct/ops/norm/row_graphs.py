"""Graphs of layer, RMS and adaptive layer normalisation, which see x as rows."""

from __future__ import annotations

from ...graph.operations import Graph, Tensor, node
from ...plans.base import tensors_of
from ...shapes.layer_norm import LayerNormMode, RowNorm, RowNormGradient
from ...shapes.specs import Shape, TensorSpec

__all__ = ["row_norm_graph"]

_DATA = ("x", "y", "dy", "dx")
_STATISTICS = ("mean", "invstd")

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
    tensors = {
        name: Tensor(uid, TensorSpec.packed(_axes(name, problem), spec.dtype))
        for uid, (name, spec) in enumerate(tensors_of(problem).items(), 1)
    }
    attributes: dict[str, object] = {_ATTRIBUTES[name]: tensor for name, tensor in tensors.items()}
    attributes["mode"] = _mode(problem)
    if isinstance(problem, RowNormGradient):
        return Graph((node("norm_backward", **attributes),), tuple(tensors.values()))
    number = TensorSpec.packed((1, 1, 1, 1), "float32")
    attributes["epsilon_desc"] = Tensor(len(tensors) + 1, number, value=problem.epsilon)
    attributes["phase"] = "training" if problem.invstd else "inference"
    return Graph((node("norm_forward", **attributes),), tuple(tensors.values()))


def _mode(problem: RowNorm | RowNormGradient) -> LayerNormMode:
    """Return the mode of the node; with one sample, layer normalisation has more engines."""
    adaptive = problem.mode == "ada_layer_norm" and problem.shape.samples > 1
    return problem.mode if adaptive or problem.mode == "rms_norm" else "layer_norm"


def _axes(name: str, problem: RowNorm | RowNormGradient) -> Shape:
    """Return the four axes of a tensor: (rows, columns, 1, 1), or (samples, rows, columns, 1)."""
    samples, rows, columns, _ = problem.shape
    kept = rows if name in _DATA or name in _STATISTICS else 1
    length = 1 if name in _STATISTICS else columns
    return (samples, kept, length, 1) if _mode(problem) == "ada_layer_norm" else (kept, length, 1, 1)
