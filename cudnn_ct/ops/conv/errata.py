"""Engines of cuDNN that computed wrong results, and engines that cuDNN ranks too high.

All of these findings are from cuDNN 9.19 on an H200.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from .graph_nodes import written_as

__all__ = ["KNOWN_WRONG", "erratum", "prefer_winograd", "ranked_too_high"]


class Erratum(NamedTuple):
    """An engine with wrong results although cuDNN offered it, and the problems for which they are wrong."""

    engine: int
    applies: Callable[[Any], bool]
    finding: str


def _uneven(problem: Any) -> bool:
    return bool(problem.core.asymmetric_padding)


def _mixed(problem: Any) -> bool:
    return not set.intersection(*(set(spec.layouts) for spec in problem.core[1:4]))


def _conv(direction: str, *of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda p: (
        isinstance(p, ConvProblem) and p.direction == direction and any(applies(p) for applies in of)
    )


def _channels_first(problem: ConvProblem) -> bool:
    return written_as(problem.x, problem) != "nhwc"


def _one_pixel_of_dy(problem: ConvProblem) -> bool:
    return prod(problem.y.shape[2:]) == 1


def _flipped(problem: ConvProblem) -> bool:
    return problem.mode == "convolution"


def _forward_uneven(problem: Any) -> bool:
    return bool(problem.core.direction == "forward" and _uneven(problem))


def _thick_groups_of_one_filter(problem: ConvProblem) -> bool:
    grouped = problem.groups > 1 and problem.w.shape[0] == problem.groups and problem.w.shape[1] > 1
    return grouped and not _channels_first(problem)


# Every engine that cuDNN 9.19 offered on an H200 was compared with the reference, with NaN in the output and
# operands at the edges of mapped memory. These engines wrote wrong numbers, left elements unwritten, or
# accessed memory outside of their operands. The finding becomes the status of the candidate.
KNOWN_WRONG = (
    Erratum(50, _conv("backward_data", _uneven), "leaves elements unwritten where padding is uneven"),
    Erratum(5, _forward_uneven, "writes beyond the result where padding is uneven"),
    Erratum(78, _conv("backward_data", _channels_first), "wrong sums in NCHW"),
    # Found in one problem, with a single pixel and a flipped filter; either may be the cause.
    Erratum(
        78, _conv("backward_data", _one_pixel_of_dy, _flipped), "wrong sums of one pixel or flipped filters"
    ),
    Erratum(1, _conv("backward_filter", _uneven), "wrong sums where padding is uneven"),
    Erratum(4, _conv("backward_filter", _uneven, _mixed), "wrong sums for uneven padding or mixed layouts"),
    Erratum(
        4, _conv("backward_filter", _thick_groups_of_one_filter), "wrong sums in NHWC for one filter a group"
    ),
    Erratum(18, _conv("backward_filter", _uneven), "reads beyond its operands where padding is uneven"),
    Erratum(20, _conv("backward_filter", _uneven), "wrong sums where padding is uneven"),
    Erratum(70, _conv("backward_filter", _channels_first), "wrong sums in NCHW"),
    Erratum(16, _conv("backward_filter", _uneven), "reads dy as if padding were even"),
    Erratum(0, lambda p: isinstance(p, FusedConv) and p.activation == "tanh", "tanh of large numbers is NaN"),
)


# Engines with correct int8 results in layouts other than NHWC; others gave wrong sums for some sizes.
INT8_OK = (0, 28)


def erratum(engine: int, problem: Any) -> str:
    """Return why the results of an engine are wrong for a problem; empty if no error is known."""
    specs = problem.core[1:4]
    last = all("nhwc" in spec.layouts for spec in specs)
    if specs[0].dtype == "int8" and not last and engine not in INT8_OK:
        return "wrong sums of int8 in NCHW"
    wrong = (row.finding for row in KNOWN_WRONG if row.engine == engine and row.applies(problem))
    return next(wrong, "")


def _depthwise(problem: Any) -> bool:
    return bool(problem.core.groups > 1 and problem.core.w.shape[1] == 1)


def _in_tf32(problem: ConvProblem) -> bool:
    return problem.tensor_cores and problem.x.dtype == "float32"


def _points_in_tf32(problem: ConvProblem) -> bool:
    points = set(problem.w.shape[2:]) == {1}
    return points and _in_tf32(problem) and not _mixed(problem) and not _channels_first(problem)


def _strided_groups_in_tf32(problem: ConvProblem) -> bool:
    return problem.groups > 1 and max(problem.stride) > 1 and _in_tf32(problem)


def prefer_winograd(problem: Any) -> bool:
    """Whether FFT and Winograd engines, which need fewer products, are faster than cuDNN ranks them."""
    core = problem.core
    return isinstance(problem, FusedConv) and core.compute == "float32" and not core.tensor_cores


class RankPenalty(NamedTuple):
    """An engine that cuDNN's heuristics rank above faster ones, and the problems for which they do."""

    engine: int
    applies: Callable[[Any], bool]


# The first two rules are fitted to timings of all engines for half of the rows of benchmarks/conv.py, and
# validated on the other half; the last two are fitted to other problems.
RANKED_TOO_HIGH = (
    RankPenalty(0, lambda p: not _depthwise(p)),  # sums products one by one
    RankPenalty(9, _conv("backward_filter", lambda p: True)),  # noqa: ARG005 - all of them
    *(RankPenalty(engine, _conv("forward", _points_in_tf32)) for engine in (28, 38, 48, 70)),
    RankPenalty(58, _conv("backward_data", _strided_groups_in_tf32)),
)


def ranked_too_high(problem: Any) -> frozenset[int]:
    """Return the engines to try last for a problem."""
    return frozenset(row.engine for row in RANKED_TOO_HIGH if row.applies(problem))
