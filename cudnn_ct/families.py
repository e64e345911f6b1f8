"""All ways to compute a problem: which family is asked first, what is worth timing, and plans of either.

A guess takes the first row that is usable, so the order of the stages is the rule that decides between the
families. It is fitted to measurements: see docs/algorithms.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from . import graph, legacy
from ._config import config
from .context import Context
from .errors import NotSupportedError
from .problem import (
    Candidate,
    ConvProblem,
    FusedConv,
    Plan,
    Request,
    Stage,
    named_algorithm,
    operands_of,
    relaid_out,
    unfit,
    with_residual,
)

__all__ = ["everything", "named", "plan", "stages", "worth_timing"]

ENOUGH = 4  # rows on tensor cores, to leave out what does without them


def stages(problem: Any) -> list[Stage]:
    """Where to look for a way, the most promising place first; each is for when all before it failed."""
    ranked, others = (partial(_graph, problem, mode, None) for mode in ("b", "fallback"))
    calls = partial(_legacy, problem, None)
    if isinstance(problem, FusedConv):
        return [ranked, calls, *_followed_by(problem, stages(alone(problem))), others]
    return [partial(graph.preferred, problem), ranked, others, calls]


def everything(problem: Any, context: Context) -> list[Candidate]:
    """Every way there is, refused ones with their reasons: each engine of each heuristic, each algorithm."""
    return _gathered(problem, context, [(mode, None) for mode in ("b", "a", "fallback")])


def worth_timing(problem: Any, context: Context, request: Request) -> list[Candidate]:
    """What the policies ``time_*`` try: the first engines of each heuristic, the fallbacks, and legacy.

    The ruler passes over what is hopeless by what it has timed before.

    Where tensor cores serve, legacy calls and engines that are ranked too high have been slower wherever it
    was measured, and are tried only where little else is. Engines that are compiled when they are made come
    last, or not at all.
    """
    most = config.timed_engines
    rows = _gathered(problem, context, [("b", most), ("a", most // 3), ("fallback", None)] if most else [])
    rows = [row for row in rows if config.runtime_compiled or not row.compiled]
    rows = [row._replace(status=row.status or request.refusal(row)) for row in rows]
    slow = [row for row in rows if _slow(row, problem)] if problem.tensor_cores else []
    if sum(not row.status for row in rows if row not in slow) >= ENOUGH:
        rows = [row for row in rows if row.status or row not in slow]
    return sorted(rows, key=lambda row: row.compiled)


def named(problem: Any, name: str) -> tuple[list[Stage], list[Stage]]:
    """Where the legacy algorithm of a name is found, and where what Theano's module fell back to."""
    return _named(problem, problem.core, name), _named(problem, problem.core, "none")


def plan(problem: Any, candidate: Candidate, context: Context) -> Plan:
    """Make a candidate of any family ready to run.

    Raises
    ------
    NotSupportedError
        cuDNN refuses it for this problem, whatever its heuristics said; or there is no such algorithm.
    """
    if candidate.family == "followed" and isinstance(problem, FusedConv):
        family, _, algorithm = candidate.algorithm.partition(" ")
        inner = plan(alone(problem), candidate._replace(family=family, algorithm=algorithm), context)
        return legacy.EpiloguePlan(problem, inner)
    if candidate.packed:
        return _on_copies(problem, candidate, context)
    return _on_operands(problem, candidate, context)


def alone(problem: FusedConv) -> ConvProblem:
    """The convolution of a fused problem, to be followed by calls that add and activate."""
    return problem.conv._replace(scaled="alpha" if problem.alpha1 != 1 else "")


def _on_copies(problem: Any, candidate: Candidate, context: Context) -> Plan:
    """Make a plan that copies the operands that a candidate names, and runs on the copies."""
    try:
        relaid = relaid_out(problem, candidate.packed)
    except ValueError as error:  # a row that the caller wrote, or the algorithm cache
        raise NotSupportedError(f"{candidate} cannot compute this {problem}: {error}") from None
    pairs = zip(operands_of(problem).values(), operands_of(relaid).values(), strict=True)
    moves = [(spec, None if spec == copy else copy) for spec, copy in pairs]
    return legacy.PackedPlan(_on_operands(relaid, candidate, context), moves)


def _on_operands(problem: Any, candidate: Candidate, context: Context) -> Plan:
    if candidate.family == "legacy":
        return legacy.plan(problem, candidate, context)
    if candidate.family != "graph":
        raise NotSupportedError(f"there is no family {candidate.family!r} for this {problem}")
    made = graph.plan(problem, candidate, context)
    return legacy.ScaledPlan(made, problem.result) if problem.core.scaled else made


# --- where rows come from ----------------------------------------------------------------------------------


def _graph(problem: Any, heuristic: str, most: int | None, context: Context) -> list[Candidate]:
    packing = with_residual(problem)
    rows = graph.candidates(relaid_out(problem, packing), context, (heuristic,), most)
    return [row._replace(packed=packing) for row in rows] if packing else rows


def _legacy(problem: Any, algorithm: str | None, context: Context) -> list[Candidate]:
    return legacy.candidates(problem, context, algorithm)


def _named(problem: Any, core: ConvProblem, name: str) -> list[Stage]:
    algorithm, geometry = named_algorithm(name, core).algorithm, unfit(name, core)
    if geometry:
        refused = Candidate("legacy", algorithm, "any", 0, True, status=geometry)
        return [partial(_only, refused)]
    ways: list[Stage] = [partial(_legacy, problem, algorithm)]
    if isinstance(problem, FusedConv):
        ways += _followed_by(problem, [partial(_legacy, alone(problem), algorithm)])
    return ways


def _only(row: Candidate, context: Context) -> list[Candidate]:  # noqa: ARG001 - a stage is asked in one
    return [row]


def _followed_by(problem: FusedConv, ways: Sequence[Stage]) -> list[Stage]:
    return [partial(_followed, problem, way) for way in ways]


def _followed(problem: FusedConv, stage: Stage, context: Context) -> list[Candidate]:
    """Ways to compute the convolution alone, as ways to compute it and then what follows."""
    impossible = legacy.EpiloguePlan.impossible(problem)
    return [
        row._replace(
            family="followed", algorithm=f"{row.family} {row.algorithm}", status=row.status or impossible
        )
        for row in stage(context)
    ]


def _each(problem: ConvProblem, heuristics: Sequence[tuple[str, int | None]]) -> list[Stage]:
    """Where the ways of a convolution are found: what a guess would take is among them."""
    engines = [partial(_graph, problem, *mode) for mode in heuristics]
    first: list[Stage] = [partial(graph.preferred, problem)] if engines else []
    return [*first, *engines, partial(_legacy, problem, None)]


def _gathered(
    problem: Any, context: Context, heuristics: Sequence[tuple[str, int | None]]
) -> list[Candidate]:
    """The rows of engines of these heuristics and of the legacy calls, each once, refused ones last."""
    if isinstance(problem, FusedConv):
        ways: list[Stage] = [partial(_graph, problem, *mode) for mode in heuristics]
        ways += [partial(_legacy, problem, None), *_followed_by(problem, _each(alone(problem), heuristics))]
    else:
        ways = _each(problem, heuristics)
    rows: dict[tuple[Any, ...], Candidate] = {}
    for way in ways:
        for row in way(context):
            rows.setdefault(row.way, row)
    return sorted(rows.values(), key=lambda row: bool(row.status))


def _slow(row: Candidate, problem: Any) -> bool:
    """Whether a row is one that was slow wherever tensor cores serve: legacy, or ranked too high."""
    name = row.algorithm.removeprefix("graph ")
    if row.family == "legacy" or name.startswith("legacy"):
        return True
    return name.split(" knobs")[0] in {f"engine {number}" for number in graph.ranked_too_high(problem)}
