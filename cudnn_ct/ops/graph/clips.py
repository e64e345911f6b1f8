"""Clipped relus next to products of matrices as a relu without clips, a maximum and a minimum.

An engine of cuDNN 9.19 for products of float32 ignores the clips of a relu.
"""

from __future__ import annotations

from ...shapes.graph.problem import GraphNode, GraphProblem, GraphValue
from ...shapes.specs import TensorSpec

_CLIPS = ("relu_lower_clip", "relu_upper_clip")


def without_clips(problem: GraphProblem) -> GraphProblem:
    """Return a graph without clipped relus, or itself if it has no product of matrices."""
    if not any(one.kind == "matmul" for one in problem.nodes):
        return problem
    values = list(problem.values)
    nodes = [step for one in problem.nodes for step in _unclipped(one, values, problem.compute)]
    return problem._replace(values=tuple(values), nodes=tuple(nodes))


def _unclipped(one: GraphNode, values: list[GraphValue], compute: str) -> list[GraphNode]:
    """Return the nodes of a clipped relu, and add their tensors; other nodes are returned as they are."""
    lower, upper = (one.attribute(name) for name in _CLIPS)
    if one.attribute("mode") != "relu_fwd" or (lower is None and upper is None):
        return [one]
    slope = one.attribute("relu_lower_clip_slope")
    steps: list[tuple[str, float | None, dict[str, float]]] = []  # the mode, the number and the attributes
    if lower is None:
        steps.append(("relu_fwd", None, {} if slope is None else {"relu_lower_clip_slope": slope}))
    elif slope is None:
        steps.append(("max", lower, {}))
    else:
        leaky = {"relu_lower_clip_slope": slope}
        steps += [("sub", lower, {}), ("relu_fwd", None, leaky), ("add", lower, {})]
    if upper is not None:
        steps.append(("min", upper, {}))
    ((_, source),), ((_, result),) = one.operands, one.results
    made = []
    for number, (mode, constant, attributes) in enumerate(steps, 1):
        operands = [("x", source)]
        if constant is not None:
            operands.append(("b", len(values)))
            values.append(GraphValue("", TensorSpec((), (), compute), "constant", constant))
        if number < len(steps):
            source = len(values)
            between = values[result].spec._replace(dtype=compute)
            values.append(GraphValue("", between, "virtual"))
        else:
            source = result
        given = (("mode", mode), *attributes.items())
        made.append(GraphNode("pointwise", tuple(operands), (("y", source),), given))
    return made
