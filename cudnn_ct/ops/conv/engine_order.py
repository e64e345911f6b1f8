"""Engine that the heuristic choice tries first in strict float32 and float64, where cuDNN's order is poor.

The rules are fitted to timings of every engine for the rows of benchmarks/conv.py. Each rule is supported by
a fixed half of the rows alone, see docs/algorithms.md. All timings are from cuDNN 9.19 on an H200. The
conditions are sizes that matter to a kernel: the number of products per sum, and the number of result tiles
to distribute over multiprocessors.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import NamedTuple

from ...shapes.conv import ConvProblem

__all__ = ["MEASURED_ON", "preference"]

MEASURED_ON = (9, 0)  # compute capability; on others, cuDNN's own order is kept

TILE = 128  # rows and columns of the result tiles of the larger kernels
THIN = 32  # with fewer channels, transforms and wide tiles do not pay off
MULTIPROCESSORS = 132


class ConvSizes(NamedTuple):
    """Sizes on which the choice of a kernel depends."""

    axes: int
    window: int  # number of elements
    plain: bool  # stride and dilation are 1
    strided: bool
    square3: bool  # suits Winograd: a 3 x 3 window without stride and dilation, and enough channels
    dense: bool  # one group
    grouped: bool  # more than one group, with more than one channel each
    thick: int  # channels per group
    thinner: int  # min(channels of x, channels of y)
    products: int  # channels of x times channels of y
    image: int  # pixels per image of x
    result: int  # pixels per image of y
    inputs: int  # pixels of x
    outputs: int  # pixels of y
    tiles_in: int  # tiles of a result with the size of x
    tiles_out: int

    @property
    def point(self) -> bool:
        return self.window == 1

    @classmethod
    def of(cls, problem: ConvProblem) -> ConvSizes:
        (batch, channels, *image), (filters, thick, *window) = problem.x.shape, problem.w.shape
        result = problem.y.shape[2:]
        inputs, outputs = batch * prod(image), batch * prod(result)
        strided, dense, thinner = max(problem.stride) > 1, problem.groups == 1, min(channels, filters)
        plain = not strided and max(problem.dilation) == 1
        return cls(
            axes=len(window),
            window=prod(window),
            plain=plain,
            strided=strided,
            square3=window == [3, 3] and plain and dense and thinner >= THIN,
            dense=dense,
            grouped=not dense and thick > 1,
            thick=thick,
            thinner=thinner,
            products=channels * filters,
            image=prod(image),
            result=prod(result),
            inputs=inputs,
            outputs=outputs,
            tiles_in=ceil(inputs / TILE) * ceil(channels / TILE),
            tiles_out=ceil(outputs / TILE) * ceil(filters / TILE),
        )


class EngineRule(NamedTuple):
    """An engine with its knobs, and the sizes for which it comes first."""

    engine: str
    applies: Callable[[ConvSizes], bool]


# The first rule that applies is used. Winograd and FFT pay off for many pixels, and a tile of 128 x 128 if
# there are tiles for half of the multiprocessors.
PREFERENCES = {
    ("float32", "forward"): (
        EngineRule("engine 6", lambda s: s.square3 and (s.tiles_out >= 64 or s.products >= 2**16)),
        EngineRule("engine 70 knobs 2=4,18=0", lambda s: s.dense and s.tiles_out >= 64),
    ),
    ("float32", "backward_data"): (
        EngineRule("engine 7", lambda s: s.square3 and s.tiles_in >= 64),
        EngineRule("engine 1", lambda s: s.grouped and s.plain and not s.point),
    ),
    ("float32", "backward_filter"): (
        EngineRule("engine 20 knobs 2=6,3=0", lambda s: s.grouped),
        EngineRule("engine 1", lambda s: s.axes == 3 and s.outputs >= 10_000),
        EngineRule(
            "engine 20",
            lambda s: (
                s.axes == 2
                and s.dense
                and not s.square3
                and s.thinner >= THIN
                and s.outputs >= 10_000
                and s.products * s.window <= 600_000
            ),
        ),
    ),
    ("float64", "forward"): (
        EngineRule("engine 1", lambda s: s.axes == 2 and s.dense and s.point and s.strided),
        EngineRule(
            "engine 4",
            lambda s: s.axes == 3 and s.dense and s.plain and not s.point and s.result >= 4096,
        ),
        EngineRule(
            "engine 28",
            lambda s: (
                s.dense
                and not (s.axes == 2 and s.point)
                and (s.tiles_out < MULTIPROCESSORS or s.thinner < THIN)
            ),
        ),
    ),
    ("float64", "backward_data"): (
        EngineRule(
            "engine 1",
            lambda s: s.axes == 2 and (s.dense or s.grouped) and s.plain and not s.point and s.inputs >= 784,
        ),
        EngineRule(
            "engine 2 knobs 2=2,3=0",
            lambda s: (
                s.axes == 2
                and (s.dense or s.grouped)
                and s.strided
                and not s.point
                and s.thinner >= THIN
                and s.inputs >= 10_000
            ),
        ),
        EngineRule(
            "engine 5", lambda s: s.axes == 3 and s.dense and s.plain and not s.point and s.image >= 784
        ),
    ),
    ("float64", "backward_filter"): (
        EngineRule("engine 1 knobs 2=6,3=0", lambda s: s.grouped and s.thick >= THIN),
        EngineRule("engine 20", lambda s: s.axes == 3 and s.dense and not s.point and s.thinner >= TILE),
        EngineRule("engine 20 knobs 2=6,3=0", lambda s: s.axes == 3 and s.dense),
        EngineRule(
            "engine 1 knobs 2=6,3=0",
            lambda s: s.axes == 2 and s.dense and not s.point and s.outputs < 8000,
        ),
        EngineRule(
            "engine 20",
            lambda s: (
                s.axes == 2
                and s.dense
                and (s.strided if s.point else s.thinner >= 64 and s.products >= 8192)
                and s.outputs >= 8000
            ),
        ),
    ),
}


def preference(problem: ConvProblem) -> str:
    """Return the engine to try first for a problem; empty if cuDNN's order is kept."""
    operands = (problem.x, problem.w, problem.y)
    if problem.tensor_cores and problem.compute == "float32":
        return ""
    if not all(spec.dtype == problem.compute and "nchw" in spec.layouts for spec in operands):
        return ""
    rows = PREFERENCES.get((problem.compute, problem.direction), ())
    sizes = ConvSizes.of(problem)
    return next((row.engine for row in rows if row.applies(sizes)), "")
