"""Driver calls of the package in a process that is shared with another library: contexts, captures, forks."""

from __future__ import annotations

import gc
import os
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.cuda import driver as cuda_driver
from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import interop, lifetime, memory
from cudnn_ct.cuda import stream as streams

from .cuda_driver import GLOBAL, RELAXED, CUstreamCaptureMode, Driver, driver_installed, put

LARGE = 2**19  # elements: more than the allocator keeps in blocks


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A driver with one device, or as many as the parameter says."""
    made = Driver(devices=getattr(request, "param", 1))
    with driver_installed(made) as stack:
        put(stack, lifetime, "_in_flight", deque())
        put(stack, memory, "_dropped", deque())
        put(stack, memory, "_idle", {})
        put(stack, memory, "_held", Counter())
        testing.reset()
        yield made
        gc.collect()
        testing.reset()


def test_error_of_an_import_has_one_traceback() -> None:
    message = r"importing cuda\.core failed: not found"
    with pytest.raises(ct.NotInitializedError, match=message) as caught, cuda_driver._importing("cuda.core"):
        raise ImportError("not found")
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


two_devices = pytest.mark.parametrize("driver", [2], indirect=True)


class Owned:
    """A stream of another library: an object that keeps the stream alive."""

    def __init__(self, driver: Driver, *, blocking: bool = False) -> None:
        self.handle, self.driver = driver.new_stream(blocking=blocking), driver

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def __del__(self) -> None:
        self.driver.destroyed.add(self.handle)


class Torch(Owned):
    """A stream of PyTorch, which is not destroyed while the object exists."""

    __module__ = "torch.cuda"


# --- lifetimes ---------------------------------------------------------------------------------------------


def test_memory_in_a_cycle_is_freed_after_its_stream_waits_for_other_streams(driver: Driver) -> None:
    home = Owned(driver)
    x = ct.full(LARGE, 2.5, stream=home)
    x.copy(stream=Owned(driver))
    driver.calls.clear()
    holder = [x]
    holder.append(holder)
    del x, holder
    gc.collect()
    names = [name for name in driver.calls if name in ("cuStreamWaitEvent", "cuMemFreeAsync")]
    assert names[:2] == ["cuStreamWaitEvent", "cuMemFreeAsync"], names


@pytest.mark.parametrize("size", [LARGE, 8])
def test_memory_that_a_finalizer_of_a_cycle_keeps_stays_alive(driver: Driver, size: int) -> None:
    kept: list[Any] = []

    class Holder:
        def __init__(self, array: Any) -> None:
            self.array, self.itself = array, self

        def __del__(self) -> None:
            kept.append(self.array)

    for _ in range(20):
        Holder(ct.full(size, 2.5))
    gc.collect()
    others = [ct.full(size, 7) for _ in range(20)]
    assert len(kept) == len(others) == 20
    assert all((array.numpy() == 2.5).all() for array in kept)


def test_memory_is_freed_after_a_use_by_a_finalizer_of_its_cycle(driver: Driver) -> None:
    home, first, last = (streams.as_stream(driver.new_stream(), 0) for _ in range(3))

    class Holder:
        def __del__(self) -> None:
            self.array.record_use(last)

    x = ct.full(LARGE, 1.0, stream=home)
    x.record_use(first)
    holder = Holder()
    holder.array, holder.itself = x, holder  # type: ignore[attr-defined]
    del x, holder
    driver.log.clear()
    gc.collect()
    (recorded,) = [entry[2] for entry in driver.log if entry[:2] == ("record", last.handle)]
    names = [entry[0] for entry in driver.log if entry[0] == "free" or recorded in entry]
    assert names == ["record", "wait", "free"]


def test_idle_memory_is_not_freed_while_an_allocation_takes_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, finalizers = Torch(driver), []

    class Idle(dict[Any, Any]):
        def get(self, *arguments: Any) -> Any:
            found = super().get(*arguments)
            if finalizers:
                finalizers.pop()()
            return found

    monkeypatch.setattr(memory, "_idle", Idle())
    ct.empty(LARGE, stream=side)
    finalizers.append(lambda: ct.empty(2 * LARGE, stream=side))
    assert ct.empty(LARGE, stream=side).pointer in driver.live


def test_use_by_another_thread_is_not_replaced_by_an_earlier_one(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, side, made = ct.full(3, 1.0), streams.as_stream(driver.new_stream(), 0), []
    record, others = events.record, [x.record_use]

    def interrupted(stream: Any) -> Any:
        made.append(event := record(stream))
        if others:
            others.pop()(stream)
        return event

    monkeypatch.setattr(events, "record", interrupted)
    x.record_use(side)
    assert x._uses is not None
    assert x._uses.events == {side: made[-1]}


# --- contexts ----------------------------------------------------------------------------------------------


def test_calls_use_the_current_context_of_another_library_and_free_all_memory(driver: Driver) -> None:
    driver.current = 0
    for stream in (Owned(driver), None):
        x = ct.full(LARGE, 2.5, stream=stream)
        assert (x.copy().copy(stream=Owned(driver)).numpy() == 2.5).all()
    ct.empty_cache()
    assert "cuDevicePrimaryCtxRetain" not in driver.calls
    del x
    ct.empty_cache()
    assert not driver.live


@pytest.mark.parametrize("before", [None, 0, 1])
@two_devices
def test_current_device_is_restored_after_work_on_another_one(driver: Driver, before: int | None) -> None:
    driver.current = before
    assert streams.current_device() == (before or 0)
    for device in (0, 1):
        driver.current = before
        previous = streams.set_device(device)
        assert driver.current == device
        streams.restore_device(previous)
        # A context on an unused device would take memory there.
        assert driver.current == (device if before is None and device == 0 else before)
    driver.current = before
    with ct.use(device=1):
        with ct.use(device=0):
            assert driver.current == 0
        assert driver.current == 1
    assert driver.current == before


def test_memory_is_not_freed_when_its_device_is_lost(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ct.empty(LARGE, stream=driver.new_stream())

    def lost(device: int) -> None:
        raise ct.ExecutionFailedError("lost")

    monkeypatch.setattr(streams, "set_device", lost)
    del x
    assert not driver.freed


@pytest.mark.parametrize("current", [None, 0, 1])
@two_devices
def test_memory_is_freed_while_its_device_is_current(driver: Driver, current: int | None) -> None:
    with ct.use(device=1):
        stream = Owned(driver)
        x = ct.empty(LARGE, stream=stream)
        pointer = x.pointer
    driver.current = current
    del x
    assert driver.freed == [(pointer, stream.handle, 1)], driver.freed
    assert driver.current == current


@two_devices
def test_stream_waits_for_another_while_their_device_is_current(driver: Driver) -> None:
    before, after = (streams.as_stream(Owned(driver), 1) for _ in range(2))
    driver.current = 0
    events.wait_stream(before, after)
    (_, *recorded), (_, *waited) = driver.log
    assert (recorded[:-1], waited[:-1]) == ([before.handle], [after.handle])
    assert (driver.switches, driver.current) == ([1, 0, 1, 0], 0)


@pytest.mark.parametrize("pinned", [False, True])
def test_copy_from_pinned_memory_is_waited_for(driver: Driver, pinned: bool) -> None:
    """The driver reads other memory before the call returns, and pinned memory later."""
    driver.pinned = pinned
    stream = Owned(driver)
    ct.empty(8, stream=stream)
    driver.calls.clear()
    ct.asarray([1.0, 2.0], "float32", stream=stream)
    assert ("cuStreamSynchronize" in driver.calls) == pinned


# --- captures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", CUstreamCaptureMode)
def test_array_dropped_during_a_capture_leaves_it_valid_and_is_freed(
    driver: Driver, mode: CUstreamCaptureMode
) -> None:
    side, capturing, other = Owned(driver), Owned(driver), Owned(driver)
    arrays = [ct.full(LARGE, 1.0, stream=stream) for stream in (None, side, capturing)]
    used = [array.copy(stream=other) for array in arrays]
    capture = driver.capturing.add(capturing.handle, mode)
    del arrays, used
    gc.collect()
    assert capture.valid
    left = [memory.stream for memory in driver.live.values()]
    assert left == [1, capturing.handle]  # the idle memory, and what the captured stream frees
    driver.capturing.pop(capturing.handle)
    ct.empty_cache()
    assert len(driver.freed) == 6


def test_memory_dropped_on_a_stream_that_lasts_is_used_again_without_the_driver(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Torch(driver)
    x = ct.empty(LARGE, stream=side)
    pointer, calls = x.pointer, len(driver.calls)
    for _ in range(10):
        del x
        x = ct.empty(LARGE, stream=side)
        assert x.pointer == pointer
    assert set(driver.calls[calls:]) == {"cuStreamIsCapturing"}
    del x
    other = ct.empty(2**20, stream=side)  # of another size
    x = ct.empty(LARGE, stream=side)
    assert x.pointer == pointer
    monkeypatch.setattr(memory, "share_of", lambda *_: 4 * LARGE - 1)
    del x
    ct.empty(3 * LARGE, stream=side)
    assert [freed[0] for freed in driver.freed] == [pointer]
    del other
    ct.empty_cache()
    assert not driver.live
    assert not memory._held[0]


def test_idle_memory_is_freed_where_an_array_needs_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Torch(driver)
    driver.limit = 2**23
    ct.empty((3, LARGE), stream=side)  # 6 of 8 MiB, idle
    assert not driver.freed
    monkeypatch.setattr(memory, "share_of", lambda *_: driver.limit)
    assert ct.empty((2, LARGE), stream=side).pointer in driver.live
    assert len(driver.freed) == 1


def test_memory_dropped_on_a_captured_stream_stays_until_the_capture_ends(driver: Driver) -> None:
    side = Torch(driver)
    x = ct.empty(LARGE, stream=side)
    capture = driver.capturing.add(side.handle)
    del x
    ct.full(2**21, 1.0)
    ct.empty_cache()
    assert capture.valid
    assert [memory.stream for memory in driver.live.values()] == [side.handle]
    driver.capturing.pop(side.handle)
    ct.empty_cache()
    assert not driver.live


def test_idle_memory_is_freed_before_the_pool_is_trimmed_or_its_size_read(driver: Driver) -> None:
    side = Torch(driver)
    ct.empty(LARGE, stream=side)
    driver.log.clear()
    ct.empty_cache()
    assert [entry[0] for entry in driver.log] == ["free", "synchronize", "trim"]
    ct.empty(LARGE, stream=side)
    memory.memory_info(0)
    assert not driver.live


def test_copy_to_the_host_is_waited_for(driver: Driver) -> None:
    x = ct.full(3, 1.0, stream=Torch(driver))
    driver.log.clear()
    x.numpy()
    assert [entry[0] for entry in driver.log][-1] == "synchronize"


def test_stream_that_is_closed_after_its_arrays_is_not_used_again(driver: Driver) -> None:
    address = driver.new_stream()
    x = ct.full(LARGE, 1.0, stream=address)
    ct.synchronize(address)
    del x
    driver.destroyed.add(address)
    ct.full(2**21, 1.0).numpy()
    ct.empty_cache()
    assert not driver.live


def test_array_dropped_while_a_blocking_graphs_is_freed_later(driver: Driver) -> None:
    capturing = Owned(driver, blocking=True)
    x = ct.full(LARGE, 1.0)
    x.copy(stream=Owned(driver))
    capture = driver.capturing.add(capturing.handle, RELAXED)
    del x
    gc.collect()
    assert capture.valid
    driver.capturing.pop(capturing.handle)
    ct.synchronize()
    assert not driver.live


@pytest.mark.parametrize("taken_by", ["default", "capturing", "side", "address"])
def test_array_that_dlpack_lent_is_dropped_during_a_capture(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, taken_by: str
) -> None:
    monkeypatch.setattr(interop, "export_dlpack", lambda owner, *rest: owner)
    side, capturing, home = Torch(driver), Torch(driver), Owned(driver)
    for stream in (side, capturing):
        ct.empty(1, stream=stream)  # a stream object that the package has seen
    x = ct.full(LARGE, 1.0, stream=capturing if taken_by == "address" else home)
    address = driver.new_stream()
    takers = {"default": 1, "capturing": capturing.handle, "side": side.handle, "address": address}
    taken = x.__dlpack__(stream=takers[taken_by])
    del x
    if taken_by == "address":
        driver.destroyed.add(address)
    capture = driver.capturing.add(capturing.handle)
    del taken
    gc.collect()
    assert capture.valid
    kept = [memory for memory in driver.live.values() if memory.stream == home.handle]
    assert len(kept) == (taken_by == "capturing")  # until it can wait for the work of the taker
    driver.capturing.pop(capturing.handle)
    ct.synchronize()
    ct.empty_cache()
    assert not driver.live


@pytest.mark.parametrize("place", ["default", "side"])
def test_calls_leave_a_global_capture_of_another_thread_valid(driver: Driver, place: str) -> None:
    stream = Owned(driver) if place == "side" else None
    capture = driver.capturing.add(Owned(driver).handle)
    capture.thread = 0
    x = ct.full(LARGE, 2.0, stream=stream)
    y = x.copy(stream=Owned(driver))
    for shape in (LARGE, 3):
        z = ct.full(shape, 0.1, "float64", stream=stream).copy(stream=Owned(driver))
    assert (y.numpy() == 2).all()
    x.fill(1.0)
    ct.synchronize(stream)
    del x, y, z
    gc.collect()
    ct.empty_cache()
    assert capture.valid
    assert driver.mode == GLOBAL


def test_allocation_during_a_capture_of_its_stream_says_to_pass_out(driver: Driver) -> None:
    stream = Owned(driver)
    capture = driver.capturing.add(stream.handle)
    with pytest.raises(ct.NotInitializedError, match="pass out="):
        ct.empty(3, stream=stream)
    assert capture.valid


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_fill_with_eight_bytes_is_replayed_without_host_memory(driver: Driver, size: int) -> None:
    stream = Owned(driver)
    x = ct.empty(size, "float64", stream=stream)
    capture = driver.capturing.add(stream.handle)
    x.fill(0.1, stream=stream)
    driver.capturing.pop(stream.handle)
    for _ in range(2):
        x.fill(0, stream=stream)
        capture.launch()
        assert (x.numpy() == 0.1).all(), x.numpy()
    assert "cuMemcpyHtoDAsync" not in driver.calls


def test_fill_writes_eight_byte_integers(driver: Driver) -> None:
    for value in (0, -1, 2**40 + 3, 2**33 + 2):
        assert (ct.full((3, 5), value, "int64").numpy() == value).all()
    assert "cuMemcpyHtoDAsync" not in driver.calls


# --- forks -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork")  # threads may hold locks
@pytest.mark.parametrize("driver", [1, 2], indirect=True)
def test_memory_dropped_in_a_forked_child_calls_no_driver(driver: Driver) -> None:
    side = Owned(driver)
    arrays = [ct.full(LARGE, 1.0), ct.full(LARGE, 1.0, stream=side), ct.full(3, 1.0)]
    used = [array.copy(stream=Owned(driver)) for array in arrays]
    before = len(driver.calls)
    child = os.fork()
    if not child:
        del arrays, used
        gc.collect()
        os._exit(len(driver.calls) - before)
    assert os.waitpid(child, 0)[1] == 0
    assert len(driver.live) == 6
