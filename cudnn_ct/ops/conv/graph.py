"""The graph API as a backend: the engines that cuDNN has for a problem, and plans that run them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from ...context import Context
from ...errors import AllocationError, BadParamError, CudnnError, ExecutionFailedError, NotSupportedError
from ...graph.engines import (
    HEURISTICS,
    Engine,
    EngineConfig,
    enumerate_engines,
    execution_plan,
    heuristic_configs,
    offer_of,
)
from ...graph.offline import Planner, compute_capability
from ...graph.operations import ALIGNMENT, Graph, operation_graph
from ...graph.plan import GraphPlan
from ...plans.base import Candidate
from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.specs import TensorSpec
from .accuracy import inaccuracy
from .engine_order import MEASURED_ON, preference
from .errata import erratum, prefer_winograd, ranked_too_high
from .fused_graph import fused_graph
from .graph_nodes import conv_graph

__all__ = ["by_name", "candidates", "graph_of", "plan", "preferred"]

GRAPHS: dict[type, Callable[[Any], Graph]] = {ConvProblem: conv_graph, FusedConv: fused_graph}


def candidates(
    problem: Any,
    context: Context | Planner,
    heuristics: Collection[str] = HEURISTICS,
    most: int | None = None,
) -> list[Candidate]:
    """The engines that cuDNN has for a problem, best first, then the rejected ones.

    The order is that of cuDNN's heuristics. Engines whose products are less precise than the problem requires
    are rejected. For such problems, engines that the heuristics omit follow the ones they return. If no
    engine exists, the result is one candidate with the reason.

    Parameters
    ----------
    problem : ConvProblem or FusedConv
    context : Context or Planner
    heuristics : collection of str
        Heuristic modes to query, in this order: ``"b"``, ``"a"``, ``"fallback"``. Each takes milliseconds.
    most : int, optional
        Maximum number of usable engines from the heuristics.
    """
    unfit = _unfit(problem)
    if unfit:
        return [Candidate("graph", "all engines", "any", 0, True, rejected=unfit)]
    unwanted = _excluded_notes(problem)
    try:
        graph = operation_graph(graph_of(problem), context)
        rows = _first(
            most, heuristic_configs(graph, context, _safe_heuristics(heuristics, problem)), unwanted, problem
        )
    except (NotSupportedError, BadParamError) as error:
        reasons = [str(error), *getattr(error, "__notes__", [])]
        return [Candidate("graph", "all engines", "any", 0, True, rejected="; ".join(reasons))]
    if unwanted and "fallback" in heuristics:
        named = {Engine.parse(row.algorithm).number for row in rows}
        others = [
            offer for offer in enumerate_engines(graph, context, unwanted) if offer.engine.number not in named
        ]
        rows += [_candidate(offer, unwanted, problem) for offer in others]
    return sorted(_reordered(rows, problem), key=lambda row: bool(row.rejected))


def preferred(problem: ConvProblem, context: Context | Planner) -> list[Candidate]:
    """Return the engine that measurements rank above cuDNN's own order for a problem, if there is one."""
    name = preference(problem)
    if not name or _unfit(problem) or compute_capability(context) != MEASURED_ON:
        return []
    try:
        graph = operation_graph(graph_of(problem), context)
    except (NotSupportedError, BadParamError):  # the stage with the heuristics reports the reason
        return []
    unwanted = _excluded_notes(problem)
    offer = offer_of(graph, Engine.parse(name), context, unwanted)
    return [] if offer is None else [_candidate(offer, unwanted, problem)]


def by_name(problem: Any, name: str, context: Context | Planner) -> Candidate:
    """Return the engine of a name as a candidate; it is rejected if the problem does not allow it."""
    offer, rejected = None, _unfit(problem)
    if not rejected:
        try:
            graph = operation_graph(graph_of(problem), context)
            offer = offer_of(graph, Engine.parse(name), context)
        except (NotSupportedError, BadParamError) as error:
            rejected = str(error)
    if offer is None:
        rejected = rejected or "cuDNN does not support this engine for the problem"
        return Candidate("graph", name, "any", 0, True, rejected=rejected)
    return _candidate(offer, _excluded_notes(problem), problem)


def plan(problem: Any, candidate: Candidate, context: Context | Planner) -> GraphPlan:
    """Return a plan for a candidate, bound to the context's thread.

    Raises
    ------
    NotSupportedError
        The candidate was rejected, cuDNN cannot build this plan although its heuristics returned the engine,
        or the algorithm is not the name of an engine.
    """
    if candidate.rejected:
        raise NotSupportedError(f"{candidate} is refused for this {problem}: {candidate.rejected}")
    try:
        engine = Engine.parse(candidate.algorithm)
    except ValueError as error:
        raise NotSupportedError(str(error)) from None
    # A stored candidate may predate this check, or come from a problem with other scaling or alignment.
    impossible = _unfit(problem) or _erratum(engine, candidate.notes, problem)
    if impossible:
        raise NotSupportedError(f"{engine} is rejected for this {problem}: {impossible}")
    graph = graph_of(problem)
    try:
        native = execution_plan(operation_graph(graph, context), engine, context, _excluded_notes(problem))
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
    return GraphPlan(graph, native, candidate)


def graph_of(problem: Any) -> Graph:
    """Return the graph that computes a problem."""
    return GRAPHS[type(problem)](problem)


def _candidate(offer: EngineConfig, unwanted: frozenset[str], problem: Any) -> Candidate:
    return Candidate(
        backend="graph",
        algorithm=str(offer.engine),
        math=_math(offer.notes),
        workspace=offer.workspace,
        deterministic="nondeterministic" not in offer.notes,
        notes=offer.notes,
        rejected=_refusal(offer, unwanted, problem),
    )


def _first(
    most: int | None, offered: Iterable[EngineConfig], unwanted: frozenset[str], problem: Any
) -> list[Candidate]:
    """Return candidates until ``most`` of them are usable."""
    rows: list[Candidate] = []
    for offer in offered:
        rows.append(_candidate(offer, unwanted, problem))
        if most is not None and sum(not row.rejected for row in rows) >= most:
            break
    return rows


def _reordered(rows: list[Candidate], problem: Any) -> list[Candidate]:
    """Correct cuDNN's order where measurements say that it errs: see docs/algorithms.md."""
    behind = ranked_too_high(problem)
    rows = sorted(rows, key=lambda row: Engine.parse(row.algorithm).number in behind)
    usable = [row for row in rows if not row.rejected]
    if prefer_winograd(problem) and len(usable) > 1 and {"fft", "winograd"} & set(usable[1].notes):
        rows.remove(usable[1])
        rows.insert(0, usable[1])
    return rows


def _refusal(offer: EngineConfig, unwanted: frozenset[str], problem: Any) -> str:
    """Return why an engine must not be used for a problem; empty if it may."""
    too_coarse = [note for note in offer.notes if note in unwanted]
    if too_coarse:
        return f"{', '.join(too_coarse)}: coarser than {problem.compute}"
    return _erratum(offer.engine, offer.notes, problem)


def _erratum(engine: Engine, notes: tuple[str, ...], problem: Any) -> str:
    """Return why the results of an engine are wrong or too inaccurate; empty if no error is known."""
    return erratum(engine.number, problem) or inaccuracy(problem, "graph", str(engine), notes)


def _unfit(problem: Any) -> str:
    """Return why no engine can compute a problem; empty if engines may."""
    if problem.core.scaled == "alpha" and problem.core.x.dtype == "float16":
        return (
            "sums in float16 may overflow before alpha makes them small (scale the result in place instead)"
        )
    if not problem.core.aligned:
        return f"an operand is not {ALIGNMENT}-byte aligned"
    strided = [spec for spec in _specs(problem) if not spec.layouts]
    return f"an operand is not contiguous: {strided[0]}" if strided else ""


def _specs(problem: Any) -> list[TensorSpec]:
    extras = [problem.bias, problem.z] if isinstance(problem, FusedConv) else []
    return [spec for spec in (problem.core.x, problem.core.w, problem.core.y, *extras) if spec]


def _safe_heuristics(heuristics: Iterable[str], problem: Any) -> list[str]:
    """Replace mode B by A for asymmetric padding, because mode B of cuDNN 9.19 kills the process there."""
    if not problem.core.asymmetric_padding:
        return list(heuristics)
    return list(dict.fromkeys("a" if mode == "b" else mode for mode in heuristics))


def _excluded_notes(problem: Any) -> frozenset[str]:
    """Return the numerical notes that a problem excludes because it requires its full compute precision."""
    if problem.tensor_cores:
        return frozenset()
    # In float64 and in integers, tensor cores are as precise as other units.
    if problem.compute in ("float64", "int32"):
        return frozenset({"down_convert_inputs"})
    return frozenset({"tensor_core", "down_convert_inputs"})


def _math(notes: tuple[str, ...]) -> str:
    """Return the math type of an engine under the name that legacy calls use."""
    if "tensor_core" not in notes:
        return "fma"
    return "tensor_op_allow_conversion" if "down_convert_inputs" in notes else "tensor_op"
