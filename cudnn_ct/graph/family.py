"""The graph API as a family: the engines that cuDNN has for a problem, and plans that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..context import Context
from ..errors import AllocationError, BadParamError, CudnnError, NotSupportedError
from ..problem import Candidate, ConvProblem
from .conv import conv_graph
from .device import Planner
from .engines import HEURISTICS, Engine, Offer, execution_plan, offers, survey
from .fused import FusedConv, fused_graph
from .operations import Graph, operation_graph
from .plan import GraphPlan

__all__ = ["candidates", "graph_of", "plan"]

GRAPHS: dict[type, Callable[[Any], Graph]] = {ConvProblem: conv_graph, FusedConv: fused_graph}


class Wrong(NamedTuple):
    """An engine that gave wrong results where cuDNN offered it, and for which problems."""

    engine: int
    applies: Callable[[Any], bool]
    finding: str


def _uneven(direction: str) -> Callable[[Any], bool]:
    return lambda p: (
        isinstance(p, ConvProblem)
        and p.direction == direction
        and any(before != after for before, after in p.padding)
    )


def _channels_first(direction: str) -> Callable[[Any], bool]:
    return lambda p: isinstance(p, ConvProblem) and p.direction == direction and "nhwc" not in p.x.layouts


# Each engine that cuDNN 9.19 offered on an H200 was run against the reference, with NaN in the output. These
# announced support and wrote wrong numbers or nothing; what they answered is their status.
KNOWN_WRONG = (
    Wrong(50, _uneven("backward_data"), "left elements unwritten where padding differs between two sides"),
    Wrong(1, _uneven("backward_filter"), "wrong sums where padding differs between two sides"),
    Wrong(20, _uneven("backward_filter"), "wrong sums where padding differs between two sides"),
    Wrong(78, _channels_first("backward_data"), "wrong sums in NCHW"),
    Wrong(70, _channels_first("backward_filter"), "wrong sums in NCHW"),
    Wrong(0, lambda p: isinstance(p, FusedConv) and p.activation == "tanh", "tanh of large numbers is NaN"),
)


def candidates(
    problem: Any, context: Context | Planner, heuristics: Iterable[str] = HEURISTICS
) -> list[Candidate]:
    """The engines that cuDNN has for a problem, best first; refused ones, with a status, last.

    They come in the order of cuDNN's heuristics. Refused are engines whose products are less precise than the
    problem allows; for such a problem all engines that the heuristics leave out come after those they name.
    Where there is no engine at all, one row says why.

    Parameters
    ----------
    problem : ConvProblem or FusedConv
    context : Context or Planner
    heuristics : iterable of str
        The modes to ask, in this order: ``"b"``, ``"a"``, ``"fallback"``. Each takes milliseconds.
    """
    unwanted = _unwanted(problem)
    try:
        graph = operation_graph(graph_of(problem), context)
        found = list(offers(graph, context, heuristics))
    except (NotSupportedError, BadParamError) as error:
        reasons = [str(error), *getattr(error, "__notes__", [])]
        return [Candidate("graph", "all engines", "any", 0, True, status="; ".join(reasons))]
    if unwanted:
        named = {offer.engine.number for offer in found}
        found += [offer for offer in survey(graph, context, unwanted) if offer.engine.number not in named]
    rows = [_candidate(offer, unwanted, problem) for offer in found]
    return sorted(rows, key=lambda row: bool(row.status))


def plan(problem: Any, candidate: Candidate, context: Context | Planner) -> GraphPlan:
    """Make a candidate ready to run in the context's thread.

    Raises
    ------
    NotSupportedError
        The candidate was refused, or cuDNN cannot make this plan, whatever its heuristics said.
    ValueError
        The candidate's algorithm is not the name of an engine.
    """
    if candidate.status:
        raise NotSupportedError(f"{candidate} is refused for this {problem}: {candidate.status}")
    engine = Engine.parse(candidate.algorithm)
    graph = graph_of(problem)
    try:
        native = execution_plan(operation_graph(graph, context), engine, context)
    except AllocationError:
        raise
    except CudnnError as error:
        # Also what engines that compile at run time say, where the compiler or the driver lets them down.
        raise NotSupportedError(
            f"{engine} cannot compute this {problem}: {error}",
            status=error.status,
            function=error.function,
            detail=error.detail,
        ) from error
    return GraphPlan(graph, native, candidate)


def graph_of(problem: Any) -> Graph:
    """The graph that computes a problem, as a value."""
    return GRAPHS[type(problem)](problem)


def _candidate(offer: Offer, unwanted: frozenset[str], problem: Any) -> Candidate:
    return Candidate(
        family="graph",
        algorithm=str(offer.engine),
        math=_math(offer.notes),
        workspace=offer.workspace,
        deterministic="nondeterministic" not in offer.notes,
        notes=offer.notes,
        status=_refusal(offer, unwanted, problem),
    )


def _refusal(offer: Offer, unwanted: frozenset[str], problem: Any) -> str:
    """Why an engine is not to be used for a problem; empty where it may."""
    too_coarse = [note for note in offer.notes if note in unwanted]
    if too_coarse:
        return f"{', '.join(too_coarse)}: coarser than {problem.compute}"
    wrong = (row.finding for row in KNOWN_WRONG if row.engine == offer.engine.number and row.applies(problem))
    return next(wrong, "")


def _unwanted(problem: Any) -> frozenset[str]:
    """Notes of engines that a problem excludes, because it wants all the precision of its compute type."""
    if problem.tensor_cores:
        return frozenset()
    # Tensor cores compute in float64 and in integers as precisely as anything else does.
    if problem.compute in ("float64", "int32"):
        return frozenset({"down_convert_inputs"})
    return frozenset({"tensor_core", "down_convert_inputs"})


def _math(notes: tuple[str, ...]) -> str:
    """What an engine's products are, in the words that the legacy calls have for it."""
    if "tensor_core" not in notes:
        return "fma"
    return "tensor_op_allow_conversion" if "down_convert_inputs" in notes else "tensor_op"
