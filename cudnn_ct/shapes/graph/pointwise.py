"""Rules of pointwise operations: all modes of `PointwiseMode`, with their operands."""

from __future__ import annotations

from typing import Any

from .problem import GraphNode, GraphProblem
from .rules import Result, Specs, broadcast, largest

COMPARISONS = ["cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le"]
LOGICAL = ["logical_and", "logical_or", "logical_not"]
# Modes whose result of whole numbers is whole.
WHOLE = ("abs", "add", "identity", "max", "min", "mul", "neg", "sub")


def _pointwise(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    mode = attributes["mode"]
    shape = broadcast(**{name: spec.shape for name, spec in specs.items()})
    like = largest(specs.values())
    if mode in LOGICAL or mode in COMPARISONS:
        return {"y": Result(shape, "bool", like)}
    if mode == "gen_index":
        axis = attributes["axis"]
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"axis is out of range: got {axis}, expected {-len(shape)} to {len(shape) - 1}")
        attributes["axis"] = axis % len(shape)
        return {"y": Result(shape, "int32", like, "int32")}
    if all(spec.dtype == "int32" for spec in specs.values()) and mode in WHOLE:
        return {"y": Result(shape, "int32", like, "int32")}
    return {"y": Result(shape, like=like)}


def _pointwise_backward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:  # noqa: ARG001
    shape = broadcast(**{name: spec.shape for name, spec in specs.items()})
    return {"dx": Result(shape, like=largest(specs.values()))}


def math_dtype(one: GraphNode, problem: GraphProblem) -> str:
    """Return the dtype to which an elementwise operation converts its operands.

    It is int32 if all operands and the result are, and the compute dtype otherwise, also for comparisons.
    """
    values = (*problem.operands_of(one).values(), *problem.results_of(one).values())
    whole = all(value.spec.dtype == "int32" for value in values)
    if whole and one.attribute("mode") not in ("gen_index", *COMPARISONS):
        return "int32"
    return problem.compute
