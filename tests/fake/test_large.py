"""Tensors with more elements than cuDNN takes, computed in pieces, on fakes with a smaller limit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from tests.layers import several

from .cudnn import FakeCudnn
from .host import Host

LIMIT = 300


@pytest.fixture(autouse=True)
def _limit(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cuDNN and the package take fewer elements."""
    fake.max_elements = LIMIT
    fake.engines = True
    for name, module in list(sys.modules.items()):
        if name.startswith("cudnn_ct.") and hasattr(module, "INT_MAX"):
            monkeypatch.setattr(module, "INT_MAX", LIMIT)


def image(seed: int = 0, shape: tuple[int, ...] = (7, 4, 6, 5)) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


ROWS = (53, 40)
SCALE = image(3, (40,)) + 5
PER_SAMPLE = image(3, (7, 40)) + 5
CHANNELS = {
    name: image(place, (1, 4, 1, 1)) + 5 for place, name in enumerate(("scale", "bias", "mean", "var"))
}

Arrays = tuple[np.ndarray, ...]
CALLS: dict[str, tuple[str, Arrays, dict[str, Any]]] = {
    "activation": ("activation", (image(),), {}),
    "activation scaled": ("activation", (image(),), {"alpha": 2, "mode": "tanh"}),
    "activation_backward": ("activation_backward", (image(1), image(), image()), {}),
    "add rows": ("add", (image(0, ROWS), image(1, ROWS)), {}),
    "add channels": ("add", (image(), image(1, (1, 4, 1, 1))), {}),
    "add images": ("add", (image(), image(1, (7, 1, 1, 1))), {"alpha": 3}),
    "op_tensor": ("op_tensor", (image(), image(1)), {"op": "max"}),
    "transform": ("transform", (image(),), {"layout": "nhwc"}),
    "cast": ("transform", (image(),), {"dtype": "float16"}),
    "softmax rows": ("softmax", (image(0, ROWS),), {"axis": 1}),
    "softmax columns": ("softmax", (image(0, ROWS),), {"axis": 0}),
    "softmax channels": ("softmax", (image(),), {}),
    "softmax_backward": ("softmax_backward", (image(1, ROWS), image(2, ROWS)), {"axis": 1}),
    "pool": ("pool", (image(),), {"window": 2, "mode": "average"}),
    "pool_backward": (
        "pool_backward",
        (image(1, (7, 4, 3, 2)), image(), image(2, (7, 4, 3, 2))),
        {"window": 2},
    ),
    "lrn": ("lrn", (image(),), {}),
    "reduce": ("reduce", (image(0, ROWS),), {"axis": 1}),
    "reduce kept": ("reduce", (image(),), {"axis": (1, 3), "keepdims": True, "op": "max"}),
    "reduce first": ("reduce", (image(),), {"axis": 0, "alpha": 2}),
    "reduce_with_indices": ("reduce_with_indices", (image(0, ROWS),), {"axis": 1, "op": "max"}),
    "batch_norm_inference": ("batch_norm_inference", (image(), *CHANNELS.values()), {}),
    "instance_norm": ("instance_norm", (image(), image(1, (4,)), image(2, (4,))), {}),
    "layer_norm": ("layer_norm", (image(0, ROWS), SCALE, SCALE), {"training": True}),
    "rms_norm": ("rms_norm", (image(0, (9, 7, 40)), SCALE), {"training": True}),
    "ada_layer_norm": ("ada_layer_norm", (image(0, (7, 9, 40)), PER_SAMPLE, PER_SAMPLE), {"training": True}),
    "ada_layer_norm_backward": (
        "ada_layer_norm_backward",
        (
            *(image(seed, (7, 9, 40)) for seed in (1, 2)),
            PER_SAMPLE,
            *(image(seed, (7, 9, 1)) + 6 for seed in (4, 5)),
        ),
        {},
    ),
    "conv_backward_bias": ("conv_backward_bias", (image(),), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_large_tensors_are_computed_in_pieces(name: str) -> None:
    operation, operands, keywords = CALLS[name]
    results = several(getattr(ct, operation)(*map(ct.asarray, operands), **keywords))
    expected = several(getattr(ct.reference, operation)(*operands, **keywords))
    for found, wanted in zip(results, expected, strict=True):
        if wanted is not None:
            np.testing.assert_allclose(
                found.numpy().astype(float), wanted.astype(float), rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("operation", ["batch_norm_training", "reduce"])
def test_error_names_the_limit_when_a_large_tensor_is_not_split(operation: str) -> None:
    x = ct.asarray(image())
    calls: dict[str, Callable[[], Any]] = {
        "batch_norm_training": lambda: ct.batch_norm_training(x, *[ct.full((1, 4, 1, 1), 1)] * 2),
        "reduce": lambda: ct.reduce(x, op="norm2"),
    }
    with pytest.raises(
        ct.NotSupportedError, match=r"has \d+ elements: cuDNN takes at most 300 \(2\*\*31 - 1\)"
    ):
        calls[operation]()


def test_calls_in_pieces_are_replayed() -> None:
    x, out = ct.asarray(image(0, ROWS)), ct.empty(ROWS)
    for value in range(20):
        x.fill(value)
        ct.softmax(x, axis=1, out=out)
        np.testing.assert_allclose(out.numpy(), 1 / 40, rtol=1e-6)


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_pieces_are_replayed_on_other_memory(host: Host, name: str) -> None:
    operation, operands, keywords = CALLS[name]
    expected, kept = several(getattr(ct.reference, operation)(*operands, **keywords)), []
    with testing.replay_after(1):
        for _ in range(5):
            arrays = [*map(ct.asarray, operands)]
            results = several(getattr(ct, operation)(*arrays, **keywords))
            for found, wanted in zip(results, expected, strict=True):
                if wanted is not None:
                    np.testing.assert_allclose(
                        found.numpy().astype(float), wanted.astype(float), rtol=1e-4, atol=1e-4
                    )
            kept.append((results, [array.fill(0) for array in arrays]))
    assert host.calls.count("cuGraphLaunch") > 0


def test_pieces_at_misaligned_offsets_take_no_kernel_for_aligned_memory(fake: FakeCudnn) -> None:
    y, dy = image(0, (53, 41)), image(1, (53, 41))
    got = ct.softmax_backward(ct.asarray(dy), ct.asarray(y), axis=1)
    np.testing.assert_allclose(got.numpy(), ct.reference.softmax_backward(dy, y, axis=1), rtol=1e-4)
    modes = [args[2] for name, args in fake.calls if name == "cudnnSoftmaxBackward"]
    assert len(modes) == 8  # of 7 rows
    misaligned = [bool(7 * 41 * number % 4) for number in range(8)]
    assert [mode == modes[1] for mode in modes] == misaligned


@pytest.mark.parametrize("key", [np.s_[:, ::-1], np.s_[::-1, 1:]])
def test_large_reversed_operands_are_copied(key: Any) -> None:
    x = ct.asarray(image(0, ROWS))
    np.testing.assert_array_equal(x[key].copy().numpy(), image(0, ROWS)[key])
    np.testing.assert_array_equal(ct.activation(x[key]).numpy(), image(0, ROWS)[key].clip(0))
