"""Reported defects of cuDNN's attention: versions that must not be used, problems that need lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...shapes.attention import AttentionProblem

__all__ = ["DEFECTS", "PADDED", "Defect", "known_defect", "needs_padding"]


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
        lambda problem: problem.dbias is not None and problem.dbias.shape[2] == 1,
        "cuDNN does not support the gradient of a bias that is shared by the queries",
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


def known_defect(problem: AttentionProblem, version: int) -> str:
    """Return why no engine of a cuDNN computes a problem correctly; empty if no defect is known."""
    found = (row for row in DEFECTS if row.first <= version <= row.last and row.applies(problem))
    return next((f"{row.finding} ({row.source})" for row in found), "")


def needs_padding(problem: AttentionProblem, version: int) -> bool:
    """Return whether the graph of a problem must mask the end of the keys although no lengths are given."""
    return any(row.first <= version <= row.last and row.applies(problem) for row in PADDED)
