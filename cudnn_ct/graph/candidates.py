"""Engines of a graph as candidates, in their order, and their plans, which threads may compile ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import Any, TypeVar, cast

from ..context import Context
from ..cuda import stream as streams
from ..errors import (
    AllocationError,
    BadParamError,
    CudnnError,
    ExecutionFailedError,
    NotSupportedError,
    Warnings,
    deferring,
    warn_caller,
    without_frames,
)
from ..facts import on_gpu
from ..plans.base import DYNAMIC_SHAPES, Candidate
from . import recording
from .engines import HEURISTICS, Engine, EngineConfig, execution_plan, heuristic_configs, offer_of
from .native import operation_graph
from .offline import Planner, ShapesOnly, compute_capability
from .operations import Graph
from .plan import BackendDescriptor, GraphPlan, attempt, place_scratch
from .plan_store import timing
from .recording import PlanRequest
from .rules import EngineRules
from .stored import CompiledPlan, graph_plan, plan_key

__all__ = [
    "NO_DYNAMIC_ENGINE",
    "NO_ENGINE",
    "EngineRules",
    "engine_by_name",
    "engine_candidates",
    "engine_of_other_sizes",
    "engine_plan",
    "first_dynamic_engine",
    "first_engine",
    "first_plan",
    "no_engine",
]

NO_ENGINE = "all engines"  # the name of the row that stands for engines if none exists
NO_DYNAMIC_ENGINE = "engines for dynamic shapes"  # the same for those of a dynamic graph
FIRST_READ = 8  # engines of a heuristic mode that are read if only the first ones are wanted


def no_engine(reason: str, name: str = NO_ENGINE) -> Candidate:
    """Return the rejected candidate that stands for engines which cannot compute a problem."""
    return Candidate("graph", name, "any", 0, True, rejected=reason)


def engine_candidates(
    graph: Graph,
    rules: EngineRules,
    context: Context | Planner,
    heuristics: Iterable[str] = HEURISTICS,
    most: int | None = None,
    first: int | None = None,
) -> list[Candidate]:
    """Return the engines of a graph as candidates, the best first, then the rejected ones.

    The order is that of cuDNN's heuristics, which are queried in these modes. ``most`` limits the number of
    usable engines from them. With ``first``, only the first engines of each mode are read, up to that many
    usable ones that need not come last: each takes tens of calls of cuDNN. If notes are excluded, the engines
    that the heuristics omit follow those of the fallback mode. If no engine exists, the result is one
    candidate with the reason.
    """
    refusal = rules.refusal(compute_capability(context))
    if refusal:
        return [no_engine(refusal)]
    heuristics = list(heuristics)
    rows = _named_first(graph, rules, context)[: first if most is None else most]
    if rows and len(rows) in (first, most):
        return rows
    known = {row.key for row in rows}
    try:
        native = operation_graph(graph, context)
        for offer in heuristic_configs(native, context, heuristics, None if first is None else FIRST_READ):
            row = _candidate(offer, rules, graph, context)
            rows += [] if row.key in known else [row]
            if most is not None and sum(not row.rejected for row in rows) >= most:
                break
            usable = (Engine.parse(row.algorithm).number for row in rows if not row.rejected)
            if first is not None and sum(number not in rules.last for number in usable) >= first:
                break
    except (NotSupportedError, BadParamError) as error:
        return rows or [no_engine("; ".join([str(error), *getattr(error, "__notes__", [])]))]
    if rules.excluded and "fallback" in heuristics:
        # The heuristics return about forty configurations at most, which may all have excluded notes.
        found = {Engine.parse(row.algorithm).number for row in rows}
        others = [number for number in range(native.one("engine_global_count")) if number not in found]
        offers = (offer_of(native, Engine(number), context, rules.excluded) for number in others)
        rows += [_candidate(offer, rules, graph, context) for offer in offers if offer is not None]
    rows.sort(key=lambda row: Engine.parse(row.algorithm).number in rules.last)
    return sorted(rows, key=lambda row: bool(row.rejected))


def _named_first(graph: Graph, rules: EngineRules, context: Context | Planner) -> list[Candidate]:
    """Return the engines that facts about this kind of GPU name first, if cuDNN supports them."""
    if not rules.first:
        return []
    capability = compute_capability(context)
    names = [one.engine for one in rules.first if on_gpu(capability, one.arch)]
    rows = (engine_by_name(graph, rules, name, context) for name in names)
    return [row for row in rows if not row.rejected]


def first_dynamic_engine(
    graph: Graph, rules: EngineRules, context: Context | Planner, heuristics: Iterable[str]
) -> Candidate:
    """Return and remember the first engine of the dynamic form of a graph, rejected if none exists."""
    graph, rules = graph._replace(dynamic=True), rules._replace(first=())  # they are the best for one size
    row = engine_candidates(graph, rules, context, heuristics, first=1)[0]
    if row.rejected:
        return no_engine(row.rejected, NO_DYNAMIC_ENGINE)
    cache = operation_graph(graph, context).kernel_cache
    if cache is not None:
        cache.first = row.algorithm, row.notes[:-1]
    return row


def engine_of_other_sizes(graph: Graph, rules: EngineRules, context: Context | Planner) -> Candidate | None:
    """Return the engine whose kernels were compiled for other sizes of a graph; None if none is known."""
    # The heuristics are not queried, and cuDNN checks whether the engine supports this size when its plan is
    # made; the workspace is known only then.
    graph = graph._replace(dynamic=True)
    try:
        cache = operation_graph(graph, context).kernel_cache
    except (NotSupportedError, BadParamError):
        return None
    if cache is None or cache.first is None:
        return None
    name, notes = cache.first
    return _candidate(EngineConfig(Engine.parse(name), 0, notes), rules, graph, context)


def engine_by_name(graph: Graph, rules: EngineRules, name: str, context: Context | Planner) -> Candidate:
    """Return the engine of a name as a candidate; it is rejected if cuDNN or the rules do not allow it."""
    refusal = rules.refusal(compute_capability(context))
    if refusal:
        return no_engine(refusal, name)
    try:
        offer = offer_of(operation_graph(graph, context), Engine.parse(name), context)
    except (NotSupportedError, BadParamError) as error:
        return no_engine(str(error), name)
    if offer is None:
        return no_engine("cuDNN does not support this engine for the problem", name)
    return _candidate(offer, rules, graph, context)


def engine_plan(
    graph: Graph,
    rules: EngineRules,
    candidate: Candidate,
    context: Context | Planner | ShapesOnly,
    problem: object,
) -> GraphPlan:
    """Return a plan for a candidate, bound to the context's thread; ``problem`` is for error messages.

    If the store has the plan, it is loaded instead of compiled. The plan of a ``dynamic`` candidate uses the
    kernels that were compiled for other sizes. Raises NotSupportedError if the rules reject the candidate, or
    cuDNN cannot build the plan although its heuristics returned the engine.
    """
    graph = graph._replace(dynamic=candidate.dynamic)
    if isinstance(context, ShapesOnly):
        request = PlanRequest(graph, None, rules, candidate.algorithm, replaceable=context.replaceable)
        return graph_plan(request, context, _nothing, compiled=False)
    if candidate.rejected:
        raise NotSupportedError(f"{candidate} is rejected for this {problem}: {candidate.rejected}")
    try:
        engine = Engine.parse(candidate.algorithm)
    except ValueError as error:
        raise NotSupportedError(str(error)) from None
    # A stored candidate may predate the rules, or come from a problem with other rules.
    wrong = rules.why_wrong(engine, candidate.notes, compute_capability(context))
    if wrong:
        raise NotSupportedError(f"{engine} is rejected for this {problem}: {wrong}")
    request = PlanRequest(graph, None, rules, str(engine))

    def native() -> BackendDescriptor:
        return execution_plan(operation_graph(graph, context), engine, context, rules.excluded)

    def make() -> CompiledPlan:
        try:
            key = partial(plan_key, request, context)
            return native() if graph.dynamic else once(key, native), candidate
        except (AllocationError, ExecutionFailedError):  # transient; these do not disqualify the engine
            raise
        except CudnnError as error:
            # Includes failures of the compiler or driver in runtime-compiled engines.
            raise NotSupportedError(
                f"{engine} cannot compute this {problem}: {error}",
                status=error.status,
                function=error.function,
                detail=error.detail,
            ) from error

    made = graph_plan(request, context, make, compiled=candidate.compiled)
    # A stored candidate has no time, and that of other sizes no workspace.
    made.candidate = candidate._replace(workspace=max(candidate.workspace, made.workspace))
    return made


def _nothing() -> CompiledPlan:
    raise AssertionError("a graph that is only recorded has no plan")


def _candidate(
    offer: EngineConfig, rules: EngineRules, graph: Graph, context: Context | Planner
) -> Candidate:
    coarse = [note for note in offer.notes if note in rules.excluded]
    notes = (*offer.notes, DYNAMIC_SHAPES) if graph.dynamic else offer.notes
    return Candidate(
        backend="graph",
        algorithm=str(offer.engine),
        math=_math(offer.notes),
        workspace=place_scratch(graph, offer.workspace)[1],
        deterministic="nondeterministic" not in offer.notes and not rules.unordered,
        notes=notes,
        rejected=f"{', '.join(coarse)}: coarser than {rules.coarser_than}"
        if coarse
        else rules.why_wrong(offer.engine, offer.notes, compute_capability(context)),
    )


def _math(notes: tuple[str, ...]) -> str:
    """Return the math type of an engine under the name that legacy calls use."""
    if "tensor_core" not in notes:
        return "fma"
    return "tensor_op_allow_conversion" if "down_convert_inputs" in notes else "tensor_op"


# --- the first engine that works, for operations that need no autotuning ------------------------------------


def first_plan(graph: Graph, context: Context, order: Sequence[int], rules: EngineRules) -> GraphPlan:
    """Return a plan of the first engine that supports the graph, from the store if it has one.

    ``order`` are places among the first answers of the heuristics that are tried before the others; ``rules``
    reject some of them.
    """
    request = PlanRequest(graph, tuple(order), rules)

    def select(stored: CompiledPlan | None = None) -> CompiledPlan:
        return first_engine(request, context, stored)

    made = partial(once, partial(plan_key, request, context), select)
    return graph_plan(request, context, made, compiled=True, select=select)


def first_engine(
    request: PlanRequest, context: Context | Planner, stored: CompiledPlan | None = None
) -> CompiledPlan:
    """Build the plan of :func:`first_plan`; return a ``stored`` one if it has the first engine that works."""
    order, rules = request.order or (), request.rules
    native, reasons = operation_graph(request.graph, context), []
    capability, offered = compute_capability(context), heuristic_configs(native, context)
    first = list(islice(offered, len(order)))
    for offer in chain((first[i] for i in order if i < len(first)), offered):
        wrong = rules.why_wrong(offer.engine, offer.notes, capability)
        if wrong:
            reasons.append(f"{offer.engine}: {wrong}")
            continue
        if stored is not None and stored[1].algorithm == str(offer.engine):
            return stored
        made = attempt(execution_plan, native, offer.engine, context)
        if isinstance(made, CudnnError):  # errors of runtime compilation too
            reasons.append(f"{offer.engine}: {made}")
            continue
        same = "nondeterministic" not in offer.notes
        return made, Candidate("graph", str(offer.engine), "fma", offer.workspace, same, notes=offer.notes)
    raise NotSupportedError(f"no engine could be built into an execution plan: {'; '.join(reasons)}")


# --- plans compiled ahead ----------------------------------------------------------------------------------

# cuDNN takes 0.2 to 0.7 s to compile an engine at run time, on one core, and keeps nothing for the next plan
# of the same engine. Each thread compiles with a handle of its own.

T = TypeVar("T")

MAX_THREADS = 8  # each takes memory of the host, and a handle
# Seconds that threads are waited for: a finalizer, which may run in each, may need a lock of the caller.
PATIENCE = 60.0

Kept = dict[str, Any]
"""Native plans by all that they depend on, or the error of an engine that rejects its graph."""


class _Thread(threading.local):
    kept: Kept | None = None


_thread = _Thread()


@contextmanager
def keeping(kept: Kept | None = None) -> Iterator[None]:
    """Compile each plan once within a block: :func:`once` keeps it."""
    outer, _thread.kept = _thread.kept, {} if kept is None else kept
    try:
        yield
    finally:
        _thread.kept = outer


def once(key: Callable[[], str], build: Callable[[], T]) -> T:
    """Build a native plan, unless it is kept; raise the error if it is known to be impossible."""
    kept = _thread.kept
    if kept is None:
        return build()
    place = key()
    if place not in kept:
        try:
            kept[place] = build()
        except (NotSupportedError, BadParamError) as error:  # others may be due to the other threads
            kept[place] = without_frames(error)
    if isinstance(found := kept[place], CudnnError):
        raise copy(found)  # a raised error and its frames keep each other alive
    return cast(T, found)


def compile_ahead(plans: Sequence[Callable[[Context], object]], context: Context) -> None:
    """Make plans in several threads, and keep them; an error is raised where its plan is used."""
    kept, rest, warned = _thread.kept, list(plans), Warnings()
    threads = min(len(rest), MAX_THREADS, len(os.sched_getaffinity(0)))
    if kept is None or threads < 2 or recording.active():
        return

    def work(mine: Context) -> None:
        device = streams.on_device(context.device)
        with suppress(CudnnError), device, streams.relaxed(), keeping(kept), timing(), deferring(warned):
            mine.set_stream(context.stream)  # of the runs: cuDNN may enqueue work for a plan
            while rest:
                with suppress(Exception):
                    rest.pop(0)(mine)

    # Only those that no thread uses any more come back.
    helpers, context.helpers = context.helpers[: threads - 1], context.helpers[threads - 1 :]
    with suppress(CudnnError), streams.relaxed():  # cuDNN allocates memory for a handle
        while len(helpers) < threads - 1:
            helpers.append(Context(context.device))
    others = [threading.Thread(target=work, args=(one,), daemon=True) for one in helpers]
    try:
        for thread in others:
            with suppress(RuntimeError):  # the system starts no further thread
                thread.start()
        work(context)
    finally:
        rest.clear()  # after an interrupt
        end = monotonic() + PATIENCE
        for thread, helper in zip(others, helpers, strict=True):
            if thread.ident is not None:
                thread.join(max(end - monotonic(), 0))
            if not thread.is_alive():
                context.helpers.append(helper)
    for one in list(warned):
        warn_caller(*one)
