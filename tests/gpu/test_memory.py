"""A small pool of device memory that runs out at any allocation: the errors, and the calls after them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.cli.selftest import OK, attempt
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.cuda import memory

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

    def allocate(self, nbytes: int, stream: Any, what: str = "an array") -> Any:
        self.taken += 1
        held, size = [], LIMIT if self.taken == self.fail_at else 0
        while size >= 512:  # until no memory is left
            try:
                held.append(self._allocate(size, stream))
            except ct.AllocationError:
                size //= 2
        try:
            return self._allocate(nbytes, stream, what)
        finally:
            held.clear()


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
    before = int(pool.resource.attributes.used_mem_current)
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
        assert int(pool.resource.attributes.used_mem_current) == before
    assert raised  # at least at the result
