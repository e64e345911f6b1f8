"""Engines of attention that compute wrong results. Defects of versions are in `known`."""

from __future__ import annotations

from ... import _lib
from ...autotune.errata import Errata, Erratum
from ...graph.candidates import EngineRules
from ...graph.engines import Engine
from ...shapes.attention import AttentionProblem
from .known import DEFECTS

__all__ = ["KNOWN_WRONG", "rules_of", "value_head"]


def _has_narrow_values(head: int, value_head: int) -> bool:
    return head > 192 and value_head <= 128


def _packed_narrow_values(problem: AttentionProblem) -> bool:
    sizes = problem.sizes
    return problem.dy is not None and problem.packed and _has_narrow_values(sizes.head, sizes.value_head)


KNOWN_WRONG = Errata(
    found_on="cuDNN 9.19, NVIDIA H200",
    rows=(
        # No other engine exists. Values as wide as the keys are right, so `value_head` adds columns.
        Erratum(6, _packed_narrow_values, "wrong dq and dk of packed sequences if D > 192 and Dv <= 128"),
    ),
)


def rules_of(problem: AttentionProblem) -> EngineRules:
    """Return the rules for the engines of a problem."""

    version = _lib.load().version

    def why_wrong(engine: Engine, notes: tuple[str, ...]) -> str:  # noqa: ARG001
        known = DEFECTS.wrong_engine(engine.number, problem, version, None)
        return KNOWN_WRONG.reason(engine.number, problem) or known

    return EngineRules(why_wrong=why_wrong)


def value_head(head: int, value_head: int, *, gradient: bool, packed: bool) -> int:
    """Return the columns of v, y and dy in a graph; those behind ``value_head`` are zeros."""
    return head if gradient and packed and _has_narrow_values(head, value_head) else value_head
