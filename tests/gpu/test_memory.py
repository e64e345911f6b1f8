"""A small pool of device memory that runs out at any allocation: the errors, and the calls after them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.cli.selftest_report import OK
from cudnn_ct.cli.selftest_run import attempt
from cudnn_ct.cuda import memory
from cudnn_ct.cuda import stream as streams

LIMIT = 64 * 2**20
_pools: list[Any] = []  # the driver frees a pool with its object, and other tests may have its memory


class SmallPool:
    """A pool of the driver with a limit, which replaces the device's; full at the allocation ``fail_at``."""

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
        """Allocate and return all memory that is left."""
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
    """Free all cached memory: blocks, workspaces and plans."""
    testing.reset()
    gc.collect()
    ct.empty_cache()


# Rows of the selftest by their operation and variant.
CALLS = (
    ("conv", ""),
    ("conv_backward_filter", ""),
    ("conv_bias_activation", "residual, relu"),
    ("pool", "max"),
    ("batch_norm_training", "spatial"),
    ("reduce", "max"),
    ("ctc_loss", ""),
    ("dropout", "and gradient"),
    ("RNN", "gru, unidirectional"),
)


@pytest.mark.parametrize(("operation", "variant"), CALLS)
def test_call_raises_or_falls_back_when_memory_runs_out_at_any_allocation(
    pool: SmallPool, operation: str, variant: str
) -> None:
    wanted = (operation, variant, "float32", "nchw")
    (case,) = (case for case in cases() if case[:4] == wanted)

    def call() -> str:
        outcome = attempt(case)
        return "" if outcome.verdict == OK else outcome.detail

    assert call() == ""
    empty()
    before = int(pool.attributes.used_mem_current)
    pool.taken = 0
    call()
    allocations = pool.taken
    raised = 0
    for k in range(1, allocations + 1):
        empty()
        pool.taken, pool.fail_at = 0, k
        if detail := call():
            assert "bytes wanted for " in detail
            raised += 1
        pool.fail_at = 0
        assert call() == ""
        empty()
        assert int(pool.attributes.used_mem_current) == before
    assert raised  # at least at the result


X = np.random.default_rng(0).integers(-2, 3, (4, 8, 12, 12)).astype(np.float32)
W = np.random.default_rng(1).integers(-1, 2, (8, 8, 3, 3)).astype(np.float32)


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
