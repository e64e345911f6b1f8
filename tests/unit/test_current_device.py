"""The current device before, in and after work on another one, with a driver of two devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cudnn_ct as ct
from cudnn_ct.cuda import device as devices
from cudnn_ct.cuda import driver as cuda_driver
from cudnn_ct.cuda import memory
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.stream import Stream

from .cuda_driver import Driver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver(devices=2)
    monkeypatch.setattr(cuda_driver, "driver", lambda: made)
    cached = (memory._pool, streams.default_stream, devices.device_count)
    for one in cached:
        one.cache_clear()
    yield made
    for one in cached:
        one.cache_clear()


@pytest.mark.parametrize("before", [None, 0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_restore_device_restores_the_current_device(driver: Driver, before: int | None, device: int) -> None:
    driver.current = before
    assert streams.current_device() == (before or 0)
    previous = streams.set_device(device)
    assert driver.current == device
    streams.restore_device(previous)
    assert streams.current_device() == (before or 0)
    # A context on an unused device would take memory there.
    assert driver.current == (device if before is None and device == 0 else before)


@pytest.mark.parametrize("before", [None, 0, 1])
def test_use_restores_the_device_of_an_outer_block(driver: Driver, before: int | None) -> None:
    driver.current = before
    with ct.use(device=1):
        with ct.use(device=0):
            assert driver.current == 0
        assert driver.current == 1
    assert driver.current == before


def test_memory_is_not_freed_when_its_device_is_lost(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.current = 1
    buffer = memory.allocate(100, Stream(driver.new_stream(), 1))

    def lost(device: int) -> None:
        raise ct.ExecutionFailedError("lost")

    monkeypatch.setattr(streams, "set_device", lost)
    del buffer
    assert not driver.freed
