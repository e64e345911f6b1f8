"""Errors of the driver become the right exception, with a note if a kernel failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cudnn_ct._config import config
from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import launch_log, memory
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.stream import Stream
from cudnn_ct.errors import AllocationError, CudnnError, ExecutionFailedError

from .cuda_driver import CUresult, Driver, driver_installed

STREAM = Stream(1, 0)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    made.current = 0
    monkeypatch.setattr(streams, "set_device", lambda _: None)
    monkeypatch.setattr(memory, "_pool", cache(lambda _: 0))
    with driver_installed(made):
        yield made


EVENT: Any = SimpleNamespace(handle=0x30)
BYTES = np.zeros(8, np.uint8)
CALLS: dict[str, Callable[[], object]] = {
    "synchronize": lambda: events.synchronize(STREAM),
    "record": lambda: events.record(STREAM),
    "wait": lambda: events.wait(STREAM, EVENT),
    "restore_device": lambda: streams.restore_device(1),
    "is_done": lambda: events.is_done(EVENT),
    "allocate": lambda: memory.allocate(8, STREAM),
    "copy_from_host": lambda: memory.copy_from_host(1, BYTES, STREAM),
    "copy_to_host": lambda: memory.copy_to_host(BYTES, 1, STREAM),
    "copy_device": lambda: memory.copy_device(1, 2, 8, STREAM),
    "fill": lambda: memory.fill(1, b"\0", 8, STREAM),
    "memory_info": lambda: memory.memory_info(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_driver_error_has_a_note_when_a_kernel_failed(driver: Driver, name: str) -> None:
    driver.fail_always(CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
    with pytest.raises(ExecutionFailedError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        CALLS[name]()
    (note,) = caught.value.__notes__
    assert "CUDNN_CT_DEBUG_SYNC=1" in note
    if name == "is_done":
        return
    driver.fail_always(CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(CudnnError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        CALLS[name]()
    assert not hasattr(caught.value, "__notes__")


def test_copy_device_waits_when_debug_sync_is_on(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuMemcpyDtoDAsync", lambda *args: (0,))
    driver.failing["cuStreamSynchronize"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    memory.copy_device(0x10, 0x20, 8, STREAM)  # without waiting
    launch_log._history.clear()
    monkeypatch.setattr(config, "debug_sync", True)
    with pytest.raises(ExecutionFailedError, match="copying 8 bytes from 0x20 to 0x10 failed on the device"):
        memory.copy_device(0x10, 0x20, 8, STREAM)


def test_allocate_names_size_and_purpose_when_memory_runs_out(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.fail_always(CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    monkeypatch.setattr(memory, "memory_info", lambda _: (100, 200))
    with pytest.raises(AllocationError, match=r"device 0: 1,234 bytes wanted for a mask, 100 of 200 free"):
        memory.allocate(1234, STREAM, "a mask")
