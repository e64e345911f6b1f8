"""Candidates for convolutions: the order of the backends, the candidates to time, and plans.

The heuristic choice is the first usable candidate, so the order of the sources decides between the backends.
It is fitted to measurements: see docs/algorithms.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any

from ..._algorithm_names import ALGORITHMS, POLICIES, PRODUCT, NamedAlgorithm, is_engine, is_product
from ..._lib import load
from ...algo_cache import CandidateSource
from ...context import Context
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...graph.engines import Engine
from ...graph.offline import target_of
from ...graph.operations import Graph
from ...legal.rules import engine_rules, more_engines, others_first, warn
from ...legal.subjects import subjects_of
from ...plans.axes import sliced
from ...plans.base import AlgoRequest, Candidate, Heuristic, Plan
from ...plans.elementwise import copy_plan, fill_plan
from ...plans.program import Step, chained, room_of
from ...plans.wrappers import on_copies, scaled_after
from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.specs import TensorSpec, nearest_layout
from .._graph_source import ReducedSource
from . import graph, legacy


def named_algorithm(name: str, problem: ConvProblem) -> NamedAlgorithm:
    """Return the algorithm of a name; raise ValueError if it is unknown or not for this problem."""
    if is_engine(name):
        return NamedAlgorithm(str(Engine.parse(name)))
    if is_product(name):
        return NamedAlgorithm(f"{PRODUCT}{Engine.parse(name.removeprefix(PRODUCT))}")
    rows = ALGORITHMS[problem.direction]
    every = dict.fromkeys(name for names in ALGORITHMS.values() for name in names)
    own = dict.fromkeys(row.algorithm for row in rows.values())
    # cuDNN's own names, which tables print, are not limited to the data that Theano used them for.
    if name in own and name not in every:
        return NamedAlgorithm(name)
    if name not in every:
        raise ValueError(
            f"algo is unknown: got {name!r}, expected one of the policies {', '.join(POLICIES)}, the names "
            f"{', '.join(every)}, the algorithms {', '.join(own)}, an engine such as 'engine 38 knobs 2=0', "
            "or a row of conv_algorithms"
        )
    axes, dtype = len(problem.stride), problem.x.dtype
    fitting = [one for one, row in rows.items() if axes in row.axes and dtype in row.dtypes]
    if name not in fitting:
        raise ValueError(
            f"algo={name!r} is not for {problem.direction} of {dtype} with {axes} spatial axes; "
            f"{', '.join(fitting)} are"
        )
    return rows[name]


def why_not_named(name: str, problem: ConvProblem) -> str:
    """Return why a named algorithm does not support the geometry of a problem; empty if it may."""
    # cuDNN's heuristics sometimes return such an algorithm as usable.
    window, size = problem.w.shape[2:], problem.x.shape[2:]
    strided = any(s != 1 for s in problem.stride)
    if name == "fft" and (strided or max(size) > 1024 or set(window) == {1}):
        return "fft needs stride 1, at most 1024 pixels along each axis, and a window of more than one"
    if name == "fft_tiling" and strided and problem.direction != "backward_filter":
        return "fft_tiling needs stride 1"
    return ""


# --- candidates --------------------------------------------------------------------------------------------

_Finder = Callable[[Any, Context], list[Candidate]]  # of engines for a problem
ENOUGH = 4  # with this many candidates on tensor cores, slower candidates are not timed


class Convolutions(CandidateSource):
    """The engines and legacy algorithms of convolutions with even padding, fused or not."""

    comparable = True

    def heuristics(self, problem: Any) -> list[Heuristic]:
        """Return sources of candidates in the order to try them, sources that copy no operands first."""
        modes = [("first", None), ("b", None), ("fallback", None)]
        sources, separate = _sources(problem, modes), _separate(problem, modes)
        if separate and "unfused" in others_first(problem, target_of(None)):
            sources = [*separate, *sources]
        elif separate:  # faster than fallback engines
            sources = [*sources[:2], *sources[3:], *separate, sources[2]]
        return [find for find, _ in sorted(sources, key=itemgetter(1))]

    def all_candidates(self, problem: Any, context: Context) -> list[Candidate]:
        """Return all engines of each heuristic and all legacy algorithms, rejected ones with reasons."""
        rows = _collect(problem, context, [(mode, None) for mode in ("b", "a", "fallback")])
        products = _engines(problem, _products().all_candidates, (), context)
        return sorted([*rows, *products], key=lambda row: bool(row.rejected))

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return the candidates to autotune."""
        most = request.max_engines
        rows = _collect(problem, context, [("b", most), ("a", most // 3), ("fallback", None)] if most else [])
        if most and request.compiled:
            known = {row.algorithm for row in rows}
            rows += [row for row in _further_engines(problem, context) if row.algorithm not in known]
        rows = [row for row in rows if request.compiled or not row.compiled]
        rows = [row._replace(rejected=row.rejected or request.rejection(row)) for row in rows]
        # On tensor cores, legacy calls and engines that are ranked too high were slower in all measurements.
        # Legacy calls may be faster than engines that run on copies.
        copied = _copies(problem, "graph")
        slow = _slow(rows, problem) if problem.core.tensor_cores and not copied else []
        if sum(not row.rejected for row in rows if row not in slow) >= ENOUGH:
            rows = [row for row in rows if row.rejected or row not in slow]
        if most and request.compiled:
            rows += _engines(problem, partial(_products().autotune_candidates, request), (), context)
        return rows

    def by_name(self, problem: Any, name: str) -> tuple[list[Heuristic], list[Heuristic]]:
        # Theano fell back to "none", whose error may exceed the bound of the precision: the heuristic choice
        # follows.
        instead = [*_named(problem, problem.core, "none"), *self.heuristics(problem)]
        return _named(problem, problem.core, name), instead

    def on_shapes(self, problem: Any, named: str) -> list[Candidate]:
        """Return the engines on each set of copies, then the legacy calls."""
        (row,) = super().on_shapes(problem, named)
        rows = [row._replace(relayout=packing) for packing in graph.engine_conversions(problem)]
        if load().lacks("cnn"):
            return rows
        names = [one.name.lower() for one in legacy.DIRECTIONS[problem.core.direction].algorithms]
        pairs = product(graph.layout_conversions(problem), names)
        called = [Candidate("legacy", name, "fma", 0, True, packing) for packing, name in pairs]
        if isinstance(problem, FusedConv) and not legacy.why_not_unfused(problem):
            called += [one._replace(backend="unfused", algorithm=f"legacy {one.algorithm}") for one in called]
        return rows + called

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make a candidate ready to run; raise NotSupportedError if its backend or cuDNN rejects it."""
        warn(problem, target_of(context))
        if candidate.backend == "unfused" and isinstance(problem, FusedConv):
            backend, _, algorithm = candidate.algorithm.partition(" ")
            row = candidate._replace(backend=backend, algorithm=algorithm)
            inner = self.plan(unfused(problem), row, context)
            packing = tuple(step for step in graph.with_epilogue(problem) if step[0] == "b")
            packed = graph.relaid_out(problem, packing)
            return _on_copies(legacy.unfused_plan(packed, inner), problem, packed)
        make = {"graph": graph.plan, "legacy": legacy.plan}.get(candidate.backend)
        if candidate.backend == "product":
            make = _products().plan
        if make is None:
            raise NotSupportedError(f"backend {candidate.backend!r} does not exist for this {problem}")
        legacy_call = candidate.backend == "legacy"
        offered = (
            list(graph.layout_conversions(problem)) if legacy_call else graph.engine_conversions(problem)
        )
        if candidate.relayout not in offered:  # a stored candidate may name any copies, or none
            raise NotSupportedError(
                f"{candidate} is not for this {problem}: got relayout={candidate.relayout}, "
                f"expected one of {offered}"
            )
        relaid = graph.relaid_out(problem, candidate.relayout)
        align = not problem.core.aligned and _needs_alignment(problem, candidate.backend)
        made: Plan = make(_in_aligned_memory(relaid) if align else relaid, candidate, context)
        if problem.core.scaled and not legacy_call:
            made = scaled_after(made, len(graph.operands_of(problem)) - 1, relaid.result)
        return _on_copies(made, problem, relaid, align)

    def graph_of(self, problem: Any) -> Graph:
        """Return the graph that engines compute, on contiguous and aligned copies where they need them."""
        return graph.graph_of(
            _in_aligned_memory(graph.relaid_out(problem, graph.engine_conversions(problem)[0]))
        )


CONVOLUTIONS = Convolutions()


def _on_copies(plan: Plan, problem: Any, relaid: Any, align: bool = False) -> Plan:
    """Wrap a plan for relaid operands so that it accepts the operands of the problem."""
    pairs = zip(graph.operands_of(problem).values(), graph.operands_of(relaid).values(), strict=True)
    moves = [(spec, None if spec == copy else copy) for spec, copy in pairs]
    return on_copies(plan, moves, align=align) if align or relaid != problem else plan


def unfused(problem: FusedConv) -> ConvProblem:
    """Return the convolution of a fused problem, without the fused operations."""
    return problem.conv._replace(scaled="alpha" if problem.alpha1 != 1 else "")


def _needs_alignment(problem: Any, backend: str) -> bool:
    """Return whether kernels for a problem load 16 bytes at once, and so need aligned operands."""
    # Legacy convolutions of floating-point operands accept any address. The fused call destroyed the CUDA
    # context with a misaligned bias.
    return backend != "legacy" or isinstance(problem, FusedConv) or problem.core.x.dtype == "int8"


def _in_aligned_memory(problem: Any) -> Any:
    if isinstance(problem, FusedConv):
        return problem._replace(conv=problem.conv._replace(aligned=True))
    return problem if problem.aligned else problem._replace(aligned=True)


def _products() -> Any:
    from . import as_product  # with the products, which the heuristic choice does not need

    return as_product


# --- sources of candidates ---------------------------------------------------------------------------------


def _sources(problem: Any, modes: Sequence[tuple[str, int | None]]) -> list[tuple[Heuristic, bool]]:
    """Return the sources of candidates for these heuristic modes, and whether they copy operands."""
    # The mode "first" has only the first choice of "b", which takes a tenth of the time.
    finders: list[_Finder] = [partial(_ranked_engines, *mode) for mode in modes]
    if modes and isinstance(problem, ConvProblem) and not graph.for_engines(problem):
        finders.insert(0, graph.preferred)
    needed, *others = graph.engine_conversions(problem)
    engines = _copies(problem, "graph")
    sources: list[tuple[Heuristic, bool]] = [
        (partial(_engines, problem, find, needed), engines) for find in finders
    ]
    sources += [(partial(_engines, problem, find, packing), True) for packing in others for find in finders]
    sources.append((partial(_legacy, problem, None), _copies(problem, "legacy")))
    return sources


def _separate(problem: Any, modes: Sequence[tuple[str, int | None]]) -> list[tuple[Heuristic, bool]]:
    """Return the same for the convolution in a fused problem by itself, followed by separate calls."""
    if not isinstance(problem, FusedConv):
        return []
    sources = _sources(unfused(problem), modes)
    return [(partial(_unfused_rows, problem, find), copies) for find, copies in sources]


def _copies(problem: Any, backend: str) -> bool:
    """Return whether a backend runs on copies of operands, for their address or their layout."""
    if backend == "graph" and graph.for_engines(problem):
        return True
    return not problem.core.aligned and _needs_alignment(problem, backend)


def _ranked_engines(mode: str, most: int | None, problem: Any, context: Context) -> list[Candidate]:
    if mode == "first":
        return graph.first_choice(problem, context)
    return graph.candidates(problem, context, (mode,), most)


def _engines(problem: Any, find: _Finder, packing: graph.Packing, context: Context) -> list[Candidate]:
    """Return engines for contiguous and aligned operands as candidates that copy the other operands."""
    rows = find(_in_aligned_memory(graph.relaid_out(problem, packing)), context)
    return _with_copies(problem, [row._replace(relayout=packing) for row in rows] if packing else rows)


def _further_engines(problem: Any, context: Context) -> list[Candidate]:
    """Return engines that facts name and that the heuristics do not list."""
    target = target_of(context)
    names = [name for subject in subjects_of(problem) for name in more_engines(subject, target)]

    def find(relaid: Any, context: Context) -> list[Candidate]:
        return [graph.by_name(relaid, name, context) for name in names]

    return _engines(problem, find, graph.engine_conversions(problem)[0], context)


def _legacy(problem: Any, algorithm: str | None, context: Context) -> list[Candidate]:
    rows = legacy.candidates(problem, context, algorithm)
    return _with_copies(problem, rows) if _needs_alignment(problem, "legacy") else rows


def _with_copies(problem: Any, rows: list[Candidate]) -> list[Candidate]:
    """Add the workspace for aligned copies to candidates whose operands may need copies."""
    if not rows or problem.core.aligned:
        return rows
    room = room_of(graph.operands_of(problem).values())
    return [row if row.rejected else row._replace(workspace=row.workspace + room) for row in rows]


def _named(problem: Any, core: ConvProblem, name: str) -> list[Heuristic]:
    if is_engine(name):
        return [
            partial(_engines, problem, lambda relaid, ctx: [graph.by_name(relaid, name, ctx)], packing)
            for packing in graph.engine_conversions(problem)
        ]
    if is_product(name):
        engine = name.removeprefix(PRODUCT)
        return [partial(_engines, problem, partial(_products().by_name, engine), ())]
    algorithm, geometry = named_algorithm(name, core).algorithm, why_not_named(name, core)
    if geometry:
        rejected = Candidate("legacy", algorithm, "any", 0, True, rejected=geometry)
        return [lambda _: [rejected]]
    stages: list[Heuristic] = [partial(_legacy, problem, algorithm)]
    if isinstance(problem, FusedConv):
        stages.append(partial(_unfused_rows, problem, partial(_legacy, unfused(problem), algorithm)))
    return stages


def _unfused_rows(problem: FusedConv, stage: Heuristic, context: Context) -> list[Candidate]:
    """Return candidates for the convolution as candidates that run the fused operations afterwards."""
    lacks = context.library.lacks("ops")
    impossible = legacy.why_not_unfused(problem) or (lacks and f"a separate call {lacks}")
    return [
        row._replace(
            backend="unfused", algorithm=f"{row.backend} {row.algorithm}", rejected=row.rejected or impossible
        )
        for row in stage(context)
    ]


def _collect(problem: Any, context: Context, modes: Sequence[tuple[str, int | None]]) -> list[Candidate]:
    """Return the candidates of these heuristics and the legacy calls, each once, rejected ones last."""
    rows: dict[tuple[Any, ...], Candidate] = {}
    for find, _ in (*_sources(problem, modes), *_separate(problem, modes)):
        for row in find(context):
            rows.setdefault(row.key, row)
    return sorted(rows.values(), key=lambda row: bool(row.rejected))


def _slow(rows: list[Candidate], problem: Any) -> list[Candidate]:
    """Return the candidates that were slow in measurements on tensor cores: legacy, or ranked too high."""
    slow = {f"graph engine {number}" for number in engine_rules(problem, target_of(None)).last}
    names = [row.algorithm if row.backend == "unfused" else f"{row.backend} {row.algorithm}" for row in rows]
    heads = [name.partition(" knobs")[0] for name in names]
    return [row for row, head in zip(rows, heads, strict=True) if head in slow or head.startswith("legacy ")]


# --- padding that differs between the two sides of an axis -------------------------------------------------
# Such a problem is computed on a padded copy of the image, with padding that is even: legacy calls support
# no other, and eight engines of cuDNN 9.19 gave wrong results or accessed memory that is not theirs.


def with_even_padding(problem: Any) -> Any:
    """Return the problem on a padded image, whose padding is the same on both sides of each axis.

    int8 problems are returned as they are: copies support only floating-point numbers.
    """
    core = problem.core
    if not core.asymmetric_padding or core.x.dtype == "int8":
        return problem
    sizes = [
        n + abs(after - before) for n, (before, after) in zip(core.x.shape[2:], core.padding, strict=True)
    ]
    layout = nearest_layout(*(spec for spec in (core.x, core.w, core.y) if spec.layouts), core.x)
    even = core._replace(
        x=TensorSpec.packed((*core.x.shape[:2], *sizes), core.x.dtype, layout),
        padding=tuple((min(pair), min(pair)) for pair in core.padding),
    )
    return problem._replace(conv=even) if isinstance(problem, FusedConv) else even


def _planned(inner: CandidateSource, problem: Any, candidate: Candidate, context: Context) -> Plan:
    even = with_even_padding(problem)
    made = inner.plan(even, candidate, context)
    if even is problem:
        return made
    x, padded = problem.core.x, even.core.x
    inside = x._replace(strides=padded.strides)
    strides = zip(problem.core.padding, padded.strides[2:], strict=True)
    start = sum((before - min(before, after)) * step for (before, after), step in strides)
    start *= DTYPES[x.dtype].itemsize
    names = list(graph.operands_of(problem))
    image, copy = names.index("x"), len(names)
    places = tuple(copy if place == image else place for place in range(len(names)))
    if problem.core.direction == "backward_data":
        out_of = sliced([(copy_plan(inside, x), (start, 0))])
        steps = [Step(made, places), Step(out_of, (copy, image))]
    else:
        edge = fill_plan(padded, 0.0)
        into = sliced([(copy_plan(x, inside), (0, start))])
        steps = [Step(edge, (copy,)), Step(into, (image, copy)), Step(made, places)]
    scaled = 0 if problem.core.direction == "backward_data" else 2
    return chained([padded], steps, scaled, about="{}; on a padded copy of the image", main=made)


def _with_room(row: Candidate, problem: Any) -> Candidate:
    """Add the workspace of the padded copy."""
    even = with_even_padding(problem)
    return row if even is problem else row._replace(workspace=row.workspace + room_of([even.core.x]))


class PaddedConvolutions(ReducedSource):
    """The candidates of convolutions with any padding."""

    def all_candidates(self, problem: Any, context: Context) -> list[Candidate]:
        """Return all engines of each heuristic and all legacy algorithms, rejected ones with reasons."""
        return self._all(problem, CONVOLUTIONS.all_candidates(with_even_padding(problem), context))


SOURCE = PaddedConvolutions(CONVOLUTIONS, with_even_padding, _planned, _with_room)
