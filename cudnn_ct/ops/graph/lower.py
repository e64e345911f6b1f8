"""The native form of a graph of a user, with the changes that facts about cuDNN ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import gcd, prod

from ...errors import NotSupportedError
from ...facts import Target
from ...graph.layouts import BROADCASTS, CONVERSIONS, known, wrong_broadcasts, wrong_conversions
from ...graph.offline import target_of
from ...graph.operations import Graph, Tensor
from ...legal.conditions import applying
from ...shapes.checks import FLOATS
from ...shapes.graph.problem import CONVOLUTION_KINDS, GraphProblem, GraphValue, broadcast
from ...shapes.specs import Shape, TensorSpec
from ..attention.core import core_of
from ..attention.graph import graph_of
from .attention import attention_of
from .native import native_graph
from .rewrites import (
    ELEMENTWISE,
    with_separate_inputs,
    without_clips,
    without_empty_reductions,
    without_logic,
)

CHANNELS = 1024  # elements of a pixel, if a whole tensor is reduced

_NORMS = {"norm_forward", "norm_backward"}
_OF_ROWS = {"layer_norm", "rms_norm"}

Axes = list[tuple[int, int]]  # the length and the stride of each axis


def coalesced(problem: GraphProblem, *, index: bool = True) -> GraphProblem:
    """Return the graph with merged axes, or itself if an operation depends on the axes that it was given.

    With ``index``, that of rows is computed along the first of two axes.
    """
    kinds = {one.kind for one in problem.nodes}
    if not kinds <= {*ELEMENTWISE, "reduction", "matmul", *_NORMS}:
        return problem
    if any(one.attribute("mode") == "gen_index" for one in problem.nodes):
        return _with_index_of_rows(problem) if index else problem
    rank = max(len(value.spec.shape) for value in problem.values)
    last = rank - 2 if "matmul" in kinds else rank  # the axes before this one may be merged
    if kinds & _NORMS:
        # Norms of rows treat all axes before alike; others tell samples and channels apart.
        rows = (rank - 1,)
        norms = [one for one in problem.nodes if one.kind in _NORMS]
        if not all(
            one.attribute("mode") in _OF_ROWS and one.attribute("normalized", rows) == rows for one in norms
        ):
            return problem
        last = min(last, rank - 1)
    axes = [_axes(value.spec, rank) for value in problem.values]
    if kinds <= {*ELEMENTWISE}:
        largest = max(axes, key=lambda one: prod(n for n, _ in one))
        order = sorted(range(rank), key=lambda place: -largest[place][1])  # that it has in memory
        axes = [[one[place] for place in order] for one in axes]
    if rank > 2 or kinds & {"reduction", *_NORMS}:
        place = 0
        while place + 1 < last:
            if _mergeable(axes, place):
                axes = [_merged(one, place) for one in axes]
                last -= 1
            else:
                place += 1
    if "reduction" in kinds and not kinds & {"matmul", *_NORMS} and len(axes[0]) <= 4:
        axes = [_image(one) for one in _split(axes)]
    values = tuple(_with_axes(value, own) for value, own in zip(problem.values, axes, strict=True))
    return problem._replace(values=values)


def _with_index_of_rows(problem: GraphProblem) -> GraphProblem:
    """Merge the last two axes if cuDNN would compute an index along the first of three axes wrong."""
    indices = [one for one in problem.nodes if one.attribute("mode") == "gen_index"]
    of_rows = all(
        one.attribute("axis") == 0 and len(problem.operands_of(one)["x"].spec.shape) == 3 for one in indices
    )
    axes = [_axes(value.spec, 3) for value in problem.values if len(value.spec.shape) <= 3]
    elementwise = all(one.kind in ELEMENTWISE for one in problem.nodes)
    if not (of_rows and elementwise and len(axes) == len(problem.values) and _mergeable(axes, 1)):
        return problem
    merged = (_with_axes(value, _merged(own, 1)) for value, own in zip(problem.values, axes, strict=True))
    return problem._replace(values=tuple(merged))


def _axes(spec: TensorSpec, rank: int) -> Axes:
    return [(1, 1)] * (rank - len(spec.shape)) + list(zip(spec.shape, spec.strides, strict=True))


def _mergeable(axes: list[Axes], place: int) -> bool:
    """Whether each tensor has both axes in contiguous memory, or is broadcast along both."""
    outer, inner = (max(one[at][0] for one in axes) for at in (place, place + 1))
    for one in axes:
        (p, step), (q, next_step) = one[place], one[place + 1]
        whole = (p, q) == (outer, inner) and (1 in (p, q) or step == q * next_step)
        if not whole and (p, q) != (1, 1):
            return False
    return True


def _merged(axes: Axes, place: int) -> Axes:
    (p, step), (q, next_step) = axes[place : place + 2]
    return [*axes[:place], (p * q, next_step if q > 1 else step), *axes[place + 2 :]]


def _split(axes: list[Axes]) -> list[Axes]:
    """Split one axis, all of whose elements are reduced, into pixels."""
    if len(axes[0]) > 1:
        return axes
    length = max(one[0][0] for one in axes)
    channels = gcd(length, CHANNELS)
    return [
        [(n // channels, step * channels), (channels, step)] if n > 1 else [(1, 1), (1, 1)]
        for ((n, step),) in axes
    ]


def _image(axes: Axes) -> Axes:
    """Return axes as (N, C, H, W): the last one as channels."""
    first, *middle, last = axes
    reach = max(last[0] * last[1], 1)
    return [first, last, *middle, *[(1, reach)] * (2 - len(middle))]


def _with_axes(value: GraphValue, axes: Axes) -> GraphValue:
    if value.role == "constant":
        return value
    shape: Shape = tuple(n for n, _ in axes)
    return value._replace(spec=TensorSpec(shape, tuple(step for _, step in axes), value.spec.dtype))


# --- lowering ----------------------------------------------------------------------------------------------


def lowered(problem: GraphProblem, target: Target | None = None) -> Graph:
    """Return the graph of a problem, with the operands in the order of a run's pointers.

    Facts about the ``target``, by default this cuDNN, decide which nodes become others. That of attention
    has the operands of `attention.graph.named_graph`.
    """
    target = target_of(None) if target is None else target
    attention = attention_of(problem)
    if attention is not None:
        return graph_of(core_of(attention.problem, target.version).problem)
    _check(problem)
    facts = {one.name for one in applying("rewrite", ("graph", problem), target)}
    for name, rule in _BEFORE_MERGING.items():
        problem = rule(problem) if name in facts else problem
    problem = coalesced(problem, index=_INDEX in facts)
    for name, rule in _AFTER_MERGING.items():
        problem = rule(problem) if name in facts else problem
    return native_graph(*with_separate_inputs(problem)) if _INPUTS in facts else native_graph(problem)


def _with_conditions(problem: GraphProblem) -> GraphProblem:
    """Let conditions be 0.0 or 1.0."""
    values = [
        value._replace(spec=value.spec._replace(dtype=problem.compute))
        if value.spec.dtype == "bool" and value.role == "virtual"
        else value
        for value in problem.values
    ]
    return problem._replace(values=tuple(values))


_Rule = Callable[[GraphProblem], GraphProblem]

# Rules by the names of their facts, in the order in which they are applied.
_BEFORE_MERGING: dict[str, _Rule] = {
    "graph-single-reductions": without_empty_reductions,
    "graph-clips": without_clips,
}
_AFTER_MERGING: dict[str, _Rule] = {
    "graph-logic": without_logic,
    "graph-computed-conditions": _with_conditions,
}
_INDEX, _INPUTS = "graph-first-index", "graph-shared-inputs"
REWRITES = (*_BEFORE_MERGING, *_AFTER_MERGING, _INDEX, _INPUTS)
"""Names of the facts that :func:`lowered` computes around."""


def _check(problem: GraphProblem) -> None:
    """Raise if padding is uneven, or if a norm in training lacks a result."""
    # cuDNN 9.28 dies of an instance norm's y alone.
    for one in problem.nodes:
        if one.kind in CONVOLUTION_KINDS and one.attribute("pre_paddings") != one.attribute("post_paddings"):
            raise NotSupportedError(
                "padding differs between the two sides of an axis, for which engines write wrong numbers; "
                "pad the operand, or use ct.conv, which does"
            )
        if one.kind != "norm_forward" or one.attribute("phase") != "training":
            continue
        mode, results = one.attribute("mode"), dict(one.results)
        needed = ["inv_variance"]
        needed += ["mean"] if mode == "batch_norm" else []
        needed += ["next_running_mean", "next_running_var"] if "running_mean" in dict(one.operands) else []
        missing = [name for name in needed if name not in results]
        if missing:
            alone = f"; Graph.{mode} computes y alone" if mode in ("layer_norm", "rms_norm") else ""
            raise NotSupportedError(
                f"cuDNN computes the results of norm together: {', '.join(missing)} of {mode} must be among "
                f"the outputs, too{alone}"
            )


# --- copies ------------------------------------------------------------------------------------------------
# cuDNN has no engine for many broadcasts, and computes others wrong: the axes of length 1 of such an input
# are repeated. It converts rows of half precision that are not whole words wrong before it multiplies them
# in float32: such an input is converted.

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
    old = {place: value.spec for place, value in enumerate(problem.values)}
    specs = dict(old)
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
    """Return the specs of inputs in other dtypes; empty if one cannot be converted."""
    # An input that products read themselves stays: it would not fit the other operand.
    direct = {place for one in problem.nodes if one.kind not in ELEMENTWISE for _, place in one.operands}
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
        if one.kind not in ELEMENTWISE:
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
        if one.kind not in ELEMENTWISE or place not in dict(one.operands).values():
            continue
        ((_, result),) = one.results
        if problem.values[result].spec.shape == own:
            yield from _targets(problem, result)
        else:
            yield problem.values[result].spec[:2]
