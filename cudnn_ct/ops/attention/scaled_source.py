"""Candidates of attention of float8: the engines of its graph, and plans that add scales and copies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from ...autotune.request import AlgoRequest
from ...context import Context
from ...errors import NotSupportedError
from ...graph.candidates import no_engine
from ...graph.offline import compute_capability
from ...plans.base import Candidate, Heuristic, Plan, tensors_of
from ...plans.elementwise import constant_plan
from ...plans.workspace import align_after, nbytes_of, room_of
from ...plans.wrappers import RelayoutPlan
from ...shapes.attention_rules import like_axes
from ...shapes.epilogue import FLOAT8
from ...shapes.scaled_attention import HEAD_MULTIPLE, SCALES, WEIGHT_SCALE, ScaledAttentionProblem
from ...shapes.specs import ALIGNMENT, TensorSpec
from .._graph_source import GraphSource
from .._sequences import DeviceFloats, not_on_stream
from .graph import MASKED
from .known import DEFECTS
from .scaled_graph import scaled_attention_graph
from .source import FillsPlan

__all__ = ["SOURCE", "ScaledAttentionSource", "completed", "fills_of"]

ENGINES = GraphSource(scaled_attention_graph)
WIDEST_FOR_ALL = 128  # elements of a head up to which all engines computed right results
FLOATS_IN_ALIGNMENT = ALIGNMENT // 4

# The numbers on the device that stand for missing scales, and their key in `Context.plans`.
_DEFAULTS = (1.0, *WEIGHT_SCALE.values(), *(1 / scale for scale in WEIGHT_SCALE.values()))
_KEY = object()


def completed(problem: ScaledAttentionProblem) -> ScaledAttentionProblem:
    """Return the problem of the graph: with all scales and amax, on operands that kernels can load."""
    one = TensorSpec.packed((1,), "float32")
    stats = None if problem.stats is None else TensorSpec.packed(problem.stats.shape, "float32")
    changed: dict[str, Any] = dict.fromkeys((*SCALES, "amax"), one)
    changed |= {name: _loadable(getattr(problem, name)) for name in ("q", "k", "v", "y")}
    return problem._replace(**changed, stats=stats, aligned=True)


class ScaledAttentionSource:
    """The candidates of a problem: engines of the graph of the problem that `completed` returns."""

    def heuristics(self, problem: ScaledAttentionProblem) -> Sequence[Heuristic]:
        """Return the stages of the graph's engines."""
        return self._of(problem, ENGINES.heuristics(completed(problem)))

    def autotune_candidates(
        self, problem: ScaledAttentionProblem, context: Context, request: AlgoRequest
    ) -> list[Candidate]:
        """Return the engines to time."""
        wrong = _why_not(problem, context)
        if wrong:
            return [no_engine(wrong)]
        rows = ENGINES.autotune_candidates(completed(problem), context, request)
        return [_with_room(row, problem) for row in rows]

    def by_name(
        self, problem: ScaledAttentionProblem, name: str
    ) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the stage for the engine of a name, and the heuristics for its replacement."""
        named, instead = ENGINES.by_name(completed(problem), name)
        return self._of(problem, named), self._of(problem, instead)

    def plan(self, problem: ScaledAttentionProblem, candidate: Candidate, context: Context) -> Plan:
        """Make an engine ready to run on the operands of the problem."""
        wrong = _why_not(problem, context) or _why_not_engine(problem, candidate, context)
        if wrong:
            raise NotSupportedError(f"{candidate} is rejected for this {problem}: {wrong}")
        DEFECTS.warn(problem, context.library.version, compute_capability(context))
        made = _CompletePlan(ENGINES.plan(completed(problem), candidate, context), problem)
        moves = _moves(problem)
        if problem.aligned and not any(copy for _, copy in moves):
            return made
        return RelayoutPlan(made, moves, outputs=len(problem.results), align=not problem.aligned)

    def _of(self, problem: ScaledAttentionProblem, stages: Sequence[Heuristic]) -> list[Heuristic]:
        return [partial(self._found, problem, stage) for stage in stages]

    def _found(self, problem: ScaledAttentionProblem, stage: Heuristic, context: Context) -> list[Candidate]:
        wrong = _why_not(problem, context)
        return [no_engine(wrong)] if wrong else [_with_room(row, problem) for row in stage(context)]


SOURCE = ScaledAttentionSource()


def _why_not(problem: ScaledAttentionProblem, context: Context) -> str:
    return DEFECTS.refusal(problem, context.library.version, compute_capability(context))


def _why_not_engine(problem: ScaledAttentionProblem, candidate: Candidate, context: Context) -> str:
    """Return why an engine must not run, empty if it may: only the first choice is known for wide heads."""
    if problem.q.shape[-1] <= WIDEST_FOR_ALL:
        return ""
    (stage, *_) = ENGINES.heuristics(completed(problem))
    first = stage(context)[0]
    if first.rejected or first.algorithm == candidate.algorithm:
        return ""
    return (
        f"engines other than the first choice, {first.algorithm}, accessed memory out of bounds with D = 192 "
        "on an H200 with cuDNN 9.19"
    )


def _with_room(row: Candidate, problem: ScaledAttentionProblem) -> Candidate:
    """Add the workspace of amax and of copies."""
    if row.rejected:
        return row
    copies = [copy or spec for spec, copy in _moves(problem) if copy or not problem.aligned]
    room = room_of([*copies, TensorSpec.packed((1,), "float32")])
    return row._replace(workspace=row.workspace + room)


# --- operands ----------------------------------------------------------------------------------------------


def _loadable(spec: TensorSpec) -> TensorSpec:
    """Return a spec that kernels can load: contiguous heads, whose strides are multiples of 16."""
    *outer, last = spec.strides
    loads = last == 1 and not any(step % HEAD_MULTIPLE for step in outer) and not spec.overlaps_itself
    spec = spec if loads else like_axes(spec.shape, spec)
    pairs = list(zip(spec.shape, spec.strides, strict=True))
    reach = max(n * step for n, step in pairs if n > 1)
    # No element uses the stride of an axis of length 1; kernels check it nevertheless.
    return spec._replace(strides=tuple(step if n > 1 else reach for n, step in pairs))


def _moves(problem: ScaledAttentionProblem) -> list[tuple[TensorSpec, TensorSpec | None]]:
    """Return the operands, each with the spec of its copy if kernels cannot load it."""
    core = completed(problem)
    moves: list[tuple[TensorSpec, TensorSpec | None]] = []
    for name, spec in tensors_of(problem).items():
        copy: TensorSpec = getattr(core, name)
        if copy.size == 1 or (copy.shape == spec.shape and _same_memory(spec, copy)):
            moves.append((spec, None))
        else:
            moves.append((spec, copy))
    return moves


def _same_memory(one: TensorSpec, other: TensorSpec) -> bool:
    """Return whether two specs of a shape have the same elements in memory."""
    steps = zip(one.shape, one.strides, other.strides, strict=True)
    return all(a == b for n, a, b in steps if n > 1)


# --- plans -------------------------------------------------------------------------------------------------


def _defaults_of(context: Context) -> DeviceFloats:
    """Return the array of the defaults, each of which is aligned; the context has one."""
    found: DeviceFloats | None = context.plans.get(_KEY)
    if found is None:
        if context.capturing:
            raise not_on_stream("scales")
        padding = (0.0,) * (FLOATS_IN_ALIGNMENT - 1)
        numbers = [number for value in _DEFAULTS for number in (value, *padding)]
        found = context.plans[_KEY] = DeviceFloats(context.device, numbers, "scales")
    return found


class _Sources(NamedTuple):
    """Sources of the operands of the graph.

    ``places`` are places among a run's pointers, None for those that a call lacks. ``defaults`` are the
    places of missing scales among `_DEFAULTS`, by their place in the graph. ``amax`` is the place of amax.
    """

    places: tuple[int | None, ...]
    defaults: dict[int, int]
    amax: int


def _sources_of(problem: ScaledAttentionProblem) -> _Sources:
    names, given = list(tensors_of(completed(problem))), list(tensors_of(problem))
    weight = WEIGHT_SCALE[problem.q.dtype]
    values = dict.fromkeys(SCALES, 1.0) | {"scale_s": weight, "descale_s": 1 / weight}
    places = tuple(given.index(name) if name in given else None for name in names)
    missing = [name for name in SCALES if name not in given]
    defaults = {names.index(name): _DEFAULTS.index(values[name]) for name in missing}
    return _Sources(places, defaults, names.index("amax"))


class _CompletePlan:
    """A plan of a graph, with pointers for the scales and the amax that a call lacks.

    cuDNN takes the larger one of amax and the contents of its memory, so that is zero before a run.
    """

    __slots__ = ("_inner", "_offset", "_sources", "_zero", "workspace")

    def __init__(self, inner: Plan, problem: ScaledAttentionProblem) -> None:
        self._inner = inner
        self._sources = _sources_of(problem)
        one = TensorSpec.packed((1,), "float32")
        self._zero = constant_plan(one, 0.0)
        self._offset, self.workspace = align_after(inner.workspace, nbytes_of(one))

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        places, defaults, amax = self._sources
        given = [0 if place is None else pointers[place] for place in places]
        if defaults:
            first = _defaults_of(context).on(context, self).pointer
            for number, default in defaults.items():
                given[number] = first + ALIGNMENT * default
        if places[amax] is None:
            given[amax] = context.workspace(self.workspace) + self._offset
        else:
            self._zero.run(context, (given[amax],), 1.0, 0.0)
        self._inner.run(context, given, alpha, beta)
        if defaults:
            _defaults_of(context).keep_until_done(context.stream)

    def describe(self) -> str:
        return self._inner.describe()


def fills_of(problem: ScaledAttentionProblem) -> FillsPlan:
    """Return the plan of the results of queries without keys: zeros, and -inf in the statistics."""
    return FillsPlan(
        (place, _fill_plan(name, spec))
        for place, (name, spec) in enumerate(tensors_of(problem).items())
        if name in ("y", "stats", "amax") and spec.size
    )


def _fill_plan(name: str, spec: TensorSpec) -> Plan:
    if name == "y" and spec.dtype in FLOAT8:  # whose zero has the bits of int8's
        return constant_plan(spec._replace(dtype="int8"), 0)
    return constant_plan(spec, MASKED if name == "stats" else 0.0)
