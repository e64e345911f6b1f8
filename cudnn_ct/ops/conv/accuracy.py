"""Algorithms of convolutions whose error exceeds the bound of a precision.

docs/algorithms.md#accuracy has the bound, and benchmarks/accuracy.py measures the error of every algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from typing import Any, NamedTuple

from ...shapes.conv import ConvProblem


class Inaccurate(NamedTuple):
    """Algorithms of one direction whose error exceeds the bound, and the problems for which it does.

    ``algorithms`` are engine numbers, names of legacy algorithms and numerical notes of engines. The row
    applies to algorithms that split their sums into more than ``slices`` slices (knob SPLIT_K).
    """

    direction: str
    algorithms: Collection[int | str]
    applies: Callable[[ConvProblem], bool]
    error: str
    slices: int = 0


def _windows_of_five(problem: ConvProblem) -> bool:
    """Tile transforms of 13 x 13 suffer from cancellation in float32; TF32 and bfloat16 have wider bounds."""
    checked = _rounds_to(problem) == "float32" and problem.x.dtype in ("float32", "float16")
    return checked and 5 in problem.w.shape[2:]


def _halves(problem: ConvProblem) -> bool:
    """Half precision operands and results with sums in float32."""
    return problem.compute == "float32" and problem.x.dtype in ("float16", "bfloat16")


def _large_windows(problem: ConvProblem) -> bool:
    """One addition in the result's dtype per window element; up to 16 additions stay within the bound."""
    return _halves(problem) and prod(problem.w.shape[2:]) > 16


def _large_windows_in_nchw(problem: ConvProblem) -> bool:
    return _large_windows(problem) and "nhwc" not in problem.common_layouts


_WINOGRAD_ERROR = "up to 1.7 % of the largest result for windows of 5"
_PARTIAL_SUMS = "adds partial sums in the dtype of the result"

# Measured by benchmarks/accuracy.py with cuDNN 9.19 on an H200.
TOO_INACCURATE = (
    Inaccurate("forward", (6, "winograd", "winograd_nonfused"), _windows_of_five, _WINOGRAD_ERROR),
    Inaccurate("backward_data", (7, "winograd", "winograd_nonfused"), _windows_of_five, _WINOGRAD_ERROR),
    Inaccurate("backward_filter", (17, "winograd", "winograd_nonfused"), _windows_of_five, _WINOGRAD_ERROR),
    Inaccurate("backward_data", (25,), _large_windows, _PARTIAL_SUMS),
    Inaccurate("backward_data", ("algo_0",), _large_windows_in_nchw, _PARTIAL_SUMS),
    Inaccurate("backward_filter", (47,), _halves, _PARTIAL_SUMS, slices=16),
    Inaccurate("backward_filter", (61,), lambda p: _halves(p) and p.x.dtype == "float16", _PARTIAL_SUMS),
)


def inaccuracy(problem: Any, backend: str, algorithm: str, notes: Collection[str] = ()) -> str:
    """Return why the error of an algorithm exceeds the bound of a problem; empty if that is not known."""
    core = problem.core
    name, _, knobs = algorithm.partition(" knobs ")
    own: int | str = int(name.removeprefix("engine ")) if backend == "graph" else name
    labels = {own, *notes}
    slices = int(dict(pair.split("=") for pair in knobs.split(",") if pair).get("0", 1))  # SPLIT_K is knob 0
    for row in TOO_INACCURATE:
        fits = row.direction == core.direction and not labels.isdisjoint(row.algorithms)
        if fits and row.applies(core) and slices > row.slices:
            return f"error above the bound of precision {_rounds_to(core)}: {row.error}"
    return ""


def _rounds_to(problem: ConvProblem) -> str:
    """Return the precision of products and sums; float32 products of half precision are exact."""
    in_tf32 = problem.tensor_cores and problem.x.dtype == problem.compute == "float32"
    return "tf32" if in_tf32 else problem.compute
