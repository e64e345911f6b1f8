"""A small pool of device memory that runs out wherever a call takes some: what is said, what works after."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.cuda import memory
from cudnn_ct.cuda import stream as streams
from cudnn_ct.shapes.rnn_params import rnn_parameters

LIMIT = 64 * 2**20
_pools: list[Any] = []  # a pool ends with its object, and memory of it may still be kept for other tests


class SmallPool:
    """A pool of the driver with a limit, in place of the device's own; full at the allocation ``fail_at``."""

    def __init__(self) -> None:
        from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

        self.resource = DeviceMemoryResource(Device(0), DeviceMemoryResourceOptions(max_size=LIMIT))
        _pools.append(self.resource)
        self.taken = 0
        self.fail_at = 0
        self._allocate = memory.allocate

    @property
    def attributes(self) -> Any:
        return self.resource.attributes

    def allocate(self, nbytes: int, stream: Any, what: str = "an array") -> Any:
        self.taken += 1
        if self.taken != self.fail_at:
            return self._allocate(nbytes, stream, what)
        full = self.filled(stream)
        try:
            return self._allocate(nbytes, stream, what)
        finally:
            del full

    def filled(self, stream: Any) -> list[Any]:
        """All memory that is left, to be held."""
        held, size = [], LIMIT
        while size >= 512:
            try:
                held.append(self._allocate(size, stream))
            except ct.AllocationError:
                size //= 2
        return held


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallPool]:
    empty()
    small = SmallPool()
    monkeypatch.setattr(memory, "_pool", lambda device: small.resource.handle)
    monkeypatch.setattr(memory, "allocate", small.allocate)
    yield small
    empty()


def empty() -> None:
    """Give back all that is kept: blocks, workspaces, plans with memory of their own."""
    testing.reset()
    gc.collect()
    ct.empty_cache()


RNG = np.random.default_rng(0)
X = RNG.integers(-2, 3, (4, 8, 12, 12)).astype(np.float32)
W = RNG.integers(-1, 2, (8, 8, 3, 3)).astype(np.float32)
ONES = np.ones(8, np.float32)
LOGITS, LABELS = RNG.standard_normal((9, 3, 5)).astype(np.float32), [1, 2, 2, 4, 3, 1, 4]


def network() -> np.ndarray:
    net = ct.RNN("gru", 4, 8)
    w = net.pack_params([np.full(row.shape, 0.1, np.float32) for row in rnn_parameters(net.spec)])
    done = net.forward(ct.asarray(np.ones((5, 3, 4), np.float32)), w, training=True)
    return net.backward_data(ct.asarray(np.ones((5, 3, 8), np.float32)), done.reserve).dx.numpy()


def dropout() -> np.ndarray:
    x = ct.asarray(X)
    y, mask = ct.dropout(x, ct.DropoutState(0.5, seed=1))
    return ct.dropout_backward(y, mask, mask.state).numpy()


CALLS: dict[str, Callable[[], np.ndarray]] = {
    "conv": lambda: ct.conv(ct.asarray(X), ct.asarray(W), padding=1).numpy(),
    "conv_backward_filter": lambda: ct.conv_backward_filter(
        ct.asarray(X), ct.asarray(X), W.shape, padding=1, algo="deterministic"
    ).numpy(),
    "scaled conv": lambda: ct.conv(ct.asarray(X), ct.asarray(W), padding=1, alpha=2.0).numpy(),
    "pool on a copy": lambda: ct.pool(ct.asarray(X), window=2, padding=((0, 1), (1, 0))).numpy(),
    "batch_norm_training": lambda: ct.batch_norm_training(
        ct.asarray(X), ct.asarray(ONES), ct.asarray(ONES)
    ).y.numpy(),
    "reduce": lambda: ct.reduce(ct.asarray(X), op="max", axis=(2, 3)).numpy(),
    "ctc_loss": lambda: ct.ctc_loss(ct.asarray(LOGITS), LABELS, [3, 1, 3], [9, 6, 7])[0].numpy(),
    "dropout": dropout,
    "RNN": network,
}


@pytest.mark.parametrize("name", CALLS)
def test_call_raises_or_falls_back_when_memory_runs_out_at_any_allocation(pool: SmallPool, name: str) -> None:
    call = CALLS[name]
    expected = call()
    empty()
    before = int(pool.attributes.used_mem_current)
    pool.taken = 0
    call()
    points = pool.taken
    assert points
    raised = 0
    for k in range(1, points + 1):
        empty()
        pool.taken, pool.fail_at = 0, k
        try:
            with warnings.catch_warnings():  # of an algorithm that did with less
                warnings.simplefilter("ignore", ct.CudnnWarning)
                got = call()
        except ct.AllocationError as error:
            assert isinstance(error, MemoryError)
            assert "bytes wanted for " in str(error)
            raised += 1
            del error
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)
        pool.fail_at = 0
        np.testing.assert_allclose(call(), expected, rtol=1e-3, atol=1e-3)
        empty()
        assert int(pool.attributes.used_mem_current) == before
    assert raised  # at the result, if nowhere else


def test_conv_takes_an_algorithm_with_less_workspace_when_memory_is_short(pool: SmallPool) -> None:
    x, w = ct.asarray(X), ct.asarray(W)
    asked: dict[str, Any] = {"padding": 1, "precision": "float32", "algo": "fft_tiling"}
    plan = ct.conv_plan(x, w, **asked)
    assert plan.workspace > 512, "this algorithm shows nothing here"
    out = ct.empty(plan.problem.y.shape)
    empty()
    full = pool.filled(streams.default_stream(0))
    with pytest.warns(ct.CudnnWarning, match=r"bytes wanted for a workspace.* ran instead"):
        ct.conv(x, w, out=out, **asked)
    np.testing.assert_allclose(out.numpy(), ct.reference.conv(X, W, padding=1), atol=1e-3)
    del full
    gc.collect()
    ct.synchronize()
    again = ct.conv_plan(x, w, **asked)
    assert again.candidate.algorithm == plan.candidate.algorithm
    np.testing.assert_allclose(again(x, w).numpy(), out.numpy(), atol=1e-3)


def test_allocation_error_has_the_size_when_an_array_is_too_large(pool: SmallPool) -> None:
    with pytest.raises(
        ct.AllocationError, match=rf"{2 * LIMIT:,} bytes wanted for an array, [\d,]+ of [\d,]+ free"
    ):
        ct.empty((2, LIMIT), "int8")
    assert ct.zeros((4, 4)).numpy().sum() == 0
