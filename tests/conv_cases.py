"""Calls of convolutions as values, and strategies that draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.shapes.conv import ROLES, ConvProblem, conv_problem
from cudnn_ct.shapes.specs import TensorSpec
from tests.layers import FLOATS, LayerCase, Tensor, lying, scales_and_out
from tests.strategies import SCALES

OPERATIONS = {
    "forward": "conv",
    "backward_data": "conv_backward_data",
    "backward_filter": "conv_backward_filter",
}


def packed_problem(
    x: tuple[int, ...],
    w: tuple[int, ...],
    dtype: str = "float32",
    layout: str = "nchw",
    *,
    w_layout: str | None = None,
    direction: str = "forward",
    **arguments: Any,
) -> ConvProblem:
    """Return the problem of a convolution of contiguous operands, or of one of its gradients."""
    specs = TensorSpec.packed(x, dtype, layout), TensorSpec.packed(w, dtype, w_layout or layout)
    return conv_problem("forward", *specs, **arguments)._replace(direction=direction)


# Largest error of a sum of products of values near 1, over the largest result. The sums have at most a few
# hundred terms; TF32 rounds each factor to 11 bits, and FFT and Winograd add a few bits of their own.
TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-2, "float32": 2e-3, "float64": 1e-12}


def inexact_by_nature(described: str) -> bool:
    """Return whether an algorithm adds integers through fractions. Engines 17 and 18 have no note of it."""
    return any(word in described for word in ("fft", "winograd", "engine 17 ", "engine 18 "))


class Geometry(NamedTuple):
    """The shapes of x and w, and the arguments that determine the shape of y."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    arguments: dict[str, Any]

    @property
    def y(self) -> tuple[int, ...]:
        return ct.conv_output_shape(self.x, self.w, **self.arguments)

    def shapes(self, direction: str) -> list[tuple[int, ...]]:
        """Return the shapes of both operands and of the result."""
        return [getattr(self, role) for role in ROLES[direction].operands]

    def shape_of_gradient(self, direction: str) -> tuple[tuple[int, ...], ...]:
        """Return the arguments that follow the operands: the shape of a gradient, or no argument."""
        return () if direction == "forward" else (self.shapes(direction)[-1],)

    def expected(self, direction: str, operands: Sequence[np.ndarray]) -> np.ndarray:
        """Return the result of the reference."""
        reference = getattr(ct.reference, OPERATIONS[direction])
        return reference(*operands, *self.shape_of_gradient(direction), **self.arguments)

    def case(self, direction: str, operands: Sequence[Tensor], keywords: Any, outs: Any) -> LayerCase:
        """Return a call of a direction with this geometry."""
        shape = {f"{ROLES[direction].operands[-1]}_shape": one for one in self.shape_of_gradient(direction)}
        keywords = {**self.arguments, **shape, **keywords}
        return LayerCase(OPERATIONS[direction], tuple(operands), keywords, outs)


@st.composite
def geometries(
    draw: st.DrawFn,
    *,
    ranks: Sequence[int] = (1, 2, 3),
    asymmetric: bool = True,
    batches: Sequence[int] = (*(1, 2, 3) * 4, 0),
    channels: Sequence[int] = (1, 2, 3, 4),
) -> Geometry:
    """Draw a valid convolution: at least one output along each spatial axis."""
    rank, groups = draw(st.sampled_from(ranks)), draw(st.integers(1, 4))
    window = draw(_per_axis(rank, 1, 4 if rank < 3 else 3))
    dilation, padding = draw(_int_or_tuple(rank, 1, 3)), draw(_paddings(rank, asymmetric))
    size = tuple(
        draw(st.integers(least, least + (7 if rank < 3 else 4)))
        for least in _smallest_sizes(window, dilation, padding)
    )
    thick, filters = draw(st.sampled_from(channels)), draw(st.sampled_from(channels))
    arguments = {
        "padding": padding,
        "stride": draw(_int_or_tuple(rank, 1, 3)),
        "dilation": dilation,
        "groups": groups,
        "mode": draw(st.sampled_from(("cross_correlation", "convolution"))),
    }
    x = (draw(st.sampled_from(batches)), groups * thick, *size)
    return Geometry(x, (groups * filters, thick, *window), arguments)


@st.composite
def conv_cases(
    draw: st.DrawFn, direction: str = "forward", packed: bool = False, **choices: Any
) -> LayerCase:
    """Draw a call of a direction; ``packed`` operands have no gaps in memory, and no factor."""
    geometry, dtype = draw(geometries(**choices)), draw(st.sampled_from(FLOATS))
    *inputs, result = geometry.shapes(direction)
    operands = [lying(draw, shape, dtype) for shape in inputs]
    keywords, outs = scales_and_out(draw, result, dtype)
    if packed:
        operands = [one._replace(view="packed") for one in operands]
        outs = {name: one._replace(view="packed") for name, one in outs.items()}
        keywords["alpha"] = 1
    return geometry.case(direction, operands, keywords, outs)


@st.composite
def int8_cases(draw: st.DrawFn, views: Sequence[str] = ("packed",), **choices: Any) -> LayerCase:
    """Draw a convolution of int8: int32 results have no factors, float32 results need an ``out``."""
    geometry, sums = draw(geometries(**choices)), draw(st.sampled_from(("int32", "float32")))

    def tensor(shape: tuple[int, ...], dtype: str, values: str) -> Tensor:
        layout, view = draw(st.sampled_from(("nchw", "nhwc"))), draw(st.sampled_from(views))
        return Tensor(shape, dtype, values, layout, view, draw(st.integers(0, 99)))

    operands = [tensor(shape, "int8", "bytes") for shape in (geometry.x, geometry.w)]
    keywords: dict[str, Any] = {}
    if sums == "float32":
        keywords = {"alpha": draw(st.sampled_from(SCALES)), "beta": draw(st.sampled_from((0, 1, -2)))}
    with_out = sums == "float32" or draw(st.booleans())
    unread = sums == "float32" and not keywords["beta"]
    outs = {"out": tensor(geometry.y, sums, "nan" if unread else "integers")} if with_out else {}
    return replace(geometry.case("forward", operands, keywords, outs), exact=True)


# --- arguments ---------------------------------------------------------------------------------------------


def _per_axis(rank: int, least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(least, most)] * rank)


def _int_or_tuple(rank: int, least: int, most: int) -> st.SearchStrategy[int | tuple[int, ...]]:
    return st.integers(least, most) | _per_axis(rank, least, most)


def _paddings(rank: int, asymmetric: bool) -> st.SearchStrategy[Any]:
    simple = _int_or_tuple(rank, 0, 3) | st.sampled_from(("valid", "half", "full"))
    pairs = st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * rank)
    return simple | pairs if asymmetric else simple


def _smallest_sizes(window: tuple[int, ...], dilation: int | tuple[int, ...], padding: Any) -> list[int]:
    """Return the shortest axes that give an output, without the rules of the package, which are tested."""
    dilations = (dilation,) * len(window) if isinstance(dilation, int) else dilation
    least = []
    for axis, (k, d) in enumerate(zip(window, dilations, strict=True)):
        span = (k - 1) * d + 1
        if isinstance(padding, str):
            around = {"valid": 0, "half": 2 * (span // 2), "full": 2 * (span - 1)}[padding]
        else:
            here = padding if isinstance(padding, int) else padding[axis]
            around = 2 * here if isinstance(here, int) else sum(here)
        least.append(max(1, span - around))
    return least
