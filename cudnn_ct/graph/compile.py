"""Compile recorded graphs for a device that is only described."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from .._algorithm_names import is_engine
from ..context import Context
from ..errors import AllocationError, CudnnError, NotSupportedError
from ..plans.base import Candidate
from .candidates import engine_by_name, engine_candidates, first_engine
from .engines import Engine, execution_plan, heuristic_modes
from .native import operation_graph
from .offline import Planner
from .plan_file import StoredPlan
from .recording import PlanRequest
from .stored import CompiledPlan, to_store


def compile_first(request: PlanRequest, planner: Planner) -> list[StoredPlan]:
    """Return the plan of a graph, or the plans of the first graphs that compute its call instead.

    Raise the error of the graph itself if none of them can be compiled.
    """
    try:
        return [compile_request(request, planner)]
    except NotSupportedError as error:
        for way in filter(None, request.instead):
            with suppress(NotSupportedError):
                return [plan for one in way for plan in compile_first(one, planner)]
        raise error


def compile_request(request: PlanRequest, planner: Planner) -> StoredPlan:
    """Return the compiled plan of a graph; raise NotSupportedError if it has none, or cuDNN cannot write it.

    The choice of its engine is not stored: the heuristics of the device may name another one.
    """
    if request.order is not None:
        native, row = first_engine(request, planner)
    else:
        native, row = _first_candidate(request, planner)
        request = request._replace(engine=row.algorithm)
    plan = to_store(request, native, row, planner)
    if isinstance(plan, str):
        raise NotSupportedError(plan)
    return plan


def _first_candidate(request: PlanRequest, planner: Planner) -> CompiledPlan:
    """Build the engine that was named, or the first engine that keeps the limits."""
    reasons = []
    for row in chain.from_iterable(_stages(request, planner)):
        wrong = row.rejected or _exceeded(request, row)
        if not wrong:
            try:
                engine, native = Engine.parse(row.algorithm), operation_graph(request.graph, planner)
                return execution_plan(native, engine, planner, request.rules.excluded), row
            except AllocationError:
                raise
            except CudnnError as error:
                wrong = str(error)
        reasons.append(f"{row.algorithm}: {wrong}")
    raise NotSupportedError(f"no engine could be built into an execution plan: {'; '.join(reasons)}")


def _names_engine(request: PlanRequest) -> bool:
    """Whether a call names its engine. A legacy algorithm has no plan; its graph is planned by heuristics."""
    return is_engine(request.engine) and not request.choice


def _stages(request: PlanRequest, planner: Context | Planner) -> Iterator[list[Candidate]]:
    """Yield the engine that a call names, unless it names none, then those of each heuristic mode."""
    if _names_engine(request):
        yield [engine_by_name(request.graph, request.rules, request.engine, planner)]
        if not request.replaceable:
            return
    for mode in heuristic_modes(request.graph, planner):
        yield engine_candidates(request.graph, request.rules, planner, [mode])


def usable_candidates(request: PlanRequest, planner: Context | Planner) -> list[Candidate]:
    """Return the engine that a call names, or the engines of the first heuristic mode that has one.

    Only those within the limits are usable. Nothing is compiled. Requests with an order have no limits.
    """
    for rows in _stages(request, planner):
        rows = [row for row in rows if not (row.rejected or _exceeded(request, row))]
        if rows:
            return rows
    return []


def why_not_named(request: PlanRequest, planner: Context | Planner) -> str:
    """Return why the engine that a call names is not usable; empty if it is, or if the call names none."""
    if not _names_engine(request):
        return ""
    (row,) = next(_stages(request, planner))
    reason = row.rejected or _exceeded(request, row)
    return f"{request.engine}: {reason}" if reason else ""


def _exceeded(request: PlanRequest, row: Candidate) -> str:
    """Return which limit of the request an engine exceeds; empty if none."""
    limit = request.limits.get("workspace_limit")
    if request.limits.get("deterministic") and not row.deterministic:
        return "not deterministic"
    if limit is not None and row.workspace > limit:
        return f"needs {row.workspace:,} bytes of workspace; the limit is {limit:,}"
    if row.compiled and not request.limits.get("compiled", True):
        return "is compiled at run time"
    return ""
