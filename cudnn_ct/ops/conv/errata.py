"""Engines of cuDNN that computed wrong results of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ...autotune.errata import Errata, Erratum
from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from .graph_nodes import written_as

__all__ = ["KNOWN_WRONG", "channels_first", "erratum", "mixed_layouts"]


def _uneven(problem: Any) -> bool:
    return bool(problem.core.asymmetric_padding)


def mixed_layouts(problem: Any) -> bool:
    """Return whether x, w and y have no layout in common."""
    return not set.intersection(*(set(spec.layouts) for spec in problem.core[1:4]))


def _conv(direction: str, applies: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda p: isinstance(p, ConvProblem) and p.direction == direction and applies(p)


def channels_first(problem: ConvProblem) -> bool:
    """Return whether x is passed to engines in another layout than NHWC."""
    return written_as(problem.x, problem) != "nhwc"


def _forward_uneven(problem: Any) -> bool:
    return bool(problem.core.direction == "forward" and _uneven(problem))


def _groups_of_one_filter(problem: ConvProblem) -> bool:
    grouped = problem.groups > 1 and problem.w.shape[0] == problem.groups and problem.w.shape[1] > 1
    return grouped and not channels_first(problem)


def _fused_tanh(problem: Any) -> bool:
    return isinstance(problem, FusedConv) and problem.activation == "tanh"


# Every engine that cuDNN offered was compared with the reference, with NaN in the output and operands at the
# edges of mapped memory. These engines wrote wrong numbers, left elements unwritten, or accessed memory that
# is not theirs. The finding becomes the status of the candidate.
KNOWN_WRONG = Errata(
    found_on="cuDNN 9.19, NVIDIA H200",
    rows=(
        Erratum(50, _conv("backward_data", _uneven), "leaves elements unwritten where padding is uneven"),
        Erratum(5, _forward_uneven, "writes beyond the result where padding is uneven"),
        Erratum(78, _conv("backward_data", channels_first), "wrong sums in NCHW"),
        # Found in one problem, with a single pixel and a flipped filter; either may be the cause.
        Erratum(78, _conv("backward_data", lambda p: prod(p.y.shape[2:]) == 1), "wrong sums of one pixel"),
        Erratum(78, _conv("backward_data", lambda p: p.mode == "convolution"), "wrong sums if flipped"),
        Erratum(1, _conv("backward_filter", _uneven), "wrong sums where padding is uneven"),
        Erratum(4, _conv("backward_filter", _uneven), "wrong sums for uneven padding"),
        Erratum(4, _conv("backward_filter", mixed_layouts), "wrong sums for mixed layouts"),
        Erratum(4, _conv("backward_filter", _groups_of_one_filter), "wrong sums of one filter a group"),
        Erratum(18, _conv("backward_filter", _uneven), "reads beyond its operands where padding is uneven"),
        Erratum(20, _conv("backward_filter", _uneven), "wrong sums where padding is uneven"),
        Erratum(70, _conv("backward_filter", channels_first), "wrong sums in NCHW"),
        Erratum(16, _conv("backward_filter", _uneven), "reads dy as if padding were even"),
        Erratum(0, _fused_tanh, "tanh of large numbers is NaN"),
    ),
)

# Engines with correct int8 results in layouts other than NHWC; others gave wrong sums for some sizes.
INT8_OK = (0, 28)


def erratum(engine: int, problem: Any) -> str:
    """Return why the results of an engine are wrong for a problem; empty if no error is known."""
    specs = problem.core[1:4]
    last = all("nhwc" in spec.layouts for spec in specs)
    if specs[0].dtype == "int8" and not last and engine not in INT8_OK:
        return "wrong sums of int8 in NCHW"
    return KNOWN_WRONG.reason(engine, problem)
