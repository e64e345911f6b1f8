"""Layers in CUDA graphs and on several streams, and elements that are not finite, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from tests.layers import compare

from .conftest import captured, own_stream

SHAPE = (4, 8, 10, 12)

CALLS: dict[str, Callable[..., Any]] = {
    "pool": partial(ct.pool, window=2),
    "pool on a padded copy": partial(ct.pool, window=2, padding=((0, 1), (1, 0))),
    "softmax": ct.softmax,
    "softmax of a copy": partial(ct.softmax, axis=(0, 1)),
    "activation": partial(ct.activation, mode="tanh"),
    "lrn": ct.lrn,
    "reduce": partial(ct.reduce, axis=(0, 2)),
    "add": lambda x, **keywords: ct.add(x, x, **keywords),
}


def values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", CALLS)
def test_captured_layer_replays_when_the_workspace_has_grown(name: str, layout: str) -> None:
    stream, call = own_stream(), CALLS[name]
    x = ct.asarray(values(), layout=layout, stream=stream)
    out = call(x, stream=stream)
    call(x, out=out, stream=stream)
    ct.synchronize(stream)
    graph = captured(stream, lambda: call(x, out=out, stream=stream))
    large = ct.full((64, 64, 56, 56), 1.0, stream=stream)
    ct.pool(large, window=2, padding=((0, 1), (1, 0)), stream=stream)
    ct.reduce(large, axis=(0, 2, 3), stream=stream)
    ct.empty_cache()
    for seed in (1, 2):
        fresh = ct.asarray(values(seed), layout=layout, stream=stream)
        ct.transform(fresh, out=x, stream=stream)
        out.fill(np.nan, stream=stream)
        graph.launch(stream)
        ct.synchronize(stream)
        compare(out, call(ct.asarray(values(seed))).numpy())


def test_dropout_gives_one_sequence_on_several_streams() -> None:
    x, state, twin = ct.full((100, 100), 1.0), ct.DropoutState(0.5, seed=1), ct.DropoutState(0.5, seed=1)
    streams = [own_stream() for _ in range(3)]
    expected = [ct.dropout(x, twin).y.numpy() for _ in range(6)]
    for i, wanted in enumerate(expected):
        got = ct.dropout(x, state, stream=streams[i % 3]).y
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_pool_backward_of_averages_ignores_y() -> None:
    x, y, dy = ct.asarray(values()), ct.full((4, 8, 5, 6), np.nan), ct.full((4, 8, 5, 6), 1.0)
    for mode in ("average_inc_pad", "average_exc_pad", "sum"):
        dx = ct.pool_backward(dy, x, y, window=2, mode=mode)
        assert set(np.unique(dx.numpy())) == {1.0 if mode == "sum" else 0.25}
