"""Two GPUs: operations follow their operands, and nothing is shared between devices."""

from __future__ import annotations

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.cuda import stream as streams
from tests.both.devices import *  # noqa: F403
from tests.both.devices import EXPECTED, placed
from tests.mixed import in_threads

from .conftest import library
from .test_fresh_process import run


@pytest.fixture(autouse=True)
def _two_devices() -> None:
    if streams.device_count() < 2:
        pytest.skip("there is one device here; these tests need two")


def test_thread_without_a_device_has_none_after_work_on_the_second() -> None:
    x, w = placed(1)
    seen: list[object] = []

    def work() -> None:
        seen.append(streams._current_device())
        seen.append(np.array_equal(ct.conv(x, w).numpy(), EXPECTED))
        with ct.use(device=1):
            ct.full((3,), 1.0)
        seen.append(streams._current_device())
        seen.append(ct.full((3,), 1.0).device)  # the default is the first device

    in_threads(1, lambda _: work())
    assert seen == [None, True, None, 0]


def test_work_on_the_second_device_creates_no_context_on_the_first() -> None:
    run("""
        from cuda.bindings import driver

        def work(_):
            with ct.use(device=1):
                operands = ct.asarray(x), ct.asarray(w)
            check([y.numpy() for y in run(*operands)])

        in_threads(1, work)
        result, _, active = driver.cuDevicePrimaryCtxGetState(0)
        assert (int(result), active) == (0, 0)
    """)


def test_memory_is_not_reused_while_its_device_uses_it() -> None:
    """The other device is current when the memory is freed. Another stream then allocates the same size."""
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


def test_conv_runs_on_streams_and_tensors_of_the_second_device() -> None:
    torch = library("torch")
    x, w = placed(1)
    theirs, filters = (torch.tensor(array.numpy(), device="cuda:1") for array in (x, w))
    with ct.use(device=1):
        inside = ct.conv(theirs, filters)
    side = torch.cuda.Stream(device=1)
    for y in (inside, ct.conv(theirs, filters), ct.conv(x, w, stream=side)):
        assert y.device == 1
        np.testing.assert_array_equal(y.numpy(), EXPECTED)
    assert torch.from_dlpack(y).device.index == 1
    assert torch.cuda.current_device() == 0


def test_from_pointer_reports_the_device_of_memory() -> None:
    x, _ = placed(1)
    assert ct.from_pointer(x.pointer, x.shape, x.dtype, device=1).device == 1
    with pytest.raises(ValueError, match="is on another device: got 0, expected 1; pass device=1"):
        ct.from_pointer(x.pointer, x.shape, x.dtype)
