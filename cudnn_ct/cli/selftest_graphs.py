"""The selftest's cases of graphs of nodes: aggregation and attention."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from .. import reference
from ..shapes.specs import LAYOUTS
from .selftest_rows import SUMS, Case, Draw, Inputs, each_layout

OFFSETS, INDICES = np.array([0, 2, 3, 7], np.int32), np.array([0, 4, 1, 3, 0, 2, 4], np.int32)
SOURCES, DESTINATIONS, EDGES, FEATURES = 5, 3, 7, 8


def graph_cases() -> Iterator[Case]:
    """Yield few calls: cuDNN compiles a kernel for each dtype, in seconds."""
    for step in ("", "_backward"):
        for name, make in (("graph_aggregate", _aggregate), ("graph_attention", _attention)):
            draw = partial(make, gradient=bool(step))
            yield from each_layout(f"{name}{step}", "", draw, SUMS, ("float32",), LAYOUTS[:1])


def _aggregate(draw: Draw, *, gradient: bool) -> Inputs:
    x, edges = draw.floats(SOURCES, FEATURES), draw.floats(EDGES, 4)
    if not gradient:
        return Inputs((OFFSETS, INDICES, x, edges), {"op": "mean"})
    shapes = {"x_shape": x.shape, "edges_shape": edges.shape}
    return Inputs((draw.floats(DESTINATIONS, FEATURES + 4), OFFSETS, INDICES), {"op": "mean", **shapes})


def _attention(draw: Draw, *, gradient: bool) -> Inputs:
    x, target = draw.floats(SOURCES, FEATURES), draw.floats(DESTINATIONS, FEATURES)
    operands = (OFFSETS, INDICES, x, target, draw.floats(FEATURES))
    if not gradient:
        return Inputs(operands, {"heads": 2})
    _, scores, activated = reference.graph_attention(*operands, heads=2)
    return Inputs((draw.floats(DESTINATIONS, FEATURES), *operands, scores, activated), {"heads": 2})
