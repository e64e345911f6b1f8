"""Two devices: operations follow their operands. The fakes check the current device at each access."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from tests.both.devices import *  # noqa: F403
from tests.both.devices import placed
from tests.mixed import in_threads, mixed_calls, on_host

from .cudnn import FakeCudnn
from .host import Host
from .test_threads import offered_by_the_fakes


@pytest.mark.parametrize("device", [0, 1])
def test_operations_compute_on_each_device(fake: FakeCudnn, host: Host, device: int) -> None:
    with ct.use(device=device):
        calls = mixed_calls(offered_by_the_fakes)
    for call in calls:
        results = call()
        assert {one.device for one in results if one is not None} == {device}, call
        assert host.device == 0
        call.compare(on_host(results))


def test_thread_without_a_device_has_none_after_work_on_the_second(fake: FakeCudnn, host: Host) -> None:
    x, w = placed(1)

    def work(_: int) -> None:
        ct.conv(x, w)
        assert host.current is None
        assert ct.full((3,), 1.0).device == 0

    in_threads(1, work)


def test_reset_restores_the_current_device(fake: FakeCudnn, host: Host) -> None:
    with ct.use(device=1):
        ct.activation(ct.full((2, 3), 1.0))
    testing.reset()
    assert host.device == 0


@pytest.mark.parametrize(
    "make", [ct.asarray, lambda values: ct.full(values.shape, 3.0), lambda v: ct.zeros(v.shape)]
)
def test_array_creation_restores_the_current_device(fake: FakeCudnn, host: Host, make: Any) -> None:
    with ct.use(device=1) as stream:
        pass
    host.device = 0
    values = np.ones((2, 3), np.float32)
    with ct.use(stream=stream):
        host.device = 0
        assert make(values).device == 1
        assert host.device == 0
