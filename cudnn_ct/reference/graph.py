"""Graphs of operations in float64, rounded where tensors are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import GRAPH_DTYPES, as_dtype
from ..shapes.graph.kinds import KINDS
from ..shapes.graph.pointwise import math_dtype
from ..shapes.graph.problem import GraphNode, GraphProblem, GraphValue
from ._cast import Array, Float64, round_once, wide
from .graph_nodes import evaluate


def graph(built: Any, /, *arrays: ArrayLike, **named: ArrayLike) -> Any:
    """Compute the outputs of a built graph, or of a graph's ``define(...)``. See :class:`cudnn_ct.Graph`."""
    problem = built if isinstance(built, GraphProblem) else getattr(built, "problem", None)
    if not isinstance(problem, GraphProblem):
        raise TypeError(
            f"built is not a graph: got {type(built).__name__}, expected a BuiltGraph or the result of "
            "Graph.define"
        )
    values: dict[int, Float64] = {}
    for place, array in zip(problem.inputs, _ordered(problem, arrays, named), strict=True):
        values[place] = wide(_checked(np.asarray(array), problem.values[place]))
    for place, value in enumerate(problem.values):
        if value.role == "constant":
            # The number that the plan passes: rounded to its dtype.
            values[place] = wide(np.asarray(value.value).astype(GRAPH_DTYPES[value.spec.dtype].numpy))
    stored: dict[int, Array] = {}
    for one in problem.nodes:
        operands = {role: _read(values[place], place, one, problem) for role, place in one.operands}
        computed = evaluate(one, operands, problem)
        for role, place in one.results:
            value = problem.values[place]
            result = np.broadcast_to(computed[role], value.spec.shape)
            values[place] = _rounded(result, value)
            if value.role == "output":
                stored[place] = round_once(values[place], _numpy(value))
    results = tuple(stored[place] for place in problem.outputs)
    return results[0] if len(results) == 1 else results


def _read(values: Float64, place: int, one: GraphNode, problem: GraphProblem) -> Float64:
    """Return an operand as an operation reads it: integers are rounded to the dtype of its arithmetic."""
    row = KINDS[one.kind].row
    math = math_dtype(one, problem) if row == "pointwise" else problem.compute
    integers = "int" in problem.values[place].spec.dtype
    if not integers or "int" in math or row not in ("pointwise", "reduction", "matmul"):
        return values
    return wide(round_once(values, GRAPH_DTYPES[math].numpy))


def _rounded(values: Array, value: GraphValue) -> Float64:
    """Round a result to the dtype of its tensor; float32 between operations stays in float64."""
    if value.role == "virtual" and value.spec.dtype in ("float32", "float64", "bool"):
        return np.asarray(values, np.float64)
    return wide(round_once(np.asarray(values, np.float64), _numpy(value)))


def _numpy(value: GraphValue) -> np.dtype[Any]:
    return GRAPH_DTYPES[value.spec.dtype].numpy


def _ordered(problem: GraphProblem, arrays: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    names = [problem.values[place].name for place in problem.inputs]
    rest = names[len(arrays) :]
    if len(arrays) > len(names) or set(named) != set(rest):
        raise TypeError(
            f"inputs do not match: got {len(arrays)} arrays and {sorted(named)}, expected {', '.join(names)}"
        )
    return [*arrays, *(named[name] for name in rest)]


def _checked(array: Array, value: GraphValue) -> Array:
    if array.shape != value.spec.shape:
        raise ValueError(f"{value.name} has the wrong shape: got {array.shape}, expected {value.spec.shape}")
    if as_dtype(array.dtype).name != value.spec.dtype:
        raise TypeError(f"{value.name} has the wrong dtype: got {array.dtype}, expected {value.spec.dtype}")
    return array
