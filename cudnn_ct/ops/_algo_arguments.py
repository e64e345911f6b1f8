"""The arguments that select an engine, for operations whose problems are graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .._algorithm_names import POLICIES, SYNONYMS
from .._config import config
from ..autotune.request import AlgoRequest, request
from ..plans.base import Problem
from ..shapes.checks import Outs, Specs
from ._graph_source import check_engine_name

P = TypeVar("P")


class AlgoArguments(NamedTuple):
    """Arguments of a call that select an engine, as the caller wrote them; None stands for a setting."""

    algo: Any
    deterministic: Any
    workspace_limit: Any

    def request(self, problem: Problem, strict: Any = False, dynamic_shapes: Any = None) -> AlgoRequest:
        """Return the request for an algorithm of a problem."""
        given = (config.deterministic, config.workspace_limit)
        deterministic, limit = (
            setting if argument is None else argument
            for argument, setting in zip(self[1:], given, strict=True)
        )
        return request(self._algo, deterministic, limit, strict, problem, check_engine_name, dynamic_shapes)

    @property
    def _algo(self) -> Any:
        """The argument, or the policy of the settings; they may name an algorithm of convolutions instead."""
        if self.algo is not None:
            return self.algo
        policy = SYNONYMS.get(str(config.algo), config.algo)
        return policy if policy in POLICIES else "heuristic"


def without_factors(problem: Callable[..., P]) -> Callable[..., P]:
    """Return the ``problem`` of an operation without alpha and beta, from a function of its own parameters.

    The last parameters of a call are :class:`AlgoArguments`, which do not belong to the problem.
    """

    def of_call(specs: Specs, outs: Outs, *params: Any, scaled: str, aligned: bool) -> P:  # noqa: ARG001
        return problem(specs, tuple(outs), *params[:-3], aligned=aligned)

    return of_call
