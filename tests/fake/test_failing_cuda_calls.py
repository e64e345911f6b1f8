"""Calls across streams with one failing CUDA call after another: events, copies, waits, memory."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.cuda import lifetime
from cudnn_ct.cuda.stream import Stream
from cudnn_ct.shapes.rnn_params import rnn_parameters

from .cudnn import FakeCudnn
from .failing import no_collecting, unraisable
from .host import ForeignArray, Host
from .test_conv import images

SIDE, OTHER = 0x40, 0x50


def conv_on_a_side_stream(host: Host) -> np.ndarray:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    return ct.conv(x, w, stream=SIDE).numpy()


def into_what_another_stream_wrote(host: Host) -> np.ndarray:
    x, out = images(2, 3, 4), ct.zeros((2, 3, 4), stream=OTHER)
    ct.softmax(x, out=out, stream=SIDE)
    ct.scale(out, alpha=2.0, stream=OTHER)
    return out.numpy()


def foreign_in_and_out(host: Host) -> np.ndarray:
    home = Stream(OTHER, 0)
    x = ForeignArray(host, np.arange(24, dtype=np.float32).reshape(2, 3, 4), home)
    out = ForeignArray(host, np.zeros((2, 3, 4), np.float32), home)
    ct.activation(x, mode="relu", out=out, stream=SIDE)
    return out.numpy()


def timed(host: Host) -> np.ndarray:
    x, w, out = images(2, 3, 5, 6), images(4, 3, 3, 3), ct.zeros((2, 4, 3, 4))
    return ct.conv(x, w, algo="autotune", beta=1, out=out).numpy()


def a_plan(host: Host) -> np.ndarray:
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    plan = ct.conv_plan(x, w)
    out = plan(x, w)
    return plan(x, w, out=out).numpy()


def dropout(host: Host) -> np.ndarray:
    x = images(4, 5)
    y, mask = ct.dropout(x, ct.DropoutState(0.5, seed=3, stream=SIDE), stream=OTHER)
    return ct.dropout_backward(y, mask, mask.state).numpy()


def a_network(host: Host) -> np.ndarray:
    net = ct.RNN("gru", 2, 3, num_layers=2)  # without dropout, for which a second candidate would draw again
    w = net.pack_params([np.ones(row.shape, np.float32) for row in rnn_parameters(net.spec)])
    _, _, _, reserve = net.forward(images(3, 2, 2), w, training=True, stream=SIDE)
    return net.backward_data(images(3, 2, 3), reserve, stream=OTHER).dx.numpy()


def copies(host: Host) -> np.ndarray:
    x = images(3, 4)
    y = x.copy(stream=SIDE)
    y.fill(2.0, stream=OTHER)
    ct.synchronize()
    ct.empty_cache()
    return y.numpy()


def half(host: Host) -> np.ndarray:
    return ct.full((3, 5), 0.1, "float64").numpy()


CALLS: dict[str, Callable[[Host], Any]] = {
    call.__name__: call
    for call in (
        conv_on_a_side_stream, into_what_another_stream_wrote, foreign_in_and_out, timed, a_plan, dropout,
        a_network, copies, half,
    )
}  # fmt: skip


@pytest.mark.parametrize("warm", [False, True], ids=["first call", "second call"])
@pytest.mark.parametrize("name", CALLS)
def test_every_cuda_call_raises_or_falls_back_when_it_fails(
    fake: FakeCudnn, host: Host, name: str, warm: bool
) -> None:
    call = CALLS[name]
    expected = call(host)
    testing.reset()
    gc.collect()
    for _ in range(1 + warm):
        host.calls.clear()
        call(host)
    names = list(host.calls)
    with no_collecting():
        for k, function in enumerate(names, 1):
            let_fail(fake, host, call, expected, warm, k, function)


def let_fail(
    fake: FakeCudnn,
    host: Host,
    call: Callable[[Host], Any],
    expected: np.ndarray,
    warm: bool,
    k: int,
    function: str,
) -> None:
    testing.reset()
    if warm:
        call(host)
    host.calls.clear()
    host.fail_at, host.failed_in = k, set()
    with unraisable() as ignored, warnings.catch_warnings():
        warnings.simplefilter("ignore", ct.CudnnWarning)
        try:
            got = call(host)
        except (ct.ExecutionFailedError, ct.AllocationError) as error:
            wanted = ct.AllocationError if function == "allocate" else ct.ExecutionFailedError
            assert isinstance(error, wanted)
            del error
        else:  # of a candidate that is timed, say, where another ran
            assert host.failed_in, f"call {k} of {function} was not reached"
            # A call without its order of streams would be wrong. Only a finalizer keeps the memory instead, a
            # benchmark goes on, and an algorithm that gets no workspace makes way for the next.
            excused = {"__del__", "keep_until_done", "workspace"}
            assert function not in ("record", "wait") or host.failed_in & excused, function
            np.testing.assert_array_equal(got, expected)
        host.fail_at = 0
        np.testing.assert_array_equal(call(host), expected)
        testing.reset()
        gc.collect()
        lifetime.release_finished()
    assert ignored == [], function
    assert not host.live, function
    assert not fake.objects, function


def test_calls_reach_all_functions_of_the_cuda_layer(fake: FakeCudnn, host: Host) -> None:
    for call in CALLS.values():
        call(host)
    assert {name for name in dir(host) if hasattr(getattr(host, name), "__wrapped__")} == set(host.calls)
