"""The cases of tests.attention_cases as graphs of ct.Graph, which the fakes and the GPU tier share."""

from __future__ import annotations

from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.specs import TensorSpec

from .attention_cases import CASES, NO_GRADIENT, Case, _in_float, _wide, close, operands_of

__all__ = [
    "BUILT",
    "BUILT_GRADIENTS",
    "build",
    "build_backward",
    "check_built",
    "check_built_backward",
    "operands_by_name",
]

BUILT = [name for name, one in CASES.items() if not (one.packed or one.bias_dtype)]
BUILT_GRADIENTS = [name for name in BUILT if name not in NO_GRADIENT]
_NAMES = {"lengths_q": "seq_len_q", "lengths_kv": "seq_len_kv", "page_table": "page_table_k"}


def check_built(given: Case, *, two_tables: bool = False, **options: Any) -> None:
    """Compare a built graph of attention, and its reference, with the reference of ct.attention."""
    arrays, keywords, _ = operands_of(given)
    expected = ct.reference.attention(*map(_wide, arrays), return_stats=True, **_in_float(keywords))
    named = operands_by_name(given)
    if two_tables:
        named["page_table_v"] = named["page_table_k"][:, :, ::-1].copy()
        pages = keywords["page_table"]
        moved = np.empty_like(arrays[2])  # v in the blocks that the second table names
        moved[pages[:, ::-1]] = arrays[2][pages]
        named["v"] = moved
    graph, outputs = build(given, named)
    _compare(graph, outputs, named, (expected.y, expected.stats), given, options)


def check_built_backward(given: Case, **options: Any) -> None:
    """Compare a built graph of the gradients with the reference of ct.attention_backward."""
    arrays, keywords, dy = operands_of(given)
    wide = _in_float(keywords)
    y, stats = ct.reference.attention(*map(_wide, arrays), return_stats=True, **wide)
    dbias = "bias" in keywords
    expected = ct.reference.attention_backward(_wide(dy), *map(_wide, arrays), y, stats, dbias=dbias, **wide)
    named = operands_by_name(given, gradient=True)
    named |= {"o": y.astype(dy.dtype), "stats": stats.astype(np.float32).reshape(*stats.shape, 1)}
    graph, outputs = build_backward(given, named)
    _compare(graph, outputs, named, expected[: len(outputs)], given, options)


def operands_by_name(given: Case, *, gradient: bool = False) -> dict[str, np.ndarray]:
    """Return the operands of a case by the names of a graph's inputs; o and stats of a gradient are zeros."""
    arrays, keywords, dy = operands_of(given)
    named = dict(zip("qkv", arrays, strict=True))
    for name, value in keywords.items():
        if name == "bias":
            named[name] = value
        elif name in _NAMES:
            named[_NAMES[name]] = value.reshape(len(value), 1, -1, 1)
    if gradient:
        named |= {"do": dy, "o": np.zeros_like(dy), "stats": np.zeros((*dy.shape[:3], 1), np.float32)}
    return named


def build(given: Case, named: dict[str, np.ndarray]) -> Any:
    """Define the forward pass of a case; return the graph and its outputs."""
    g, inputs = _inputs(named)
    q, k, v = (inputs.pop(name) for name in "qkv")
    if "page_table_k" in inputs:
        inputs.setdefault("page_table_v", inputs["page_table_k"])
        made = g.sdpa(q, k, v, **inputs, **given.keywords)
        return g, (made,)
    return g, g.sdpa_with_stats(q, k, v, **inputs, **given.keywords)


def build_backward(given: Case, named: dict[str, np.ndarray]) -> Any:
    """Define the gradients of a case, also of a bias; return the graph and its outputs."""
    g, inputs = _inputs(named)
    dbias = "bias" in named
    operands = [inputs.pop(name) for name in ("do", "q", "k", "v", "o", "stats")]
    made = g.sdpa_backward(*operands, dbias=dbias, **inputs, **given.keywords)
    return g, tuple(one for one in made if one is not None)


def _inputs(named: dict[str, np.ndarray]) -> tuple[Any, dict[str, Any]]:
    """Return a graph with an input for each operand, which has the memory layout of the operand."""
    g = ct.Graph()
    made = {}
    for name, array in named.items():
        strides = tuple(step // array.itemsize for step in array.strides)
        made[name] = g.input(array.shape, as_dtype(array.dtype).name, strides=strides, name=name)
    return g, made


def _device(array: np.ndarray, spec: TensorSpec) -> ct.DeviceArray:
    """Return an operand on the device, with the memory layout of a spec."""
    if spec.strides == TensorSpec.packed(spec.shape, spec.dtype).strides:
        return ct.asarray(np.ascontiguousarray(array))
    if spec.strides[1] < spec.strides[2]:
        return ct.asarray(np.ascontiguousarray(array.swapaxes(1, 2))).transpose((0, 2, 1, 3))
    whole = np.zeros((*array.shape[:3], spec.strides[2]), array.dtype)
    whole[..., 1 : 1 + array.shape[3]] = array
    return ct.asarray(whole)[..., 1 : 1 + array.shape[3]]


def _compare(
    graph: Any, outputs: Any, named: dict[str, np.ndarray], expected: Any, given: Case, options: Any
) -> None:
    built = graph.build(*outputs, **options)
    arrays = {name: np.ascontiguousarray(array) for name, array in named.items()}
    found = built(**{name: _device(array, built.inputs[name]) for name, array in named.items()})
    computed = ct.reference.graph(built, **arrays)
    if len(outputs) == 1:
        found, computed = (found,), (computed,)
    for one, mine, right in zip(found, computed, expected, strict=False):
        for result in (one, mine):  # the reference rounds once, as the kernel does
            close(_Result(result, right.shape), right, given)


class _Result:
    """A result with the shape of the reference, which lacks the last axis of statistics."""

    def __init__(self, result: Any, shape: tuple[int, ...]) -> None:
        self._result, self._shape = result, shape

    def numpy(self) -> np.ndarray:
        array = self._result if isinstance(self._result, np.ndarray) else self._result.numpy()
        return np.asarray(array).reshape(self._shape)
