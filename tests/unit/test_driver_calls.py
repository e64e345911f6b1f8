"""Driver calls of the package in a process that is shared with another library: contexts, captures, forks.

Each test runs in a process of its own, on `tests.unit.cuda_driver`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import interop
from cudnn_ct.cuda import stream as streams

from .cuda_driver import GLOBAL, RELAXED, CUstreamCaptureMode, Driver, install

LARGE = 2**19  # elements: more than the allocator keeps in blocks

# Forks from a process that has imported this module, because the process of pytest may have used CUDA.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["ml_dtypes", __name__])

PATHS = Path(ct.__file__).parents[1], Path(__file__).parents[2]

driver: Driver  # in the processes of the tests
TESTS: dict[str, Callable[..., None]] = {}


class Owned:
    """A stream of another library: an object that keeps the stream alive."""

    def __init__(self, *, blocking: bool = False) -> None:
        self.handle = driver.new_stream(blocking=blocking)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def __del__(self) -> None:
        driver.destroy(self.handle)


class Torch(Owned):
    """A stream of PyTorch, which is not destroyed while the object exists."""

    __module__ = "torch.cuda"


def in_child(function: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a new process. Its argument ``devices`` is the number of devices of the driver."""
    TESTS[function.__name__] = function

    @wraps(function)
    def test(**arguments: Any) -> None:
        reading, writing = FORKSERVER.Pipe(duplex=False)
        named = os.environ.get("PYTEST_CURRENT_TEST", "")  # tells what runs there, as in any child of a test
        process = FORKSERVER.Process(target=run_here, args=(writing, named, function.__name__, arguments))
        process.start()
        writing.close()
        with open(reading.fileno(), closefd=False) as pipe:
            printed = pipe.read()
        process.join()
        assert (process.exitcode, printed) == (0, ""), printed

    return test


def run_here(stderr: Connection, test: str, name: str, arguments: dict[str, Any]) -> None:
    global driver
    os.environ["PYTEST_CURRENT_TEST"] = test
    os.dup2(stderr.fileno(), 2)
    driver = install(Driver(devices=arguments.get("devices", 1)))
    TESTS[name](**arguments)


# --- lifetimes ---------------------------------------------------------------------------------------------


@in_child
def test_memory_in_a_cycle_is_freed_after_its_stream_waits_for_other_streams() -> None:
    home = Owned()
    x = ct.full(LARGE, 2.5, stream=home)
    x.copy(stream=Owned())
    driver.calls.clear()
    holder = [x]
    holder.append(holder)
    del x, holder
    gc.collect()
    names = [name for name in driver.names() if name in ("cuStreamWaitEvent", "cuMemFreeAsync")]
    assert names[:2] == ["cuStreamWaitEvent", "cuMemFreeAsync"], names


@pytest.mark.parametrize("size", [LARGE, 8])
@in_child
def test_memory_that_a_finalizer_of_a_cycle_keeps_stays_alive(size: int) -> None:
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


# --- contexts ----------------------------------------------------------------------------------------------


@in_child
def test_stream_of_another_library_works_without_cuda_core() -> None:
    driver.current = 0  # another library has made its context current
    for stream in (Owned(), None):
        x = ct.full(LARGE, 2.5, stream=stream)
        y = x.copy()
        assert (y.copy(stream=Owned()).numpy() == 2.5).all()
    with ct.use(stream=Owned()):
        assert (ct.zeros(LARGE).fill(7).numpy() == 7).all()
        ct.synchronize()
    ct.empty_cache()
    assert "cuDevicePrimaryCtxRetain" not in driver.names()
    del x, y
    ct.empty_cache()
    assert not driver.memory


@in_child
def test_thread_without_a_context_gets_the_primary_one() -> None:
    x = ct.full(LARGE, 2.5)
    assert driver.current == 0
    seen = []

    def work() -> None:
        seen.append(x.copy().numpy()[0])
        seen.append(driver.current)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [2.5, 0], seen


@pytest.mark.parametrize("current", [None, 0, 1])
@pytest.mark.parametrize("devices", [2])
@in_child
def test_memory_is_freed_while_its_device_is_current(current: int | None, devices: int) -> None:
    with ct.use(device=1):
        stream = Owned()
        x = ct.empty(LARGE, stream=stream)
        pointer = x.pointer
    driver.current = current
    del x
    assert driver.freed == [(pointer, stream.handle, 1)], driver.freed
    assert driver.current == current


@pytest.mark.parametrize("devices", [2])
@in_child
def test_stream_waits_for_another_while_their_device_is_current(devices: int) -> None:
    with ct.use(device=1):
        before, after = streams.as_stream(Owned(), 1), streams.as_stream(Owned(), 1)
        ct.synchronize()
    driver.current = 0
    driver.calls.clear()
    events.wait_stream(before, after)
    ordering = ("cuEventRecord", "cuStreamWaitEvent")
    assert [name for name in driver.names() if name in ordering] == list(ordering)
    assert driver.current == 0


@pytest.mark.parametrize("pinned", [False, True])
@in_child
def test_copy_from_pinned_memory_is_waited_for(pinned: bool) -> None:
    """The driver reads other memory before the call returns, and pinned memory later."""
    status = 0 if pinned else 1  # the driver knows no other host memory
    driver.cuPointerGetAttribute = lambda *_: (status, 1)  # type: ignore[attr-defined]
    stream = Owned()
    ct.empty(8, stream=stream)
    driver.calls.clear()
    ct.asarray([1.0, 2.0], "float32", stream=stream)
    assert ("cuStreamSynchronize" in driver.names()) == pinned


@in_child
def test_memory_is_freed_in_a_thread_that_has_no_context() -> None:
    held = [ct.empty(LARGE, stream=Owned())]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert len(driver.freed) == 1


# --- captures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", CUstreamCaptureMode)
@in_child
def test_array_dropped_during_a_capture_leaves_it_valid_and_is_freed(mode: CUstreamCaptureMode) -> None:
    side, capturing, other = Owned(), Owned(), Owned()
    arrays = [
        ct.full(LARGE, 1.0),
        ct.full(LARGE, 1.0, stream=side),
        ct.full(LARGE, 1.0, stream=capturing),
    ]
    used = [array.copy(stream=other) for array in arrays]
    capture = driver.begin_capture(capturing.handle, mode)
    del arrays, used
    gc.collect()
    assert capture.valid
    left = [stream for _, stream in driver.memory.values()]
    assert left == [1, capturing.handle]  # the idle memory, and what the captured stream frees
    driver.end_capture(capturing.handle)
    ct.empty(1)
    assert len(driver.freed) == 6


@in_child
def test_memory_dropped_on_a_stream_that_lasts_is_used_again_without_the_driver() -> None:
    side = Torch()
    x = ct.empty(LARGE, stream=side)
    pointer, calls = x.pointer, len(driver.calls)
    for _ in range(10):
        del x
        x = ct.empty(LARGE, stream=side)
        assert x.pointer == pointer
    assert set(driver.names()[calls:]) == {"cuStreamIsCapturing"}
    del x
    ct.empty(2**20, stream=side)  # another size
    assert [freed[0] for freed in driver.freed] == [pointer]


@in_child
def test_memory_dropped_on_a_captured_stream_stays_until_the_capture_ends() -> None:
    side = Torch()
    x = ct.empty(LARGE, stream=side)
    capture = driver.begin_capture(side.handle)
    del x
    ct.full(2**21, 1.0)
    ct.empty_cache()
    assert capture.valid
    assert [stream for _, stream in driver.memory.values()] == [side.handle]
    driver.end_capture(side.handle)
    ct.empty_cache()
    assert not driver.memory


@in_child
def test_stream_that_is_closed_after_its_arrays_is_not_used_again() -> None:
    address = driver.new_stream()
    x = ct.full(LARGE, 1.0, stream=address)
    ct.synchronize(address)
    del x
    driver.destroy(address)
    ct.full(2**21, 1.0).numpy()
    ct.empty_cache()
    assert not driver.memory


@in_child
def test_array_dropped_while_a_blocking_stream_captures_is_freed_later() -> None:
    capturing = Owned(blocking=True)
    x = ct.full(LARGE, 1.0)
    x.copy(stream=Owned())
    capture = driver.begin_capture(capturing.handle, RELAXED)
    del x
    gc.collect()
    assert capture.valid
    driver.end_capture(capturing.handle)
    ct.synchronize()
    assert not driver.memory


@pytest.mark.parametrize("taken_by", ["default", "capturing", "side", "address"])
@in_child
def test_array_that_dlpack_lent_is_dropped_during_a_capture(taken_by: str) -> None:
    interop.export_dlpack = lambda owner, *rest: owner
    side, capturing, home = Torch(), Torch(), Owned()
    for stream in (side, capturing):
        ct.empty(1, stream=stream)  # a stream object that the package has seen
    x = ct.full(LARGE, 1.0, stream=capturing if taken_by == "address" else home)
    address = driver.new_stream()
    takers = {"default": 1, "capturing": capturing.handle, "side": side.handle, "address": address}
    taken = x.__dlpack__(stream=takers[taken_by])
    del x
    if taken_by == "address":
        driver.destroy(address)
    capture = driver.begin_capture(capturing.handle)
    del taken
    gc.collect()
    assert capture.valid
    kept = [stream for _, stream in driver.memory.values() if stream == home.handle]
    assert len(kept) == (taken_by == "capturing")  # until it can wait for the work of the taker
    driver.end_capture(capturing.handle)
    ct.synchronize()
    ct.empty_cache()
    assert not driver.memory


@pytest.mark.parametrize("place", ["default", "side"])
@in_child
def test_calls_leave_a_global_capture_of_another_thread_valid(place: str) -> None:
    stream = Owned() if place == "side" else None
    capturing = Owned()
    ready, over = threading.Event(), threading.Event()
    captures = []

    def capture() -> None:
        driver.current = 0
        captures.append(driver.begin_capture(capturing.handle))
        ready.set()
        over.wait()

    thread = threading.Thread(target=capture)
    thread.start()
    ready.wait()
    x = ct.full(LARGE, 2.0, stream=stream)
    y = x.copy(stream=Owned())
    for shape in (LARGE, 3):
        z = ct.full(shape, 0.1, "float64", stream=stream).copy(stream=Owned())
    assert (y.numpy() == 2).all()
    x.fill(1.0)
    ct.synchronize(stream)
    del x, y, z
    gc.collect()
    ct.empty_cache()
    over.set()
    thread.join()
    assert captures[0].valid
    assert all(one.mode == GLOBAL for one in driver.calls if one.name == "cuMemcpyDtoDAsync")
    assert driver.mode == GLOBAL


@in_child
def test_allocation_during_a_capture_of_its_stream_says_to_pass_out() -> None:
    stream = Owned()
    capture = driver.begin_capture(stream.handle)
    with pytest.raises(ct.NotInitializedError, match="pass out="):
        ct.empty(3, stream=stream)
    assert capture.valid


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@in_child
def test_fill_with_eight_bytes_is_replayed_without_host_memory(size: int) -> None:
    stream = Owned()
    x = ct.empty(size, "float64", stream=stream)
    capture = driver.begin_capture(stream.handle)
    x.fill(0.1, stream=stream)
    driver.end_capture(stream.handle)
    for _ in range(2):
        x.fill(0, stream=stream)
        capture.launch()
        assert (x.numpy() == 0.1).all(), x.numpy()
    assert "cuMemcpyHtoDAsync" not in driver.names()


@pytest.mark.parametrize("value", [0, -1, 2**40 + 3, 2**33 + 2])
@in_child
def test_fill_writes_eight_byte_integers(value: int) -> None:
    assert (ct.full((3, 5), value, "int64").numpy() == value).all()
    assert "cuMemcpyHtoDAsync" not in driver.names()


# --- forks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2])
@in_child
def test_memory_dropped_in_a_forked_child_calls_no_driver(devices: int) -> None:
    side = Owned()
    arrays = [ct.full(LARGE, 1.0), ct.full(LARGE, 1.0, stream=side), ct.full(3, 1.0)]
    used = [array.copy(stream=Owned()) for array in arrays]
    before = len(driver.calls)
    child = os.fork()
    if not child:
        del arrays, used
        gc.collect()
        os._exit(len(driver.calls) - before)
    assert os.waitpid(child, 0)[1] == 0
    assert len(driver.memory) == 6


PASSED_ON = """
from tests.unit.cuda_driver import Driver
_driver = Driver()

def __getattr__(name):
    return getattr(_driver, name)
"""

SLOW = """
import threading, time
threading.main_thread().importing.set()
time.sleep(1)
"""

FORKING = """
import os
if not (child := os.fork()):
    os._exit(0)
os.waitpid(child, 0)
"""

FORK_DURING_IMPORT = """
import os, threading
import ml_dtypes
import cudnn_ct as ct
ct.empty  # imports the modules that notice a fork

threading.main_thread().importing = threading.Event()

def work():
    {work}

thread = threading.Thread(target=work)
thread.start()
threading.main_thread().importing.wait()
child = os.fork()
if not child:
    import faulthandler
    faulthandler.dump_traceback_later(20, exit=True)
    try:
        ct.zeros(3)
    except ct.NotInitializedError as error:
        os._exit(0 if "CUDA does not survive a fork" in str(error) else 3)
    os._exit(4)
thread.join()
assert os.waitpid(child, 0)[1] == 0
assert ct.zeros(3).numpy().tolist() == [0, 0, 0]  # the parent goes on
"""


def run_with_driver(program: str, driver: str, folder: Path) -> None:
    """Run a program for which importing ``cuda.bindings.driver`` runs the lines ``driver`` first."""
    bindings = folder / "cuda" / "bindings"
    bindings.mkdir(parents=True)
    (bindings.parent / "__init__.py").touch()
    (bindings / "__init__.py").touch()
    (bindings / "driver.py").write_text(driver + PASSED_ON)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, *PATHS)))},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("work", ["ct.zeros(3)", "import cuda.bindings.driver"])
def test_fork_while_another_thread_imports_cuda_is_reported_in_the_child(work: str, tmp_path: Path) -> None:
    run_with_driver(FORK_DURING_IMPORT.format(work=work), SLOW, tmp_path)


def test_import_that_forks_does_not_wait_for_itself(tmp_path: Path) -> None:
    program = """
import time
import cudnn_ct as ct
ct.zeros
start = time.monotonic()
assert ct.zeros(3).numpy().tolist() == [0, 0, 0]
assert time.monotonic() - start < 5
"""
    run_with_driver(program, FORKING, tmp_path)
