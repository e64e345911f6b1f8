"""The arguments that select an engine, for operations whose problems are graphs."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._algorithm_names import POLICIES, SYNONYMS
from .._config import config
from ..autotune.request import AlgoRequest, request
from ..plans.base import Problem
from ._graph_source import check_engine_name


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
