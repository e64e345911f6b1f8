"""More than one GPU: operations follow their operands, and nothing crosses."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.cuda import device as devices
from cudnn_ct.cuda import stream as streams
from tests.both.devices import *  # noqa: F403
from tests.mixed import in_threads, make_mixed, mixed_calls

from .conftest import library


@pytest.fixture(autouse=True)
def _two_devices() -> None:
    if devices.device_count() < 2:
        pytest.skip("there is one device here; these tests need two")


def case(device: int) -> tuple[ct.DeviceArray, ct.DeviceArray, np.ndarray]:
    rng = np.random.default_rng(device)
    x = rng.integers(-2, 3, (2, 4, 9, 9)).astype(np.float32)
    w = rng.integers(-1, 2, (3, 4, 3, 3)).astype(np.float32)
    with ct.use(device=device):
        return ct.asarray(x), ct.asarray(w), ct.reference.conv(x, w)


def test_thread_without_a_device_has_none_after_work_on_the_second() -> None:
    x, w, expected = case(1)
    seen: list[object] = []

    def work() -> None:
        seen.append(streams._current_device())
        seen.append(np.array_equal(ct.conv(x, w).numpy(), expected))
        with ct.use(device=1):
            ct.full((3,), 1.0)
        seen.append(streams._current_device())
        seen.append(ct.full((3,), 1.0).device)  # the default is the first device

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None, True, None, 0]


_WITHOUT_THE_FIRST = """
import threading
import numpy as np
import cudnn_ct as ct
from cuda.bindings import driver

def work():
    with ct.use(device=1):
        x, w = ct.full((2, 4, 9, 9), 1.0), ct.full((3, 4, 3, 3), 1.0)
    assert (ct.conv(x, w).numpy() == 36).all()
    assert (ct.softmax(x).numpy() == 0.25).all()

thread = threading.Thread(target=work)
thread.start()
thread.join()
result, _, active = driver.cuDevicePrimaryCtxGetState(0)
assert int(result) == 0
print("a context on the first" if active else "none on the first")
"""


def test_work_on_the_second_device_creates_no_context_on_the_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_THE_FIRST], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "none on the first", done.stderr


def test_memory_is_not_reused_while_its_device_uses_it() -> None:
    """It is freed while the other device is current, and a stream of its own device asks for as much."""
    torch = library("torch")
    shape, device = (256, 1024, 16), torch.device("cuda:1")
    side = torch.cuda.Stream(device=1)
    with ct.use(device=1):
        for _ in range(8):
            x = ct.full(shape, 3.0)
            ct.synchronize()
            with torch.cuda.device(device):
                torch.cuda._sleep(200_000_000)  # cycles, on the default stream
            y = ct.scale(ct.add(x, x), alpha=2.0)
            with ct.use(device=0):
                del x
            other = ct.full(shape, np.nan, stream=side)
            assert (y.numpy() == 12).all()
            del other


def test_memory_is_freed_while_another_device_is_current() -> None:
    with ct.use(device=1):
        arrays = [ct.full((256, 1024), float(i)) for i in range(8)]
    kept = arrays[3]
    del arrays
    gc.collect()
    with ct.use(device=1):
        others = [ct.full((256, 1024), np.nan) for _ in range(16)]
    assert (kept.numpy() == 3).all()
    del others


def test_conv_runs_on_a_side_stream_of_the_second_device() -> None:
    torch = library("torch")
    x, w, expected = case(1)
    side = torch.cuda.Stream(device=1)
    y = ct.conv(x, w, stream=side)
    assert y.device == 1
    del x, w
    np.testing.assert_array_equal(y.numpy(), expected)


def test_conv_takes_torch_tensors_of_the_second_device() -> None:
    torch = library("torch")
    x, w, expected = case(1)
    theirs = torch.tensor(x.numpy(), device="cuda:1")
    filters = torch.tensor(w.numpy(), device="cuda:1")
    with ct.use(device=1):
        y = ct.conv(theirs, filters)
    np.testing.assert_array_equal(y.numpy(), expected)
    y = ct.conv(theirs, filters)  # without being told: the operands say where they are
    assert y.device == 1
    np.testing.assert_array_equal(y.numpy(), expected)
    assert torch.from_dlpack(y).device.index == 1
    assert torch.cuda.current_device() == 0


def test_thread_may_change_devices_between_calls() -> None:
    """Every operation on both devices, in threads that go back and forth between them."""
    there = []
    for device in (0, 1):
        with ct.use(device=device):
            there.append(mixed_calls(lambda case: case.dtype == "float32" and not case.variant))

    def work(number: int) -> None:
        for turn in range(40):
            device = (number + turn) % 2
            with ct.use(device=device):
                make_mixed(there[device], 5, 100 * number + turn, (0,))

    before = streams.current_device()
    in_threads(6, work)
    assert streams.current_device() == before
