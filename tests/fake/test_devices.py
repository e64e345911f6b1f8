"""Two devices: operations follow their operands, mixed ones are refused, and nothing that is kept crosses.

The host of the fakes checks at each access that the memory is of the device that is current.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context, testing
from cudnn_ct.cuda import stream as streams
from tests.both.devices import *  # noqa: F403
from tests.both.devices import EXPECTED, placed
from tests.mixed import in_threads, mixed_calls, on_host

from .cudnn import FakeCudnn
from .host import Host
from .test_threads import offered_by_the_fakes


@pytest.mark.parametrize("device", [0, 1])
def test_operations_compute_on_each_device(fake: FakeCudnn, host: Host, device: int) -> None:
    """Operands of one device while the other is current: results are there, and are as on the first."""
    with ct.use(device=device):
        calls = mixed_calls(offered_by_the_fakes)
    for call in calls:
        results = call()
        assert {one.device for one in results if one is not None} == {device}, call
        assert host.device == 0
        call.compare(on_host(results))


def test_thread_without_a_device_has_none_after_work_on_the_second(fake: FakeCudnn, host: Host) -> None:
    x, w = placed(1)
    seen: list[object] = []

    def work() -> None:
        ct.conv(x, w)
        seen.append(hasattr(host._thread, "device"))
        seen.append(ct.full((3,), 1.0).device)

    in_threads(1, lambda _: work())
    assert seen == [False, 0]


def test_plans_are_not_shared_between_devices(fake: FakeCudnn, host: Host) -> None:
    for device in (0, 1, 0, 1):
        x, w = placed(device)
        np.testing.assert_array_equal(ct.conv(x, w).numpy(), EXPECTED)
    one, two = (context.current(streams.default_stream(device)) for device in (0, 1))
    assert one.handle is not two.handle
    assert testing.cache_sizes()["decisions"].entries == 2
    assert [len(ctx.calls) for ctx in (one, two)] == [1, 1]
    (first,), (second,) = one.calls.values(), two.calls.values()
    assert first.choice.plan is not second.choice.plan
    handles = {fake._get(ctx.handle._as_parameter_, "handle")["device"] for ctx in (one, two)}
    assert handles == {0, 1}


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


def test_use_of_one_device_inside_another(fake: FakeCudnn, host: Host) -> None:
    with ct.use(device=1) as outer:
        with ct.use(device=0):
            assert host.device == 0
            x, w = placed(1)  # which has a block of its own
            with pytest.raises(ValueError, match="x is on another device: got 1, expected 0"):
                ct.conv(x, w)
            assert streams.current_stream().device == 0
        assert (host.device, streams.current_stream()) == (1, outer)
    assert host.device == 0
