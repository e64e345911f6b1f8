"""Defects of cuDNN's attention: engines and versions that must not be used, problems that need lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...autotune.errata import Errata, Erratum
from ...graph.candidates import EngineRules
from ...graph.engines import Engine
from ...shapes.attention import AttentionProblem

__all__ = [
    "DEFECTS",
    "KNOWN_WRONG",
    "PADDED",
    "Defect",
    "known_defect",
    "needs_padding",
    "rules_of",
    "value_head",
]


class Defect(NamedTuple):
    """A defect of the versions from ``first`` to ``last``, and the problems that it concerns.

    ``source`` is where it was reported.
    """

    first: int
    last: int
    applies: Callable[[AttentionProblem], bool]
    finding: str
    source: str


ALL = 10**9


def _gradient(problem: AttentionProblem) -> bool:
    return problem.dy is not None


def _has_narrow_values(head: int, value_head: int) -> bool:
    return head > 192 and value_head <= 128


def _packed_narrow_values(problem: AttentionProblem) -> bool:
    sizes = problem.sizes
    return _gradient(problem) and problem.packed and _has_narrow_values(sizes.head, sizes.value_head)


KNOWN_WRONG = Errata(
    found_on="cuDNN 9.19, NVIDIA H200",
    rows=(
        # No other engine exists. Values as wide as the keys are right, so `value_head` adds columns.
        Erratum(6, _packed_narrow_values, "wrong dq and dk of packed sequences if D > 192 and Dv <= 128"),
    ),
)


def _window_of_1024_keys(problem: AttentionProblem) -> bool:
    return problem.band.left is not None and problem.band.right != 0 and problem.sizes.keys > 1024


# Problems that no engine of these versions computes correctly.
DEFECTS = (
    Defect(
        0,
        91001,
        lambda _: True,
        "attention before cuDNN 9.10.2 has known defects, or needs graphs that were not tested",
        "the checks of nvidia-cudnn-frontend 1.32 for 9.10.0 and 9.10.1",
    ),
    Defect(
        91400,
        91400,
        _window_of_1024_keys,
        "cuDNN 9.14.0 computes windows that are not causal wrong for more than 1024 keys",
        "the checks of nvidia-cudnn-frontend 1.32",
    ),
    Defect(
        0,
        ALL,
        lambda problem: _gradient(problem) and problem.sizes.keys == 1,
        "cuDNN does not support the gradient with one key",
        "release notes of cuDNN 9.18.1, known issues",
    ),
    Defect(
        0,
        ALL,
        lambda problem: problem.dbias is not None and problem.sizes.queries == 1,
        "cuDNN does not support the gradient of the bias of one query",
        "TransformerEngine, fused attention: shapes of dbias",
    ),
)

# Gradients that are NaN for rows whose statistics are below -88.7, because the end of a tile of keys is not
# masked. Lengths that equal the sizes of the operands mask it.
PADDED = (
    Defect(
        0,
        91500,
        lambda problem: _gradient(problem) and problem.sizes.keys % 128 != 0,
        "keys that are not a multiple of 128",
        "github.com/NVIDIA/cudnn-frontend issue 160",
    ),
    Defect(
        91501,
        ALL,
        lambda problem: _gradient(problem) and problem.sizes.keys % 128 == 64,
        "keys modulo 128 are 64",
        "github.com/NVIDIA/cudnn-frontend pull request 628, github.com/pytorch/pytorch issue 196678",
    ),
    Defect(
        0,
        ALL,
        lambda problem: _gradient(problem) and problem.sizes.queries == 1,
        "one query: NaN in dk and dv, seen with cuDNN 9.25.1 and 9.26.0 on an H200",
        "github.com/NVIDIA/cudnn-frontend issue 1072",
    ),
)


def rules_of(problem: AttentionProblem) -> EngineRules:
    """Return the rules for the engines of a problem."""

    def why_wrong(engine: Engine, notes: tuple[str, ...]) -> str:  # noqa: ARG001
        return KNOWN_WRONG.reason(engine.number, problem)

    return EngineRules(why_wrong=why_wrong)


def value_head(head: int, value_head: int, *, gradient: bool, packed: bool) -> int:
    """Return the columns of v, y and dy in a graph; those behind ``value_head`` are zeros."""
    return head if gradient and packed and _has_narrow_values(head, value_head) else value_head


def known_defect(problem: AttentionProblem, version: int) -> str:
    """Return why no engine of a cuDNN computes a problem correctly; empty if no defect is known."""
    found = (row for row in DEFECTS if row.first <= version <= row.last and row.applies(problem))
    return next((f"{row.finding} ({row.source})" for row in found), "")


def needs_padding(problem: AttentionProblem, version: int) -> bool:
    """Return whether the graph of a problem must mask the end of the keys although no lengths are given."""
    return any(row.first <= version <= row.last and row.applies(problem) for row in PADDED)
