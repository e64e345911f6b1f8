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
from tests.mixed import in_threads, mixed_calls, on_host

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_threads import offered_by_the_fakes

RNG = np.random.default_rng(0)
X = RNG.integers(-3, 4, (2, 4, 6, 6)).astype(np.float32)
W = RNG.integers(-2, 3, (3, 4, 3, 3)).astype(np.float32)
EXPECTED = ct.reference.conv(X, W)


def placed(device: int) -> tuple[ct.DeviceArray, ct.DeviceArray]:
    with ct.use(device=device):
        return ct.asarray(X), ct.asarray(W)


@pytest.mark.parametrize("device", [0, 1])
def test_all_operations_on_each_device(fake: FakeCudnn, host: Host, device: int) -> None:
    """Operands of one device while the other is current: results are there, and are as on the first."""
    with ct.use(device=device):
        calls = mixed_calls(offered_by_the_fakes)
    for call in calls:
        results = call()
        assert {one.device for one in results if one is not None} == {device}, call
        assert host.device == 0
        call.compare(on_host(results))


def test_a_thread_that_has_no_device_has_none_after_work_on_the_second(fake: FakeCudnn, host: Host) -> None:
    x, w = placed(1)
    seen: list[object] = []

    def work() -> None:
        ct.conv(x, w)
        seen.append(hasattr(host._thread, "device"))
        seen.append(ct.full((3,), 1.0).device)

    in_threads(1, lambda _: work())
    assert seen == [False, 0]


MIXED: dict[str, Any] = {
    "conv": lambda a, b: ct.conv(a[0], b[1]),
    "conv, out": lambda a, b: ct.conv(a[0], a[1], out=b[0]),
    "conv_bias_activation": lambda a, b: ct.conv_bias_activation(a[0], a[1], ct.reduce(b[0], axis=(0, 2, 3))),
    "conv_plan": lambda a, b: ct.conv_plan(a[0], b[1]),
    "a plan": lambda a, b: ct.conv_plan(*a)(a[0], b[1]),
    "add": lambda a, b: ct.add(a[0], b[0]),
    "softmax_backward": lambda a, b: ct.softmax_backward(b[0], a[0]),
    "batch_norm": lambda a, b: ct.batch_norm_inference(a[0], *[ct.reduce(b[0], axis=(0, 2, 3))] * 4),
    "pool, out": lambda a, b: ct.pool(a[0], window=1, out=b[0]),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_operands_are_refused(fake: FakeCudnn, name: str) -> None:
    here, there = placed(0), placed(1)
    for one, two in ((here, there), (there, here)):
        with pytest.raises(ValueError, match="is on another device"):
            MIXED[name](one, two)


def test_arrays_of_other_libraries_say_where_they_are(fake: FakeCudnn, host: Host) -> None:
    x, w = ForeignArray(host, X, device=1), ForeignArray(host, W, device=1)
    y = ct.conv(x, w)
    assert (y.device, host.device) == (1, 0)
    np.testing.assert_array_equal(y.numpy(), EXPECTED)
    with pytest.raises(ValueError, match="is on another device"):
        ct.conv(x, ForeignArray(host, W, device=0))


def test_nothing_that_is_kept_crosses(fake: FakeCudnn, host: Host) -> None:
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


def test_a_plan_goes_where_its_operands_are(fake: FakeCudnn, host: Host) -> None:
    plan = ct.conv_plan(*placed(0))
    for device in (1, 0, 1):
        x, w = placed(device)
        with ct.use(device=device):
            out = ct.zeros(EXPECTED.shape)
        for _ in range(2):
            y = plan(x, w)
            assert (y.device, host.device) == (device, 0)
            np.testing.assert_array_equal(y.numpy(), EXPECTED)
            np.testing.assert_array_equal(plan(x, w, out=out.fill(np.nan)).numpy(), EXPECTED)


def test_random_state_stays_on_its_device(fake: FakeCudnn) -> None:
    with ct.use(device=1):
        state = ct.DropoutState(0.5, seed=1)
    x, _ = placed(0)
    with pytest.raises(ValueError, match="device"):
        ct.dropout(x, state)


def test_a_network_on_both_devices(fake: FakeCudnn) -> None:
    net = ct.RNN("lstm", 4, 3, dtype="float32", algo="standard")
    weights, x = RNG.standard_normal(net.weight_size).astype(np.float32), np.ones((3, 2, 4), np.float32)
    results = []
    for device in (0, 1, 0):
        with ct.use(device=device):
            w, sequence = ct.asarray(weights), ct.asarray(x)
        y = net.forward(sequence, w)[0]
        assert y.device == device
        results.append(y.numpy().tobytes())
    assert len(set(results)) == 1


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


def test_a_block_of_one_device_inside_that_of_another(fake: FakeCudnn, host: Host) -> None:
    with ct.use(device=1) as outer:
        with ct.use(device=0):
            assert host.device == 0
            x, w = placed(1)  # which has a block of its own
            with pytest.raises(ValueError, match="x is on another device: got 1, expected 0"):
                ct.conv(x, w)
            assert streams.current_stream().device == 0
        assert (host.device, streams.current_stream()) == (1, outer)
    assert host.device == 0
