"""Known defects of cuDNN versions in convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import _lib
from ...autotune.known import KnownDefects
from ...shapes.conv import ConvProblem

__all__ = ["DEFECTS", "without_wrong_tf32"]

_OPERATIONS = {
    "forward": "conv",
    "backward_data": "conv_backward_data",
    "backward_filter": "conv_backward_filter",
}


def _uses_tf32(problem: ConvProblem) -> bool:
    return problem.tensor_cores and problem.x.dtype == problem.compute == "float32"


_CONDITIONS: dict[str, Callable[[ConvProblem], bool]] = {
    "3 spatial axes": lambda problem: len(problem.x.shape) == 5,
    "float16 or bfloat16": lambda problem: problem.x.dtype in ("float16", "bfloat16"),
    "TF32": _uses_tf32,
    "a filter larger than 1": lambda problem: any(length != 1 for length in problem.w.shape[2:]),
    "depthwise": lambda problem: 1 < problem.groups == problem.x.shape[1],
    "2**31 or more elements": lambda problem: max(problem.x.size, problem.y.size) >= 2**31,
}


def _on_core(condition: Callable[[ConvProblem], bool]) -> Callable[[Any], bool]:
    return lambda problem: condition(problem.core)


DEFECTS = KnownDefects(
    lambda problem: _OPERATIONS[problem.core.direction],
    {text: _on_core(condition) for text, condition in _CONDITIONS.items()},
)


def without_wrong_tf32(problem: ConvProblem) -> ConvProblem:
    """Return the problem, in IEEE arithmetic if this cuDNN is known to compute it wrong in TF32."""
    if not _uses_tf32(problem):
        return problem
    wrong = any("TF32" in row["when"] for row in DEFECTS.rows(problem, _lib.load().version))
    return problem._replace(tensor_cores=False) if wrong else problem
