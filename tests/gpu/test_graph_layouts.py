"""Convolutions of built graphs in all layouts: their results are right, or the graph is rejected."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError

pytestmark = pytest.mark.skipif(not ct.config.replay, reason="first calls run without replays here, too")

LAYOUTS = ("nchw", "nhwc")
SHAPES = [(8, 8, 7), (8, 8, 3), (1, 8, 3), (8, 1, 7)]  # channels of x and y, and length of x


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("channels", "kernels", "size"), SHAPES)
@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_fused_convolution(direction: str, channels: int, kernels: int, size: int, dtype: str) -> None:
    rng = np.random.default_rng()
    shapes = {"x": (2, channels, size, size), "w": (kernels, channels, 3, 3)}
    shapes["dy"] = (2, kernels, size - 2, size - 2)
    first, second, result = {
        "forward": ("x", "w", "dy"),
        "backward_data": ("dy", "w", "x"),
        "backward_filter": ("dy", "x", "w"),
    }[direction]
    given = [rng.normal(size=shapes[name]).astype(dtype) for name in (first, second)]
    bias = rng.normal(size=(1, shapes[result][1], 1, 1)).astype(dtype)
    more: dict[str, Any] = {} if direction == "forward" else {f"{result}_shape": shapes[result]}
    name = "conv" if direction == "forward" else f"conv_{direction}"
    reference = getattr(ct.reference, name)
    sums = reference(*(one.astype(np.float64) for one in given), *more.values())
    ran = 0
    for left, right, out, biased in product(LAYOUTS, LAYOUTS, (None, *LAYOUTS), (False, True)):
        g = ct.Graph()
        inputs = [
            g.input(one.shape, dtype, layout=layout)  # type: ignore[arg-type]
            for one, layout in zip(given, (left, right), strict=True)
        ]
        y = getattr(g, name)(*inputs, **more)
        y = g.relu(y + g.input(bias.shape, dtype) if biased else y)
        if out is not None:
            y.output(layout=out)  # type: ignore[arg-type]
        arrays = [ct.asarray(one, layout=layout) for one, layout in zip(given, (left, right), strict=True)]  # type: ignore[arg-type]
        try:
            with g.build(y) as built:
                found = built(*arrays, *([ct.asarray(bias)] if biased else [])).numpy()
        except NotSupportedError:
            continue
        ran += 1
        wanted = np.maximum(sums + bias if biased else sums, 0)
        scale = np.abs(wanted).max() or 1.0  # relu may leave zeros only
        assert np.abs(found - wanted).max() < 5e-3 * scale, (left, right, out, biased)
    assert ran or channels == 1 or kernels == 1
