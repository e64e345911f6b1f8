"""Engines of cuDNN that computed wrong results of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ...autotune.errata import Errata, Erratum
from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.training_fusions import DataGradient
from .graph_nodes import written_as

__all__ = ["KNOWN_WRONG", "TRAINING", "channels_first", "erratum", "strided_and_dilated"]


def _of(direction: str, applies: Callable[[ConvProblem], bool]) -> Callable[[Any], bool]:
    return lambda problem: problem.core.direction == direction and applies(problem.core)


def _uneven(problem: ConvProblem) -> bool:
    return problem.asymmetric_padding


def channels_first(problem: ConvProblem) -> bool:
    """Return whether x is passed to engines in another layout than NHWC."""
    return written_as(problem.x, problem) != "nhwc"


def _not_all_nhwc(problem: ConvProblem) -> bool:
    return "nhwc" not in problem.common_layouts


def _groups_of_one_filter(problem: ConvProblem) -> bool:
    grouped = problem.groups > 1 and problem.w.shape[0] == problem.groups and problem.w.shape[1] > 1
    return grouped and not channels_first(problem)


def strided_and_dilated(problem: ConvProblem) -> bool:
    """Return whether stride and dilation of one axis exceed 1."""
    return any(min(pair) > 1 for pair in zip(problem.stride, problem.dilation, strict=True))


# Every engine that cuDNN offered was compared with the reference, with NaN in the output and operands at the
# edges of mapped memory. These engines wrote wrong numbers, left elements unwritten, or accessed memory that
# is not theirs. The finding becomes the status of the candidate.
KNOWN_WRONG = Errata(
    found_on="cuDNN 9.19, NVIDIA H200",
    rows=(
        Erratum(5, _of("forward", _uneven), "writes beyond the result where padding is uneven"),
        Erratum(78, _of("backward_data", _not_all_nhwc), "wrong sums unless all operands are NHWC"),
        # Found in one problem, with a single pixel and a flipped filter; either may be the cause.
        Erratum(78, _of("backward_data", lambda p: prod(p.y.shape[2:]) == 1), "wrong sums of one pixel"),
        Erratum(78, _of("backward_data", lambda p: p.mode == "convolution"), "wrong sums if flipped"),
        Erratum(4, _of("backward_filter", lambda p: not p.common_layouts), "wrong sums for mixed layouts"),
        Erratum(4, _of("backward_filter", _groups_of_one_filter), "wrong sums of one filter a group"),
        Erratum(70, _of("backward_filter", channels_first), "wrong sums in NCHW"),
        Erratum(
            0, lambda p: isinstance(p, FusedConv) and p.activation == "tanh", "tanh of large numbers is NaN"
        ),
    ),
)

# Fusions for training; the rows above hold for their convolutions too.
TRAINING = Errata(
    found_on="cuDNN 9.19, NVIDIA H200",
    rows=(
        Erratum(
            None,
            lambda p: isinstance(p, DataGradient) and strided_and_dilated(p.core),
            "wrong sums, or accesses behind the operands, where stride and dilation of an axis exceed 1",
        ),
    ),
)

# Engines with correct int8 results in layouts other than NHWC; others gave wrong sums for some sizes.
INT8_OK = (0, 28)


def erratum(engine: int, problem: Any) -> str:
    """Return why the results of an engine are wrong for a problem; empty if no error is known."""
    core = problem.core
    if core.x.dtype == "int8" and "nhwc" not in core.common_layouts and engine not in INT8_OK:
        return "wrong sums of int8 in NCHW"
    return KNOWN_WRONG.reason(engine, problem)
