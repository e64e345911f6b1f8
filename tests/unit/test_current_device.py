"""Which device is current before, in and after work on another: on a driver of two devices without memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import _cuda, memory
from cudnn_ct import stream as streams
from cudnn_ct.stream import Stream

NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


class Driver:
    """What `stream` and `memory` use of the driver and of cuda.core; ``current`` is None where none is."""

    def __init__(self) -> None:
        self.current: int | None = None
        self.freed: list[int | None] = []

    def cuCtxGetDevice(self) -> tuple[int, int | None]:
        return (NO_CONTEXT, None) if self.current is None else (0, self.current)

    def cuCtxSetCurrent(self, context: int) -> tuple[int]:
        assert context == 0
        self.current = None
        return (0,)

    def Device(self, device: int) -> Any:
        def set_current() -> None:
            self.current = device

        return SimpleNamespace(
            set_current=set_current, memory_resource=SimpleNamespace(allocate=self.allocate)
        )

    def allocate(self, nbytes: int, stream: Any) -> Any:
        return SimpleNamespace(handle=4096, size=nbytes, close=lambda: self.freed.append(self.current))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    core = SimpleNamespace(Device=made.Device, Stream=SimpleNamespace(from_handle=lambda handle: handle))
    monkeypatch.setattr(_cuda, "driver", lambda: made)
    monkeypatch.setattr(_cuda, "core", lambda: core)
    monkeypatch.setattr(streams, "device_count", lambda: 2)
    for cached in (memory._pool, streams.default_stream):
        cached.cache_clear()
    yield made
    for cached in (memory._pool, streams.default_stream):
        cached.cache_clear()


@pytest.mark.parametrize("before", [None, 0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_what_was_current_is_current_again(driver: Driver, before: int | None, device: int) -> None:
    driver.current = before
    assert streams.current_device() == (before or 0)
    previous = streams.activate(device)
    assert driver.current == device
    streams.restore(previous)
    assert streams.current_device() == (before or 0)
    # A context on a device that nobody asked for takes memory of it.
    assert driver.current == (device if before is None and device == 0 else before)


@pytest.mark.parametrize("before", [None, 0, 1])
def test_blocks_within_blocks(driver: Driver, before: int | None) -> None:
    driver.current = before
    with ct.use(device=1):
        with ct.use(device=0):
            assert driver.current == 0
        assert driver.current == 1
    assert driver.current == before


@pytest.mark.parametrize("before", [None, 0, 1])
def test_memory_goes_back_while_its_device_is_current(driver: Driver, before: int | None) -> None:
    buffer = memory.allocate(100, Stream(0, 1))
    assert (buffer.handle, buffer.size) == (4096, 100)
    driver.current = before
    del buffer
    assert driver.freed == [1]
    assert driver.current == before


def test_memory_of_a_parent_is_not_a_childs_to_give_back(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = memory.allocate(100, Stream(0, 1))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del buffer
    assert driver.freed == []


def test_memory_of_a_device_that_is_lost_is_let_go(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = memory.allocate(100, Stream(0, 1))

    def lost(device: int) -> None:
        raise ct.ExecutionFailedError("lost")

    monkeypatch.setattr(streams, "activate", lost)
    del buffer
    assert driver.freed == []
