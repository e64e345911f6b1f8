"""Graphs of one attention operation as problems of `ops.attention`, which has cuDNN's operations for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...errors import NotSupportedError
from ...shapes.attention import AttentionProblem, Band
from ...shapes.attention_rules import attention_gradient_problem, attention_problem
from ...shapes.graph.problem import GraphNode, GraphProblem
from ...shapes.specs import TensorSpec

# The fields of an `AttentionProblem` by the roles of the operations, and the axes that the fields keep.
_OPERANDS = {
    **{name: name for name in ("q", "k", "v", "bias")},
    "seq_len_q": "lengths_q",
    "seq_len_kv": "lengths_kv",
    "page_table_k": "page_table",
    "page_table_v": "page_table_v",
}
_FORWARD = {**_OPERANDS, "o": "y", "stats": "stats"}
_BACKWARD = {
    **_OPERANDS,
    **{name: name for name in ("dq", "dk", "dv", "dbias")},
    "do": "dy",
    "o": "saved_y",
    "stats": "saved_stats",
}
_KEPT_AXES = {
    **dict.fromkeys(("seq_len_q", "seq_len_kv"), (0,)),
    **dict.fromkeys(("page_table_k", "page_table_v"), (0, 2)),
    "stats": (0, 1, 2),
}


class GraphAttention(NamedTuple):
    """The problem of attention that a graph is, and the places of its operands among those of the graph."""

    problem: AttentionProblem
    places: tuple[int, ...]


def attention_of(problem: GraphProblem) -> GraphAttention | None:
    """Return a graph as a problem of attention; None if it has no ``sdpa`` and no ``sdpa_backward``.

    Raises
    ------
    NotSupportedError
        The graph has further operations, or a result of the operation is not an output.
    """
    found = [one for one in problem.nodes if one.kind in ("sdpa", "sdpa_backward")]
    if not found:
        return None
    if len(problem.nodes) > 1:
        raise NotSupportedError(
            f"cuDNN computes attention in a graph of its own: got {problem}, expected {found[0].kind} only"
        )
    (one,) = found
    pairs = dict((*one.operands, *one.results))
    if pairs.get("page_table_k") == pairs.get("page_table_v"):
        pairs.pop("page_table_v", None)
    fields = _FORWARD if one.kind == "sdpa" else _BACKWARD
    specs = {role: _spec(problem, role, place) for role, place in pairs.items() if role in fields}
    attention = (_forward if one.kind == "sdpa" else _backward)(one, specs, problem)
    memory = (*problem.inputs, *problem.outputs)
    places = {fields[role]: memory.index(pairs[role]) for role in specs}
    names = [name for name, value in attention._asdict().items() if isinstance(value, TensorSpec)]
    missing = [name for name in names if name not in places]
    if missing:
        roles = {name: role for role, name in fields.items()}
        listed = ", ".join(roles[name] for name in missing)
        raise NotSupportedError(
            f"cuDNN computes all results of {one.kind} together: {listed} must be among the outputs, too"
        )
    return GraphAttention(attention, tuple(places[name] for name in names))


def with_deterministic_sums(problem: GraphProblem) -> GraphProblem:
    """Return a graph whose gradients of attention are summed in one order."""
    wanted = (("deterministic", True),)
    nodes = (
        one._replace(attributes=one.attributes + wanted) if one.kind == "sdpa_backward" else one
        for one in problem.nodes
    )
    return problem._replace(nodes=tuple(nodes))


def _forward(one: GraphNode, specs: dict[str, TensorSpec], problem: GraphProblem) -> AttentionProblem:
    outs = specs.get("o"), specs.get("stats")
    given = {_OPERANDS[role]: spec for role, spec in specs.items() if role in _OPERANDS}
    arguments = (_scale(one, problem), False, None, 0.0, (0, 0))
    made = attention_problem(given, outs, outs[1] is not None, *arguments, aligned=problem.aligned)
    return made._replace(band=_band(one))


def _backward(one: GraphNode, specs: dict[str, TensorSpec], problem: GraphProblem) -> AttentionProblem:
    outs = tuple(specs.get(name) for name in ("dq", "dk", "dv", "dbias"))
    given = {_OPERANDS[role]: spec for role, spec in specs.items() if role in _OPERANDS}
    given |= {"dy": specs["do"], "y": specs["o"], "stats": specs["stats"]}
    facts: dict[str, Any] = {
        "aligned": problem.aligned,
        "deterministic": one.attribute("deterministic", False),
    }
    arguments = (_scale(one, problem), False, None, 0.0, (0, 0))
    made = attention_gradient_problem(given, outs, outs[3] is not None, *arguments, **facts)
    return made._replace(band=_band(one))


def _scale(one: GraphNode, problem: GraphProblem) -> float | None:
    return problem.operands_of(one)["scale"].value


def _band(one: GraphNode) -> Band:
    return Band(*one.attribute("band", ()))


def _spec(problem: GraphProblem, role: str, place: int) -> TensorSpec:
    spec = problem.values[place].spec
    axes = _KEPT_AXES.get(role)
    if axes is None:
        return spec
    return TensorSpec(
        tuple(spec.shape[axis] for axis in axes), tuple(spec.strides[axis] for axis in axes), spec.dtype
    )
