"""``ct.last_plan``: how the last call of a thread was computed. On the fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from tests.mixed import in_thread

from .cudnn import FakeCudnn
from .host import Host
from .test_conv import images

CALLS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "conv": (lambda: ct.conv(images(1, 2, 5, 5), images(2, 2, 3, 3)), "forward convolution", "legacy gemm"),
    "conv with a policy": (
        lambda: ct.conv(images(1, 2, 5, 5), images(2, 2, 3, 3), algo="autotune"),
        "forward convolution",
        "how: autotune, timed",
    ),
    "activation": (lambda: ct.activation(images(2, 3)), "relu", "cudnnActivationForward"),
    "empty result": (lambda: ct.conv(ct.empty((0, 2, 5, 5)), images(2, 2, 3, 3)), "[0, 2, 5, 5]", "no terms"),
}


@pytest.mark.parametrize("name", CALLS)
def test_last_plan_describes_the_call(fake: FakeCudnn, name: str) -> None:
    call, problem, plan = CALLS[name]
    assert ct.last_plan() is None
    for _ in range(2):  # prepared, and warm
        call()
        ct.scale(images(2, 3), alpha=2)
        call()
        found = ct.last_plan()
        assert problem in found.problem
        assert plan in found.plan
        assert found.describe() == f"{found.problem}\n{found.plan}"


def test_last_plan_restores_the_current_device(fake: FakeCudnn, host: Host) -> None:
    with ct.use(device=1) as stream:
        ct.activation(images(2, 3))
    with ct.use(stream=stream):
        host.device = 0
        assert ct.last_plan() is not None
        assert host.device == 0


def test_last_plan_has_the_fields_of_a_conv_plan(fake: FakeCudnn) -> None:
    fake.workspaces = {"IMPLICIT_GEMM": 512}
    x, w = images(1, 2, 5, 5), images(2, 2, 3, 3)
    with pytest.warns(ct.CudnnWarning, match="fell back"):
        plan = ct.conv_plan(x, w, algo="small")
    out = plan(x, w)
    ct.activation(x)
    plan(x, w, out=out)
    for _ in range(2):
        plan(x, w, out=out)  # without a key, from the second time on
        found = ct.last_plan()
        assert found.candidate == plan.candidate
        assert found.workspace == plan.workspace == 512
        assert found.fallback_reason == plan.fallback_reason != ""
        assert found.describe() == plan.describe()
        ct.activation(x)


def test_last_plan_is_of_the_thread_and_of_calls_that_succeed(fake: FakeCudnn) -> None:
    x = images(2, 3)
    ct.activation(x, mode="tanh")
    fake.fail["cudnnSoftmaxForward"] = 5000
    with pytest.raises(ct.ExecutionFailedError):
        ct.softmax(x)
    found = ct.last_plan()
    assert "tanh" in found.problem
    assert in_thread(ct.last_plan) is None


def test_last_plan_ignores_benchmarks_of_algorithms(fake: FakeCudnn) -> None:
    net = ct.RNN("lstm", 5, 4)
    net.algorithms((3, 2, 5))
    assert ct.last_plan() is None
    x = images(2, 3)
    ct.activation(x)
    net.algorithms((3, 2, 5), training=True)
    found = ct.last_plan()
    assert found.problem.startswith("relu")


def test_last_plan_keeps_nothing_of_an_object_that_is_gone(fake: FakeCudnn) -> None:
    x, w = images(1, 2, 5, 5), images(2, 2, 3, 3)
    plan = ct.conv_plan(x, w)
    plan(x, w)
    other = ct.conv_plan(x, w, padding=1)
    del other  # another object does not matter
    assert ct.last_plan() is not None
    del plan
    assert ct.last_plan() is None
    np.testing.assert_array_equal(ct.activation(x).numpy(), np.maximum(x.numpy(), 0))
    assert ct.last_plan() is not None
    state = ct.DropoutState(0.5)
    ct.dropout(x, state)
    assert ct.last_plan() is not None
    del state
    assert ct.last_plan() is None
