"""Graphs of products, elementwise operations, reductions and norms of rows, computed in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf, pi, sqrt
from typing import Any

import numpy as np

from cudnn_ct.dtypes import DTYPES
from cudnn_ct.graph.operations import Graph, Node, Tensor, tensors_of_graph

__all__ = ["can_compute", "compute"]

Array = np.ndarray[Any, Any]

ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "identity": lambda x: x,
    "relu_fwd": lambda x: np.maximum(x, 0),
    "gelu_fwd": lambda x: x * (1 + np.vectorize(erf)(x / sqrt(2))) / 2,
    "gelu_approx_tanh_fwd": lambda x: x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2,
    "swish_fwd": lambda x: x / (1 + np.exp(-x)),
    "cmp_ge": np.greater_equal,
    "cmp_gt": np.greater,
    "cmp_lt": np.less,
    "logical_and": np.logical_and,
}
REDUCTIONS = {"add": np.sum, "max": np.max, "amax": lambda x, **axes: np.abs(x).max(**axes)}
NORMS = ("layer_norm", "rms_norm")


def can_compute(graph: Graph) -> bool:
    rows = {"matmul", "pointwise", "reduction", "reshape", "norm_forward", "norm_backward"}
    modes = {*ELEMENTWISE, *REDUCTIONS, *NORMS, "gen_index", "binary_select"}
    return all(
        one.row in rows and one.attributes.get("mode", "add") in modes and not _ragged(one)
        for one in graph.nodes
    )


def _ragged(one: Node) -> bool:
    return any(isinstance(value, Tensor) and value.ragged is not None for value in one.attributes.values())


def compute(graph: Graph, inputs: Mapping[int, Array]) -> dict[int, Array]:
    """Return the results of a graph by uid, from its inputs in float64 by uid."""
    tensors = tensors_of_graph(graph)
    values = {uid: np.full(t.spec.shape, t.value) for uid, t in tensors.items() if t.value is not None}
    values |= {uid: np.asarray(array, np.float64) for uid, array in inputs.items()}
    for one in graph.nodes:
        given = {
            name: values[value.uid] if isinstance(value, Tensor) and value.uid in values else value
            for name, value in one.attributes.items()
        }
        for name, array in _NODES[one.row](given).items():
            tensor = one.attributes[name]
            assert isinstance(tensor, Tensor)
            values[tensor.uid] = _stored(np.broadcast_to(array, tensor.spec.shape), tensor)
    return values


def _stored(array: Array, tensor: Tensor) -> Array:
    """Round intermediate results of a narrow dtype, as cuDNN does."""
    if tensor.virtual and DTYPES[tensor.spec.dtype].itemsize < 4 and tensor.spec.dtype != "bool":
        return array.astype(DTYPES[tensor.spec.dtype].numpy).astype(np.float64)
    return array


def _matmul(given: dict[str, Any]) -> dict[str, Array]:
    a, b = given["adesc"], given["bdesc"]
    if a.ndim == 4 and b.shape[1] != a.shape[1]:  # the heads of a group share b
        b = np.repeat(b, a.shape[1] // b.shape[1], axis=1)
    return {"cdesc": a @ b}


def _pointwise(given: dict[str, Any]) -> dict[str, Array]:
    mode, x = given["mode"], given["xdesc"]
    if mode == "gen_index":
        shape = given["ydesc"].spec.shape
        return {"ydesc": np.indices(shape)[given["axis"]]}
    if mode == "binary_select":
        return {"ydesc": np.where(given["tdesc"], x, given["bdesc"])}
    operands = [x] if isinstance(given.get("bdesc"), Tensor | None) else [x, given["bdesc"]]
    return {"ydesc": ELEMENTWISE[mode](*operands)}


def _reduction(given: dict[str, Any]) -> dict[str, Array]:
    x, shape = given["xdesc"], given["ydesc"].spec.shape
    if x.ndim == 4 and 1 < shape[1] < x.shape[1]:  # heads of a group
        x = x.reshape(shape[0], shape[1], -1, *x.shape[2:])
        return {"ydesc": REDUCTIONS[given["operator"]](x, axis=2)}
    axes = tuple(axis for axis, length in enumerate(shape) if length != x.shape[axis])
    return {"ydesc": REDUCTIONS[given["operator"]](x, axis=axes, keepdims=True)}


def _reshape(given: dict[str, Any]) -> dict[str, Array]:
    """The tests exchange the last two axes."""
    return {"ydesc": np.swapaxes(given["xdesc"], -1, -2)}


def _norm_forward(given: dict[str, Any]) -> dict[str, Array]:
    x, axes = given["xdesc"], (1, 2, 3)
    mean = x.mean(axes, keepdims=True) if given["mode"] == "layer_norm" else np.zeros((len(x), 1, 1, 1))
    deviation = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + given["epsilon_desc"])
    y = (x - mean) * deviation * given.get("scale_desc", 1) + given.get("bias_desc", 0)
    found = {"ydesc": y, "mean_desc": mean, "inv_variance_desc": deviation}
    return {name: array for name, array in found.items() if name in given}


def _norm_backward(given: dict[str, Any]) -> dict[str, Array]:
    x, dy, deviation = given["xdesc"], given["dydesc"], given["inv_variance_desc"]
    centred = given["mode"] == "layer_norm"
    normed = (x - (given["mean_desc"] if centred else 0)) * deviation
    slope, axes = dy * given["scale_desc"], (1, 2, 3)
    dx = slope - normed * (slope * normed).mean(axes, keepdims=True)
    dx = (dx - (slope.mean(axes, keepdims=True) if centred else 0)) * deviation
    found = {"dxdesc": dx, "dscale_desc": (dy * normed).sum(0, keepdims=True)}
    found["dbias_desc"] = dy.sum(0, keepdims=True)
    return {name: array for name, array in found.items() if name in given}


_NODES: dict[str, Callable[[dict[str, Any]], dict[str, Array]]] = {
    "matmul": _matmul,
    "pointwise": _pointwise,
    "reduction": _reduction,
    "reshape": _reshape,
    "norm_forward": _norm_forward,
    "norm_backward": _norm_backward,
}
