"""Copies of inputs that engines would read wrong, made on the device before a graph runs.

cuDNN has no engine for many broadcasts, and computes others wrong: the axes of length 1 of such an input are
repeated. It converts rows of half precision that are not whole words wrong before it multiplies them in
float32: such an input is converted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ...errors import NotSupportedError
from ...facts import Target
from ...graph.broadcasts import wrong_broadcasts, wrong_conversions
from ...graph.layouts import BROADCASTS, CONVERSIONS, known
from ...graph.offline import target_of
from ...graph.operations import Graph, Tensor
from ...shapes.checks import FLOATS
from ...shapes.graph.problem import GraphProblem
from ...shapes.graph.rules import broadcast
from ...shapes.specs import TensorSpec
from .lower import lowered

_ELEMENTWISE = ("pointwise", "pointwise_backward")
ROUNDS = 4  # copies may make further broadcasts wrong, which are looked for again

Specs = dict[int, TensorSpec]  # by the place of a value


def with_copies(problem: GraphProblem) -> GraphProblem:
    """Return the graph with the specs of the copies that engines need, or itself if they need none.

    If copies do not help, the graph is returned as well: its nodes are rejected with the reason.
    """
    target = target_of(None)
    changed = dict(_changed(problem, target, known(CONVERSIONS, target), known(BROADCASTS, target)))
    return _with_specs(problem, changed) if changed else problem


# The graph itself is not cached: equal graphs may have different zeros.
@lru_cache(maxsize=256)
def _changed(
    problem: GraphProblem, target: Target, converts: bool, repeats: bool
) -> tuple[tuple[int, TensorSpec], ...]:
    """Return the values whose specs change: inputs that are copied, and what is computed from them."""
    specs = {place: value.spec for place, value in enumerate(problem.values)}
    for _ in range(ROUNDS):
        current = _with_specs(problem, specs)
        try:
            graph = lowered(current, target)
        except NotSupportedError:
            return ()
        conversions = list(wrong_conversions(graph)) if converts else []
        broadcasts = list(wrong_broadcasts(graph)) if repeats else []
        converted = {_place(tensor): dtype for tensor, dtype in conversions}
        repeated = {place for tensor, _ in broadcasts for place in _inputs_of(graph, tensor)}
        if not (converted or broadcasts):
            break
        changed = _converted(current, converted) if converted else _grown(current, repeated)
        if not changed:
            return ()
        specs |= changed
    else:
        return ()
    old = {place: value.spec for place, value in enumerate(problem.values)}
    changed = {place: spec for place, spec in specs.items() if spec != old[place]}
    both = [p for p, spec in changed.items() if spec.shape != old[p].shape and spec.dtype != old[p].dtype]
    return () if both else tuple(changed.items())  # one call cannot repeat and convert


def _with_specs(problem: GraphProblem, specs: Specs) -> GraphProblem:
    values = (value._replace(spec=specs.get(place, value.spec)) for place, value in enumerate(problem.values))
    return problem._replace(values=tuple(values))


def _inputs_of(graph: Graph, tensor: Tensor) -> Iterator[int]:
    """Yield the places of the inputs that a tensor of the native graph is, or is computed from."""
    if tensor.value is not None:
        return
    if not tensor.virtual:
        yield _place(tensor)
        return
    for one in graph.nodes:
        if one.row == "pointwise" and tensor in (one.attributes.get("ydesc"), one.attributes.get("dxdesc")):
            for name in ("xdesc", "bdesc", "tdesc", "dydesc"):
                operand = one.attributes.get(name)
                if isinstance(operand, Tensor):
                    yield from _inputs_of(graph, operand)


def _place(tensor: Tensor) -> int:
    """Return the place of the value of a tensor in memory: tensors have the order of the values."""
    return (tensor.same_memory_as or tensor.uid) - 1


def _converted(problem: GraphProblem, dtypes: dict[int, str]) -> Specs:
    """Return the specs of inputs in other dtypes; empty if one cannot be converted.

    An input that products read themselves stays: it would not fit the other operand.
    """
    direct = {place for one in problem.nodes if one.kind not in _ELEMENTWISE for _, place in one.operands}
    if any(
        place in direct
        or problem.values[place].role != "input"
        or not {dtype, problem.values[place].spec.dtype} <= set(FLOATS)
        for place, dtype in dtypes.items()
    ):
        return {}
    return {place: problem.values[place].spec._replace(dtype=dtype) for place, dtype in dtypes.items()}


def _grown(problem: GraphProblem, repeated: set[int]) -> Specs:
    """Return the specs of repeated inputs, and of what is computed from them; empty if one cannot be."""
    found: Specs = {}
    for place in repeated:
        if problem.values[place].role != "input" or problem.values[place].spec.dtype not in FLOATS:
            return {}
        targets = set(_targets(problem, place))
        if len(targets) != 1:
            return {}
        ((shape, strides),) = targets
        found[place] = TensorSpec(shape, strides, problem.values[place].spec.dtype)
    for one in problem.nodes:
        if not any(place in found for _, place in one.operands):
            continue
        if one.kind not in _ELEMENTWISE:
            return {}
        given = {role: found.get(place, problem.values[place].spec) for role, place in one.operands}
        shape = broadcast(**{role: spec.shape for role, spec in given.items()})
        ((_, place),) = one.results
        value = problem.values[place]
        if value.spec.shape == shape:
            continue
        if value.role != "virtual":
            return {}
        whole = next(spec for spec in given.values() if spec.shape == shape)
        found[place] = TensorSpec(shape, whole.strides, value.spec.dtype)
    return found


def _targets(problem: GraphProblem, place: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield shape and strides of the results for which a value, or what is computed from it, is repeated."""
    own = problem.values[place].spec.shape
    for one in problem.nodes:
        if one.kind not in _ELEMENTWISE or place not in dict(one.operands).values():
            continue
        ((_, result),) = one.results
        if problem.values[result].spec.shape == own:
            yield from _targets(problem, result)
        else:
            yield problem.values[result].spec[:2]
