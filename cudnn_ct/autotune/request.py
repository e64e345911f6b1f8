"""Requests for an algorithm: policies, names, and limits that a candidate must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._algorithm_names import POLICIES, SYNONYMS, plain_name
from .._config import config
from ..plans.base import Candidate, Problem, of_any_call
from ..shapes.parse import as_bool, as_int


class AlgoRequest(NamedTuple):
    """A request for an algorithm."""

    algo: str | None = "heuristic"  # one of `POLICIES`, or an algorithm; None with ``row``
    row: Candidate | None = None  # the candidate to take
    deterministic: bool = False
    workspace_limit: int | None = None
    strict: bool = False
    max_engines: int = 16  # those of the first heuristic that autotuning tries
    compiled: bool = True  # whether it tries runtime-compiled engines
    dynamic_shapes: bool = False  # whether dynamic graphs are planned where they are supported

    @property
    def timed(self) -> bool:
        """Whether candidates are to be timed."""
        return self.algo == "autotune"

    def rejection(self, row: Candidate) -> str:
        """Return which limit a candidate exceeds; empty if none."""
        if self.deterministic and not row.deterministic:
            return "not deterministic"
        if self.workspace_limit is not None and row.workspace > self.workspace_limit:
            return f"needs {row.workspace:,} bytes of workspace; the limit is {self.workspace_limit:,}"
        return ""


def request(
    algo: Any,
    deterministic: Any,
    workspace_limit: Any,
    strict: Any,
    problem: Problem | None = None,
    check_name: Callable[[str], object] = str,
    dynamic_shapes: Any = None,
) -> AlgoRequest:
    """Check the arguments that select an algorithm; ``check_name`` rejects names of other problems."""
    limit = None if workspace_limit is None else as_int(workspace_limit, "workspace_limit")
    if limit is not None and limit < 0:
        raise ValueError(f"workspace_limit must be at least 0 bytes: got {limit}")
    limits = (
        as_bool(deterministic, "deterministic"),
        limit,
        as_bool(strict, "strict"),
        config.autotune_max_engines,
        config.allow_runtime_compilation,
        config.dynamic_shapes if dynamic_shapes is None else as_bool(dynamic_shapes, "dynamic_shapes"),
    )
    if isinstance(algo, Candidate):
        if algo.rejected:
            raise ValueError(f"algo: {algo} was rejected: {algo.rejected}")
        if None not in (algo.problem, problem) and of_any_call(algo.problem) != of_any_call(problem):
            text = f"algo: {algo} was made for another problem: {algo.problem}; this is {problem}"
            raise ValueError(text)
        return AlgoRequest(None, algo, *limits)
    name = algo if isinstance(algo, str) else getattr(algo, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"algo must be a name or a Candidate, not {algo!r}")
    name = plain_name(SYNONYMS.get(name, name))
    if name == "online" and limits[0]:  # a later candidate would change the bits of results
        name = "heuristic"
    if name not in POLICIES:
        check_name(name)
    return AlgoRequest(name, None, *limits)
