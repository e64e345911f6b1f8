"""Calls across streams with one failing CUDA call after another: events, copies, waits, memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import testing
from cudnn_ct.cuda.stream import Stream
from cudnn_ct.shapes.rnn import rnn_parameters
from cudnn_ct.shapes.specs import TensorSpec
from tests.unit.cuda_driver import FALLIBLE

from .cudnn import FakeCudnn
from .failing import CUDA_CALL, Bench, no_collecting
from .host import ForeignArray, Host
from .test_conv import images

SIDE, OTHER = 0x40, 0x50

# Functions in which a failing order of streams is not an error of the call.
OPTIONAL = {"__del__", "elapsed", "finish", "keep_until_done", "workspace"}


def into_the_result_of_another_stream(host: Host) -> np.ndarray:
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


def autotuned(host: Host) -> np.ndarray:
    x, w, out = images(2, 3, 5, 6), images(4, 3, 3, 3), ct.zeros((2, 4, 3, 4))
    return ct.conv(x, w, algo="autotune", beta=1, out=out).numpy()


def rnn(host: Host) -> np.ndarray:
    net = ct.RNN("gru", 2, 3, num_layers=2)  # without dropout, for which a second candidate would draw again
    w = net.pack_params([np.ones(row.shape, np.float32) for row in rnn_parameters(net.spec)])
    _, _, _, reserve = net.forward(images(3, 2, 2), w, training=True, stream=SIDE)
    return net.backward_data(images(3, 2, 3), reserve, stream=OTHER).dx.numpy()


def copies(host: Host) -> np.ndarray:
    y = images(3, 4).copy(stream=SIDE)
    y.fill(2.0, stream=OTHER)
    ct.synchronize()
    ct.empty_cache()
    return ct.full((3, 5), 0.1, "float64").numpy()


def expanded(host: Host) -> np.ndarray:
    x = images(3, 64).view_as(TensorSpec((3, 4, 64), (64, 0, 1), "float32"))
    return ct.activation(x, mode="tanh", stream=SIDE).numpy()


def replayed(host: Host) -> np.ndarray:
    x, out = images(2, 3, 4), ct.zeros((2, 3, 4), stream=SIDE)
    with testing.replay_after(1):
        for _ in range(3):
            ct.softmax(x, out=out, stream=SIDE)
        others = [(images(2, 3, 4), ct.zeros((2, 3, 4), stream=SIDE)) for _ in range(3)]
        for x, out in others:
            ct.softmax(x, out=out, stream=SIDE)
    return out.numpy()


def captured(host: Host) -> np.ndarray:
    w, x = images(4, 3, 3, 3), images(2, 3, 5, 6)
    function = ct.capture(lambda x: ct.activation(ct.conv(x, w), mode="tanh"))
    with warnings.catch_warnings():  # of a recording that failed: the function runs without a graph
        warnings.simplefilter("ignore", ct.CudnnWarning)
        function(x)
        function(images(2, 3, 5, 6))
        with ct.use(stream=SIDE):
            return function(x).numpy()


CALLS: tuple[Callable[[Host], Any], ...] = (
    into_the_result_of_another_stream, foreign_in_and_out, autotuned, rnn, copies, expanded, replayed,
    captured,
)  # fmt: skip


class CallBench(Bench):
    """A bench whose rows are ``CALLS``, compared with their results when no call fails."""

    def __init__(self, host: Host, fake: FakeCudnn) -> None:
        super().__init__(host, fake)
        self.rows = [SimpleNamespace(operation=call.__name__) for call in CALLS]
        self.expected = [call(host) for call in CALLS]

    def compute(self, row: int) -> str:
        same = np.array_equal(CALLS[row](self.host), self.expected[row])
        return "" if same else "the result is wrong"


@pytest.mark.parametrize("row", range(len(CALLS)), ids=lambda row: CALLS[row].__name__)
def test_every_cuda_call_raises_or_falls_back_when_it_fails(fake: FakeCudnn, host: Host, row: int) -> None:
    bench = CallBench(host, fake)
    tries = [one for one in bench.tries(row) if one.status == CUDA_CALL]
    with no_collecting():
        for one in tries:
            host.failed_in = set()
            found = bench.attempt(one)
            assert found.outcome != "wrong", found
            assert host.failed_in, f"{one} was not reached"
            # A call without its order of streams would be wrong. A finalizer keeps the memory instead, and a
            # candidate that gets no workspace, or is not timed, is replaced by the next. A recording ends.
            if found.outcome == "another way" and one.function in ("cuEventRecord", "cuStreamWaitEvent"):
                assert host.failed_in & {"__del__", "elapsed", "finish", "keep_until_done", "workspace"}, (
                    found
                )


def test_calls_reach_all_driver_functions_that_can_fail(fake: FakeCudnn, host: Host) -> None:
    host.device = 1
    for call in CALLS:
        call(host)
    assert set(host.calls) >= FALLIBLE - {"cuMemsetD8Async", "cuMemsetD16Async"}
