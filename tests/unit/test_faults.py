"""Errors of the driver become the right exception, with a note if a kernel failed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cudnn_ct._config import config
from cudnn_ct.cuda import driver as cuda_driver
from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import launch_log, memory
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.stream import Stream
from cudnn_ct.errors import AllocationError, CudnnError, ExecutionFailedError

from .cuda_driver import Driver

STREAM = Stream(0x70, 0)


class Result(int):
    """A result of the driver with a name."""

    name: str


FUNCTIONS = (
    "cuCtxSetCurrent",
    "cuEventQuery",
    "cuEventRecord",
    "cuMemAllocFromPoolAsync",
    "cuMemGetInfo",
    "cuMemcpyDtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
    "cuMemsetD8Async",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    made.current = 0
    made.streams[STREAM.handle] = False
    monkeypatch.setattr(cuda_driver, "driver", lambda: made)
    monkeypatch.setattr(streams, "set_device", lambda _: None)
    monkeypatch.setattr(memory, "_pool", lambda _: 0)
    return made


@pytest.fixture
def broken(driver: Driver) -> Callable[[str], None]:
    """Return a function that makes every driver call fail with a named error."""

    def put(name: str) -> None:
        result = Result(2 if name.endswith("OUT_OF_MEMORY") else 700)
        result.name = name
        driver.failing = dict.fromkeys(FUNCTIONS, result)

    return put


class Event:
    """An event."""

    handle = 0x30


BYTES = np.zeros(8, np.uint8)
CALLS: dict[str, Callable[[], object]] = {
    "synchronize": lambda: streams.synchronize(STREAM),
    "record": lambda: events.record(STREAM),
    "wait": lambda: events.wait(STREAM, Event()),
    "restore_device": lambda: streams.restore_device(1),
    "is_done": lambda: events.is_done(Event()),
    "allocate": lambda: memory.allocate(8, STREAM),
    "copy_from_host": lambda: memory.copy_from_host(1, BYTES, STREAM),
    "copy_to_host": lambda: memory.copy_to_host(BYTES, 1, STREAM),
    "copy_device": lambda: memory.copy_device(1, 2, 8, STREAM),
    "fill": lambda: memory.fill(1, b"\0", 8, STREAM),
    "memory_info": lambda: memory.memory_info(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_driver_call_reports_a_failed_kernel(broken: Callable[[str], None], name: str) -> None:
    broken("CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(ExecutionFailedError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        CALLS[name]()
    (note,) = caught.value.__notes__
    assert "CUDNN_CT_DEBUG_SYNC=1" in note


@pytest.mark.parametrize("name", [name for name in CALLS if name != "is_done"])
def test_driver_error_has_no_note_when_no_kernel_failed(broken: Callable[[str], None], name: str) -> None:
    broken("CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(CudnnError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        CALLS[name]()
    assert not hasattr(caught.value, "__notes__")


def test_note_lists_launches_when_debug_sync_is_on(
    broken: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_log, "_history", {})
    monkeypatch.setattr(config, "debug_sync", True)
    for n in range(launch_log.MAX_LAUNCHES + 2):
        launch_log.record(f"operation {n}", STREAM)
    broken("CUDA_ERROR_MISALIGNED_ADDRESS")
    with pytest.raises(ExecutionFailedError) as caught:
        streams.synchronize(STREAM)
    (note,) = caught.value.__notes__
    first, *lines = note.splitlines()
    assert first == "launched before on Stream(0x70, device=0), the latest last:"
    assert [line.strip() for line in lines] == [
        f"operation {n}" for n in range(2, launch_log.MAX_LAUNCHES + 2)
    ]


def test_copy_device_waits_when_debug_sync_is_on(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    done, failed = Result(0), Result(700)
    failed.name = "CUDA_ERROR_MISALIGNED_ADDRESS"
    monkeypatch.setattr(driver, "cuMemcpyDtoDAsync", lambda *args: (done,))
    driver.failing["cuStreamSynchronize"] = failed
    memory.copy_device(0x10, 0x20, 8, STREAM)  # without waiting
    monkeypatch.setattr(launch_log, "_history", {})
    monkeypatch.setattr(config, "debug_sync", True)
    with pytest.raises(ExecutionFailedError, match="copying 8 bytes from 0x20 to 0x10 failed on the device"):
        memory.copy_device(0x10, 0x20, 8, STREAM)


def test_allocate_names_size_and_purpose_when_memory_runs_out(
    broken: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken("CUDA_ERROR_OUT_OF_MEMORY")
    monkeypatch.setattr(memory, "memory_info", lambda _: (100, 200))
    with pytest.raises(AllocationError, match=r"device 0: 1,234 bytes wanted for a mask, 100 of 200 free"):
        memory.allocate(1234, STREAM, "a mask")
