"""Layers in CUDA graphs, on streams of their own and in several threads, and what is not finite, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from tests.layers import compare

from .conftest import captured, own_stream

SHAPE = (4, 8, 10, 12)

# Each as a function of x that writes to out, whose shape follows from the reference.
CALLS: dict[str, Callable[..., Any]] = {
    "pool": lambda x, **k: ct.pool(x, window=2, **k),
    "pool on a padded copy": lambda x, **k: ct.pool(x, window=2, padding=((0, 1), (1, 0)), **k),
    "softmax": lambda x, **k: ct.softmax(x, **k),
    "softmax of a copy": lambda x, **k: ct.softmax(x, axis=(0, 1), **k),
    "activation": lambda x, **k: ct.activation(x, mode="tanh", **k),
    "lrn": lambda x, **k: ct.lrn(x, **k),
    "reduce": lambda x, **k: ct.reduce(x, axis=(0, 2), **k),
    "add": lambda x, **k: ct.add(x, x, **k),
    "batch norm": lambda x, **k: ct.batch_norm_training(x, *parameters(k.get("stream")), **k).y,
}


def parameters(stream: Any) -> list[ct.DeviceArray]:
    return [ct.full((SHAPE[1],), value, stream=stream) for value in (1.5, 0.5)]


def values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "batch norm"])
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


@pytest.mark.parametrize("name", CALLS)
def test_layer_waits_for_the_stream_of_its_operand(name: str) -> None:
    """What one stream makes the next takes, without a word from the caller."""
    first, second, call = own_stream(), own_stream(), CALLS[name]
    expected = call(ct.asarray(values())).numpy()
    for _ in range(20):
        x = ct.asarray(values(), stream=first)
        doubled = ct.add(x, x, stream=first)
        halved = ct.scale(ct.transform(doubled, stream=second), alpha=0.5, stream=second)
        compare(call(halved, stream=first), expected)


def test_dropout_gives_one_sequence_on_several_streams() -> None:
    """One state is one thread's at a time; its calls are in order on whatever stream."""
    x, state, twin = ct.full((100, 100), 1.0), ct.DropoutState(0.5, seed=1), ct.DropoutState(0.5, seed=1)
    streams = [own_stream() for _ in range(3)]
    expected = [ct.dropout(x, twin).y.numpy() for _ in range(6)]
    for i, wanted in enumerate(expected):
        got = ct.dropout(x, state, stream=streams[i % 3]).y
        np.testing.assert_array_equal(got.numpy(), wanted)


@pytest.mark.parametrize("where", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layers_equal_reference_when_an_element_is_not_finite(where: float, layout: str) -> None:
    x = values()
    x[1, 2, 3, 4] = where
    placed = ct.asarray(x, layout=layout)
    compare(ct.softmax(placed), ct.reference.softmax(x))
    for propagate in (True, False):
        compare(
            ct.pool(placed, window=2, propagate_nan=propagate),
            ct.reference.pool(x, window=2, propagate_nan=propagate),
        )
    for axes in (None, (0, 2, 3), 1):
        for op in ("add", "max", "min", "amax", "norm1"):
            compare(
                ct.reduce(placed, op=op, axis=axes), ct.reference.reduce(x, op=op, axis=axes), tolerance=1e-5
            )


def test_pool_backward_of_averages_ignores_y() -> None:
    x, y, dy = ct.asarray(values()), ct.full((4, 8, 5, 6), np.nan), ct.full((4, 8, 5, 6), 1.0)
    for mode in ("average_inc_pad", "average_exc_pad", "sum"):
        dx = ct.pool_backward(dy, x, y, window=2, mode=mode)
        assert set(np.unique(dx.numpy())) == {1.0 if mode == "sum" else 0.25}
