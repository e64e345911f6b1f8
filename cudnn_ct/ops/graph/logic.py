"""Logical operations of graphs as arithmetic of conditions, which are 0.0 or 1.0.

cuDNN computes logical operations of bool tensors to bool tensors only. 9.19 writes such results as packed
bits in some graphs, and 9.28 fails to compile operations that read them for most vector lengths.
"""

from __future__ import annotations

from ...shapes.graph.pointwise import LOGICAL
from ...shapes.graph.problem import GraphNode, GraphProblem, GraphValue
from ...shapes.specs import TensorSpec

_OF_TWO = {"logical_and": "min", "logical_or": "max"}


def without_logic(problem: GraphProblem) -> GraphProblem:
    """Replace logical operations by minima, maxima and comparisons with 0."""
    if all(one.attribute("mode") not in LOGICAL for one in problem.nodes):
        return problem
    values, nodes = list(problem.values), list[GraphNode]()

    def constant(number: int) -> int:
        value = number if "int" in problem.compute else float(number)
        values.append(
            GraphValue(f"number_{len(values)}", TensorSpec((), (), problem.compute), "constant", value)
        )
        return len(values) - 1

    zero = constant(0)

    def condition(place: int) -> int:
        """Return a value that is 1 where another value is not 0."""
        value = values[place]
        if value.role == "constant":
            return constant(int(value.value != 0))
        if value.spec.dtype == "bool":
            return place
        spec = value.spec._replace(dtype=problem.compute)
        values.append(GraphValue(f"condition_{len(values)}", spec, "virtual"))
        results = (("y", len(values) - 1),)
        nodes.append(GraphNode("pointwise", (("x", place), ("b", zero)), results, (("mode", "cmp_neq"),)))
        return len(values) - 1

    for one in problem.nodes:
        mode = one.attribute("mode")
        if mode == "logical_not":
            ((_, x),) = one.operands
            one = one._replace(operands=(("x", x), ("b", zero)), attributes=(("mode", "cmp_eq"),))
        elif mode in LOGICAL:
            operands = tuple((role, condition(place)) for role, place in one.operands)
            one = one._replace(operands=operands, attributes=(("mode", _OF_TWO[mode]),))
        nodes.append(one)
    return problem._replace(values=tuple(values), nodes=tuple(nodes))
