"""The arguments that select an engine, for operations whose problems are graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .. import algo_cache
from .._algorithm_names import POLICIES, SYNONYMS
from .._config import config
from ..algo_cache import CandidateSource
from ..autotune.request import AlgoRequest, request
from ..plans.base import Plan, Problem, SelectedPlan
from ..shapes.checks import Outs, Specs
from ._graph_source import check_engine_name
from ._operation import Select

P = TypeVar("P")


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
        given = (config.deterministic, config.workspace_limit)
        deterministic, limit = (
            setting if argument is None else argument
            for argument, setting in zip(self[1:], given, strict=True)
        )
        return request(self._algo, deterministic, limit, strict, problem, check_name, dynamic_shapes)

    @property
    def _algo(self) -> Any:
        """The argument, or the policy of the settings; they may name an algorithm of convolutions instead."""
        if self.algo is not None:
            return self.algo
        policy = SYNONYMS.get(str(config.algo), config.algo)
        return policy if policy in POLICIES else "heuristic"


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
