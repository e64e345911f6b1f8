"""Engines: the arguments that select one, candidates of problems that are one graph or other problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from .. import algo_cache
from .._algorithm_names import POLICIES, SYNONYMS, is_engine
from .._config import config
from ..algo_cache import CandidateSource
from ..context import Context
from ..errors import NotSupportedError
from ..facts import Target
from ..graph import candidates
from ..graph.engines import HEURISTICS, heuristic_modes
from ..graph.offline import ShapesOnly, compute_capability, target_of
from ..graph.operations import Graph, why_static
from ..graph.recording import record_first
from ..graph.rules import EngineRules
from ..legal.rules import engine_rules, warn
from ..plans import base
from ..plans.base import AlgoRequest, Candidate, Heuristic, Plan, Problem, SelectedPlan, tensors_of
from ..plans.program import room_of
from ..plans.wrappers import on_operands_of
from ..shapes.specs import Outs, Specs
from ._operation import Select

P = TypeVar("P")

# --- arguments that select an engine ------------------------------------------------------------------------


def check_engine_name(name: str) -> None:
    """Raise ValueError unless an algorithm's name is the name of an engine; for `plans.base.request`."""
    if not is_engine(name):
        raise ValueError(
            f"algo is unknown: got {name!r}, expected 'heuristic', 'autotune', 'online' or the name of an "
            "engine, such as 'engine 4'"
        )


class AlgoArguments(NamedTuple):
    """Arguments of a call that select an engine, as the caller wrote them; None stands for a setting."""

    algo: Any
    deterministic: Any
    workspace_limit: Any

    def request(
        self,
        problem: Problem,
        strict: Any = False,
        dynamic_shapes: Any = None,
        check_name: Callable[[str], object] = check_engine_name,
    ) -> AlgoRequest:
        """Return the request for an algorithm of a problem; ``check_name`` rejects other names."""
        deterministic = config.deterministic if self.deterministic is None else self.deterministic
        limit = config.workspace_limit if self.workspace_limit is None else self.workspace_limit
        algo = self.algo
        if algo is None:  # the settings may name an algorithm of convolutions instead of a policy
            policy = SYNONYMS.get(str(config.algo), config.algo)
            algo = policy if policy in POLICIES else "heuristic"
        return base.request(algo, deterministic, limit, strict, problem, check_name, dynamic_shapes)


def select_engine(
    problem: Any,
    params: tuple[Any, ...],
    source: CandidateSource,
    empty: Plan | None = None,
    *,
    replaced: bool = False,
    check_name: Callable[[str], object] = check_engine_name,
) -> Select:
    """Return the function that selects an engine in a thread; the last ``params`` are `AlgoArguments`.

    ``empty`` is the plan of a problem that needs no engine. With ``replaced``, other implementations replace
    engines that this cuDNN lacks. ``check_name`` rejects names of other algorithms.
    """
    wanted = AlgoArguments(*params[-3:]).request(problem, check_name=check_name)
    if empty is not None:
        return lambda _: SelectedPlan(empty)

    def selected(ctx: Any) -> SelectedPlan:
        if replaced and wanted.timed and ctx.library.lacks("engines_precompiled"):
            # Raises where no engine is left. Timing would find that in the first run, which is too late.
            algo_cache.select(problem, source, ctx, wanted._replace(algo="heuristic"))
        return algo_cache.select(problem, source, ctx, wanted)

    return selected


def without_factors(problem: Callable[..., P]) -> Callable[..., P]:
    """Return the ``problem`` of an operation without alpha and beta, from a function of its own parameters.

    The last parameters of a call are :class:`AlgoArguments`, which do not belong to the problem.
    """

    def of_call(specs: Specs, outs: Outs, *params: Any, scaled: str, aligned: bool) -> P:  # noqa: ARG001
        return problem(specs, tuple(outs), *params[:-3], aligned=aligned)

    return of_call


# --- problems that are one graph ---------------------------------------------------------------------------

FIRST_MODE = "first"  # stands for the first heuristic mode that may be queried
ENOUGH = 4  # with so many candidates, engines of further modes are not timed


class GraphSource(CandidateSource):
    """The engines of problems that are one graph.

    ``graph_of`` returns the graph of a problem; its operands are in the order of the fields of the problem
    that are specs. ``rules_of`` returns which engines may be used. If the problem is not ``aligned``,
    misaligned operands are copied to the workspace and back. With ``dynamic``, the graph is dynamic if an
    engine supports that, and static otherwise. The source computes around the facts that are ``handled``.

    The candidates of another source may come ``before`` those of the graph. A candidate does not name its
    source: the plan is the first one that is supported, so both have to compute the same numbers.
    """

    def __init__(
        self,
        graph_of: Callable[[Any], Graph],
        rules_of: Callable[[Any, Target], EngineRules] = engine_rules,
        *,
        dynamic: bool = False,
        handled: tuple[str, ...] = (),
        before: CandidateSource | None = None,
    ) -> None:
        self._graph_of, self.rules_of, self.dynamic, self.handled = graph_of, rules_of, dynamic, handled
        self.before, self.comparable = before, before is None

    def graph_of(self, problem: Any) -> Graph:
        return self._graph_of(problem)

    def with_dynamic_shapes(self) -> Self:
        before = self.before and self.before.with_dynamic_shapes()
        return type(self)(self._graph_of, self.rules_of, dynamic=True, handled=self.handled, before=before)

    def _is_dynamic(self, problem: Any) -> bool:
        return self.dynamic and not why_static(self.graph_of(problem))

    def only_graphs(self, problem: Any, context: Any) -> bool:  # noqa: ARG002
        """Return whether all candidates are engines of the graph, without copies."""
        return self.before is None and getattr(problem, "aligned", True)

    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        """Return the first choice of the first mode, then all engines of each mode."""
        # With dynamic shapes, they come after the engine of other sizes and the first dynamic one.
        stages: list[Heuristic] = [*self.before.heuristics(problem)] if self.before else []
        if self._is_dynamic(problem):
            stages += [partial(self._of_other_sizes, problem), partial(self._first_dynamic, problem)]
        stages.append(partial(self._engines, problem, FIRST_MODE, first=1))
        return [*stages, *(partial(self._engines, problem, mode) for mode in HEURISTICS)]

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return up to ``max_engines`` engines to time, runtime-compiled ones only if they are wanted."""
        # With dynamic shapes, static engines are timed only if no dynamic one exists.
        own = self._timed(problem, context, request)
        if self.before is None:
            return own
        rows: dict[tuple[object, ...], Candidate] = {}
        for row in (*self.before.autotune_candidates(problem, context, request), *own):
            known = rows.get(row.key)
            if known is None or known.rejected:
                rows[row.key] = row
        return sorted(rows.values(), key=lambda row: bool(row.rejected))

    def _timed(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        if self._is_dynamic(problem) and request.compiled:
            (row,) = self._first_dynamic(problem, context)
            if not (row.rejected or request.rejection(row)):
                found = type(self)(
                    lambda problem: self.graph_of(problem)._replace(dynamic=True),
                    self.rules_of,
                    handled=self.handled,
                )
                return found.autotune_candidates(problem, context, request)
        most = request.max_engines
        rows: dict[tuple[object, ...], Candidate] = {}
        counts = {"b": most, "a": max(most // 3, 1), "fallback": None}
        for mode in heuristic_modes(self.graph_of(problem), context):
            count = counts[mode]
            if sum(not row.rejected for row in rows.values()) >= ENOUGH:
                break  # of 115 products none had its fastest engine in a later mode
            for row in self._engines(problem, mode, context, most=count):
                rows.setdefault(row.key, row)
        kept = [row for row in rows.values() if request.compiled or not row.compiled] or [*rows.values()]
        kept = [row._replace(rejected=row.rejected or request.rejection(row)) for row in kept]
        return sorted(kept, key=lambda row: bool(row.rejected))

    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        before = self.before.by_name(problem, name)[0] if self.before else ()
        return [*before, partial(self._named, problem, name)], self.heuristics(problem)

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make an engine ready to run; raise NotSupportedError if cuDNN or the rules reject it."""
        if self.before is None:
            return self._plan(problem, candidate, context)
        before, own = (partial(one, problem, candidate, context) for one in (self.before.plan, self._plan))
        if isinstance(context, ShapesOnly):
            first: Plan = record_first((before, own) if self.before_on_shapes(problem) else (own, before))
            return first
        try:
            return before()
        except NotSupportedError:
            return own()

    def before_on_shapes(self, problem: Any) -> bool:  # noqa: ARG002
        """Return whether calls on shapes record the graph of the other source first."""
        return False

    def _plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        if candidate.backend != "graph" or candidate.relayout:
            raise NotSupportedError(f"{candidate} is not for this {problem}: expected an engine of a graph")
        graph, rules = self.graph_of(problem), self._rules(problem, context)
        warn(problem, target_of(context), self.handled)
        made: Plan
        if candidate.algorithm == base.NODE_BY_NODE:
            from ..certify.opinions import nodewise_plan  # only for graphs that are compared

            made = nodewise_plan(graph, len(problem.results), context)
        else:
            made = candidates.engine_plan(graph, rules, candidate, context, problem)
        return on_operands_of(made, problem, problem, align=not problem.aligned)

    def _rules(self, problem: Any, context: Any) -> EngineRules:
        return self.rules_of(problem, target_of(context))

    def _engines(
        self, problem: Any, mode: str, context: Context, *, most: int | None = None, first: int | None = None
    ) -> list[Candidate]:
        graph, rules = self.graph_of(problem), self._rules(problem, context)
        modes = heuristic_modes(graph, context)
        mode = modes[0] if mode == FIRST_MODE else mode
        if mode not in modes:
            return []
        rows = candidates.engine_candidates(graph, rules, context, [mode], most, first)
        if rows[0].algorithm == candidates.NO_ENGINE and not rules.refusal(compute_capability(context)):
            rows = [candidates.no_engine(rows[0].rejected, f"engines of heuristics {mode}")]
        return self._with_copies(problem, rows)

    def _named(self, problem: Any, name: str, context: Context) -> list[Candidate]:
        graph, rules = self.graph_of(problem), self._rules(problem, context)
        if self._is_dynamic(problem):
            row = candidates.engine_by_name(graph._replace(dynamic=True), rules, name, context)
            if not row.rejected:
                return self._with_copies(problem, [row])
        return self._with_copies(problem, [candidates.engine_by_name(graph, rules, name, context)])

    def _of_other_sizes(self, problem: Any, context: Context) -> list[Candidate]:
        row = candidates.engine_of_other_sizes(self.graph_of(problem), self._rules(problem, context), context)
        return [] if row is None else self._with_copies(problem, [row])

    def _first_dynamic(self, problem: Any, context: Context) -> list[Candidate]:
        graph = self.graph_of(problem)
        modes = heuristic_modes(graph, context)[:-1]  # engines of the fallback mode are slow
        row = candidates.first_dynamic_engine(graph, self._rules(problem, context), context, modes)
        return self._with_copies(problem, [row])

    def _with_copies(self, problem: Any, rows: list[Candidate]) -> list[Candidate]:
        """Add the workspace for aligned copies, if operands may need copies."""
        room = 0 if problem.aligned else room_of(tensors_of(problem).values())
        return [row if row.rejected else row._replace(workspace=row.workspace + room) for row in rows]


# --- problems that are computed as other problems ----------------------------------------------------------

_COMPILED = ("runtime_compilation",)


class ReducedSource(CandidateSource):
    """The candidates of another source for the problem that ``core_of`` returns.

    ``adapted`` returns a candidate of the core as one of the problem, with the workspace of what a plan adds.
    ``planned`` makes the plan of a candidate for the problem, from the inner source. ``also`` returns
    names of engines to time next to those of the heuristics, which list few settings of an engine. They are
    compiled at run time and deterministic.
    """

    def __init__(
        self,
        inner: CandidateSource,
        core_of: Callable[[Any], Any],
        planned: Callable[[CandidateSource, Any, Candidate, Context], Plan],
        adapted: Callable[[Candidate, Any], Candidate] = lambda row, _: row,
        also: Callable[[Any], Sequence[str]] = lambda _: (),
        *,
        comparable: bool | None = None,
    ) -> None:
        self.inner, self.core_of = inner, core_of
        self._planned, self._adapted, self._also = planned, adapted, also
        self.comparable = inner.comparable if comparable is None else comparable

    def graph_of(self, problem: Any) -> Graph | None:
        """Return the graph of the core; None if its engines have none."""
        return self.inner.graph_of(self.core_of(problem))

    def on_shapes(self, problem: Any, named: str) -> list[Candidate]:
        return self.inner.on_shapes(self.core_of(problem), named)

    def with_dynamic_shapes(self) -> Self:
        inner = self.inner.with_dynamic_shapes()
        return self if inner is self.inner else self.around(inner)

    def around(self, inner: CandidateSource) -> Self:
        return type(self)(
            inner, self.core_of, self._planned, self._adapted, self._also, comparable=self.comparable
        )

    def only_graphs(self, problem: Any, context: Any) -> bool:
        """Return whether all candidates are engines of the graph of the core, and a plan adds nothing."""
        row = Candidate("graph", "any", "any", 0, True)
        return self._adapted(row, problem) == row and self.inner.only_graphs(self.core_of(problem), context)

    def heuristics(self, problem: Any) -> Sequence[Heuristic]:
        return self._of(problem, self.inner.heuristics(self.core_of(problem)))

    def autotune_candidates(self, problem: Any, context: Context, request: AlgoRequest) -> list[Candidate]:
        """Return the candidates of the core to time, and the other engines."""
        core = self.core_of(problem)
        rows = self.inner.autotune_candidates(core, context, request)
        if request.compiled:
            known = {row.algorithm for row in rows}
            names = [name for name in self._also(core) if name not in known][: request.max_engines]
            math = rows[0].math if rows else "fma"
            notes = (*_COMPILED, base.DYNAMIC_SHAPES) if rows and rows[0].dynamic else _COMPILED
            # Whether cuDNN supports them shows when their plans are made.
            rows += [Candidate("graph", name, math, 0, True, notes=notes) for name in names]
        return self._all(problem, sorted(rows, key=lambda row: bool(row.rejected)))

    def by_name(self, problem: Any, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        named, instead = self.inner.by_name(self.core_of(problem), name)
        return self._of(problem, named), self._of(problem, instead)

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        return self._planned(self.inner, problem, candidate, context)

    def _of(self, problem: Any, stages: Sequence[Heuristic]) -> list[Heuristic]:
        return [partial(self._stage, problem, stage) for stage in stages]

    def _stage(self, problem: Any, stage: Heuristic, context: Context) -> list[Candidate]:
        return self._all(problem, stage(context))

    def _all(self, problem: Any, rows: list[Candidate]) -> list[Candidate]:
        return [row if row.rejected else self._adapted(row, problem) for row in rows]


def packed_source(
    engines: CandidateSource,
    packed: Callable[[Any], Any],
    also: Callable[[Any], Sequence[str]] = lambda _: (),
) -> ReducedSource:
    """Return the engines of a problem on copies of operands.

    ``packed`` returns a problem with the strides that engines support. Its operands that differ from those of
    the problem are copied in every run.
    """

    def planned(inner: CandidateSource, problem: Any, candidate: Candidate, context: Context) -> Plan:
        core = packed(problem)
        return on_operands_of(inner.plan(core, candidate, context), problem, core)

    def adapted(row: Candidate, problem: Any) -> Candidate:
        core = packed(problem)
        if core == problem:
            return row
        pairs = zip(tensors_of(problem).values(), tensors_of(core).values(), strict=True)
        room = room_of(copy for spec, copy in pairs if spec != copy)
        return row._replace(workspace=row.workspace + room)

    return ReducedSource(engines, packed, planned, adapted, also)
