"""All ways to compute a problem: which family is asked first, what is worth timing, and plans of either.

A guess takes the first row that is usable, so the order of the stages is the rule that decides between the
families. It is fitted to measurements: see docs/algorithms.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import graph, legacy
from ._config import config
from .array import DeviceArray
from .context import Context
from .dtypes import DTYPES
from .errors import NotSupportedError
from .problem import Candidate, ConvProblem, FusedConv, Plan, TensorSpec, named_algorithm, unfit

__all__ = ["everything", "named", "plan", "stages", "worth_timing"]

Stage = Callable[[Context], list[Candidate]]


def stages(problem: Any) -> list[Stage]:
    """Where to look for a way, the most promising place first; each is for when all before it failed."""
    ranked, others = (partial(_graph, problem, modes, None) for modes in (_best(problem), ("fallback",)))
    calls = partial(_legacy, problem, None)
    if isinstance(problem, FusedConv):
        return [
            ranked,
            calls,
            *(partial(_followed, problem, stage) for stage in stages(alone(problem))),
            others,
        ]
    return [ranked, others, calls]


def everything(problem: Any, context: Context) -> list[Candidate]:
    """Every way there is, refused ones with their reasons: each engine of each heuristic, each algorithm."""
    return _gathered(problem, context, [partial(_graph, problem, ("b", "a", "fallback"), None)])


def worth_timing(problem: Any, context: Context) -> list[Candidate]:
    """What the policies ``time_*`` try: the first engines of each heuristic, the fallbacks, and legacy.

    Where tensor cores serve, what does without them has been slower by factors wherever it was measured, and
    is tried only where little else is. Engines that are compiled when they are made come last, or not at all.
    """
    most = config.timed_engines
    modes = [(_best(problem), most), (("a",), most // 3), (("fallback",), None)] if most else []
    rows = _gathered(problem, context, [partial(_graph, problem, *mode) for mode in modes])
    if problem.tensor_cores:
        quick = [row for row in rows if not row.status and not _hopeless(row)]
        if len(quick) >= ENOUGH:
            rows = [row for row in rows if row in quick or row.status]
    compiled = [row for row in rows if "runtime_compilation" in row.notes]
    return [row for row in rows if row not in compiled] + (compiled if config.runtime_compiled else [])


ENOUGH = 4


def _hopeless(row: Candidate) -> bool:
    """Whether a row uses no tensor core and is known to be slow: legacy calls, and graph engine 0."""
    return "legacy" in (row.family, row.algorithm.split()[0]) or "engine 0" in row.algorithm.split(" knobs")


def named(problem: Any, name: str) -> list[Stage]:
    """The legacy algorithm of a name; then what the seeds of the name fell back to."""
    core = problem.core
    wanted, base = named_algorithm(name, core), named_algorithm("none", core)
    geometry = unfit(name, core)
    if geometry:
        refused = Candidate("legacy", wanted.algorithm, "any", 0, True, status=geometry)
        first: Stage = lambda context: [refused]  # noqa: ARG005, E731 - a stage that needs no device
    else:
        first = partial(_legacy, problem, wanted.algorithm)
    return [first, partial(_legacy, problem, base.algorithm)]


def plan(problem: Any, candidate: Candidate, context: Context) -> Plan:
    """Make a candidate of any family ready to run.

    Raises
    ------
    NotSupportedError
        cuDNN refuses it for this problem, whatever its heuristics said; or there is no such algorithm.
    """
    if candidate.family == "followed":
        family, _, algorithm = candidate.algorithm.partition(" ")
        inner = plan(alone(problem), candidate._replace(family=family, algorithm=algorithm), context)
        return legacy.EpiloguePlan(problem, inner)
    if candidate.family == "legacy":
        return legacy.plan(problem, candidate, context)
    if candidate.family != "graph":
        raise NotSupportedError(
            f"there is no family {candidate.family!r}; there are graph, legacy and followed"
        )
    made = graph.plan(problem, candidate, context)
    return ScaledPlan(made, problem.result) if problem.core.scaled else made


def alone(problem: FusedConv) -> ConvProblem:
    """The convolution of a fused problem, to be followed by calls that add and activate."""
    return problem.conv._replace(scaled=problem.alpha1 != 1)


class ScaledPlan:
    """A graph, which has no factors, into scratch memory; then out = alpha * scratch + beta * out."""

    __slots__ = ("_inner", "_nbytes", "_result", "_scratch", "workspace")

    def __init__(self, inner: Plan, result: TensorSpec) -> None:
        self._inner = inner
        self._result = result
        self._scratch = TensorSpec.packed(result.shape, result.dtype, result.layouts[0])
        self._nbytes = result.size * DTYPES[result.dtype].itemsize
        self.workspace = inner.workspace

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the graph; copy what it wrote, scaled."""
        *inputs, out = pointers
        scratch = DeviceArray.new(self._scratch, self._nbytes, context.stream, "an unscaled result")
        self._inner.run(context, [*inputs, scratch.pointer], 1.0, 0.0)
        legacy.transform(context, self._scratch, scratch.pointer, self._result, out, alpha=alpha, beta=beta)

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"{self._inner.describe()}; alpha and beta by a call of their own"


# --- where rows come from ----------------------------------------------------------------------------------


def _graph(problem: Any, heuristics: tuple[str, ...], most: int | None, context: Context) -> list[Candidate]:
    return graph.candidates(problem, context, heuristics, most)


def _legacy(problem: Any, algorithm: str | None, context: Context) -> list[Candidate]:
    return legacy.candidates(problem, context, algorithm)


def _followed(problem: FusedConv, stage: Stage, context: Context) -> list[Candidate]:
    """Ways to compute the convolution alone, as ways to compute it and then what follows."""
    impossible = legacy.EpiloguePlan.impossible(problem)
    return [
        row._replace(
            family="followed", algorithm=f"{row.family} {row.algorithm}", status=row.status or impossible
        )
        for row in stage(context)
    ]


def _gathered(problem: Any, context: Context, engines: Sequence[Stage]) -> list[Candidate]:
    rows: list[Candidate] = []
    ways: list[Stage] = [*engines, partial(_legacy, problem, None)]
    if isinstance(problem, FusedConv):
        ways += [partial(_followed, problem, stage) for stage in stages(alone(problem))]
    for way in ways:
        rows += _new(rows, way(context))
    return sorted(rows, key=lambda row: bool(row.status))


def _new(rows: list[Candidate], more: list[Candidate]) -> list[Candidate]:
    known = {(row.family, row.algorithm, row.math, row.packed) for row in rows}
    return [row for row in more if (row.family, row.algorithm, row.math, row.packed) not in known]


def _best(problem: Any) -> tuple[str, ...]:
    """The heuristic that ranks best; mode B is not asked where padding differs between two sides."""
    even = all(before == after for before, after in problem.core.padding)
    return ("b",) if even else ("a",)
