"""Two devices: operations follow their operands, mixed ones are rejected, nothing is shared between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import stream as streams
from tests.layers import Place

RNG = np.random.default_rng(0)
X = RNG.integers(-3, 4, (2, 4, 6, 6)).astype(np.float32)
W = RNG.integers(-2, 3, (3, 4, 3, 3)).astype(np.float32)
EXPECTED = ct.reference.conv(X, W)


def placed(device: int) -> tuple[ct.DeviceArray, ct.DeviceArray]:
    with ct.use(device=device):
        return ct.asarray(X), ct.asarray(W)


def test_operations_follow_their_operands_and_leave_the_current_device(place: Place) -> None:
    before = streams.current_device()
    for device in (1, 0, 1):
        x, w = placed(device)
        y = ct.conv(x, w)
        assert (x.device, y.device) == (device, device)
        np.testing.assert_array_equal(y.numpy(), EXPECTED)
        np.testing.assert_array_equal(y.copy().numpy(), EXPECTED)
        assert ct.asarray(x, layout="nhwc").device == device
        assert streams.current_device() == before


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
def test_operands_on_two_devices_are_rejected(place: Place, name: str) -> None:
    here, there = placed(0), placed(1)
    for one, two in ((here, there), (there, here)):
        with pytest.raises(ValueError, match="is on another device"):
            MIXED[name](one, two)


def test_prepared_calls_and_handles_belong_to_one_device(place: Place) -> None:
    for device in (0, 1, 0, 1):
        np.testing.assert_array_equal(ct.conv(*placed(device)).numpy(), EXPECTED)
    one, two = (context.current(streams.default_stream(device)) for device in (0, 1))
    assert one.handle is not two.handle
    first, second = ({id(call) for call in where.calls.values()} for where in (one, two))
    assert first
    assert second
    assert not first & second


def test_plan_runs_on_the_device_of_its_operands(place: Place) -> None:
    plan, before = ct.conv_plan(*placed(0)), streams.current_device()
    for device in (1, 0, 1):
        x, w = placed(device)
        with ct.use(device=device):
            out = ct.zeros(EXPECTED.shape)
        for _ in range(3):
            y = plan(x, w)
            assert (y.device, streams.current_device()) == (device, before)
            np.testing.assert_array_equal(y.numpy(), EXPECTED)
            np.testing.assert_array_equal(plan(x, w, out=out.fill(np.nan)).numpy(), EXPECTED)


def test_dropout_state_belongs_to_one_device(place: Place) -> None:
    with ct.use(device=1):
        state = ct.DropoutState(0.5, seed=1)
    with pytest.raises(ValueError, match="device"):
        ct.dropout(placed(0)[0], state)
    assert ct.dropout(placed(1)[0], state)[0].device == 1
