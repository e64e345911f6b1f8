"""Reductions of axes of length 1 as elementwise operations: cuDNN 9.19 computes those of products wrong."""

from __future__ import annotations

from ...shapes.graph.problem import GraphNode, GraphProblem, GraphValue
from ...shapes.specs import TensorSpec

_MAGNITUDES = ("amax", "norm1", "norm2")


def without_empty_reductions(problem: GraphProblem) -> GraphProblem:
    """Return a graph without reductions whose operand has the shape of the result."""
    values = list(problem.values)
    nodes = [step for one in problem.nodes for step in _elementwise(one, values, problem.compute)]
    return problem._replace(values=tuple(values), nodes=tuple(nodes))


def _elementwise(one: GraphNode, values: list[GraphValue], compute: str) -> list[GraphNode]:
    """Return the nodes of a reduction of single elements, and add their tensors; return others unchanged."""
    if one.kind != "reduction":
        return [one]
    ((_, x),), ((_, y),) = one.operands, one.results
    if values[x].spec.shape != values[y].spec.shape:
        return [one]
    if one.attribute("operator") in _MAGNITUDES:
        return [_pointwise("abs", y, x=x)]
    number = len(values)
    if one.attribute("operator") != "mul_no_zeros":
        # cuDNN does not write the result of an identity whose operand has other uses.
        values.append(GraphValue("", TensorSpec((), (), compute), "constant", 1.0))
        return [_pointwise("mul", y, x=x, b=number)]
    values.append(GraphValue("", TensorSpec((), (), compute), "constant", 0.0))
    values.append(GraphValue("", values[y].spec._replace(dtype=compute), "virtual"))  # 1 for zeros
    return [_pointwise("cmp_eq", number + 1, x=x, b=number), _pointwise("add", y, x=x, b=number + 1)]


def _pointwise(mode: str, y: int, **operands: int) -> GraphNode:
    return GraphNode("pointwise", tuple(operands.items()), (("y", y),), (("mode", mode),))
