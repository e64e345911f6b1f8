"""Calls whose graphs a slow device waits for, on the fakes: which graphs are launched, and results."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context, testing
from cudnn_ct.cuda import backlog
from cudnn_ct.cuda.stream import Stream, default_stream
from tests.both.replays import values
from tests.unit.cuda_driver import CUresult

from .cudnn import FakeCudnn
from .host import Host

SIDE = 0x5500
SLOW, FAST = 0.1, 0.001  # milliseconds of a call on the device


@pytest.fixture(autouse=True)
def _soon(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {"BATCH": 4, "FEW": 2, "MANY": 2, "LATELY": 1000}.items():
        monkeypatch.setattr(backlog, name, value)
    with testing.replay_after(1):
        yield
    gc.collect()
    ct.empty_cache()


class Calls:
    """Calls on several sets of memory, and how they were launched."""

    def __init__(self, host: Host, sets: int = 6) -> None:
        self.host = host
        self.arrays = [(ct.asarray(values(seed)), ct.zeros(values(0).shape)) for seed in range(sets)]

    def __call__(self, milliseconds: float, rounds: int = 4) -> set[str]:
        """Run all calls several times, check the results, and return the ways of the last round."""
        ways: set[str] = set()
        for _ in range(rounds):
            ways = {self.run(*arrays, seed, milliseconds) for seed, arrays in enumerate(self.arrays)}
        return ways

    def fall_behind(self) -> None:
        """Run all calls on a slow device, and on one that does not end them."""
        self(SLOW)
        self.host.failing["cuEventQuery"] = CUresult.CUDA_ERROR_NOT_READY
        self(SLOW)
        self.host.failing.clear()

    def run(self, x: ct.DeviceArray, y: ct.DeviceArray, seed: int, milliseconds: float) -> str:
        ct.fill(y, 7)
        before, calls = len(self.host.calls), self.host.calls
        ct.activation(x, out=y)
        self.host.clock += milliseconds
        made = calls[before:]
        np.testing.assert_array_equal(y.numpy(), np.maximum(values(seed), 0))
        if "cuGraphLaunch" not in made:
            return "alone"
        return "moved" if "cuGraphExecKernelNodeSetParams" in made else "own"


@pytest.fixture
def calls(host: Host, _soon: None) -> Iterator[Calls]:
    made = Calls(host)
    made(FAST)
    yield made
    made.arrays.clear()


def test_graphs_of_fast_calls_are_those_for_their_pointers(calls: Calls) -> None:
    assert calls(FAST) == {"own"}


def test_device_that_waits_for_the_host_is_not_slow(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(SLOW) == {"own"}
    monkeypatch.setattr(backlog, "LATELY", 4)
    calls.fall_behind()
    assert calls(SLOW, rounds=1) == {"moved"}
    assert calls(SLOW) == {"own"}


def test_slow_device_is_given_one_graph_with_other_pointers(calls: Calls) -> None:
    calls.fall_behind()
    assert calls(SLOW) == {"moved"}
    assert calls(FAST) == {"own"}


def test_calls_are_made_without_graphs_while_a_slow_device_is_behind(calls: Calls, host: Host) -> None:
    calls(SLOW)
    host.failing["cuEventQuery"] = CUresult.CUDA_ERROR_NOT_READY
    assert calls(SLOW) == {"alone"}
    host.failing.clear()
    assert calls(SLOW) == {"moved"}


def test_few_graphs_are_launched_on_a_slow_device_too(host: Host) -> None:
    few = Calls(host, sets=1)
    assert few(SLOW, rounds=40) == {"own"}
    host.failing["cuEventQuery"] = CUresult.CUDA_ERROR_NOT_READY
    assert few(SLOW, rounds=40) == {"own"}


def test_idle_time_is_not_that_of_calls(calls: Calls) -> None:
    calls.fall_behind()
    calls(FAST)
    for _ in range(3):
        calls(FAST, rounds=1)
        calls.host.clock += 100.0
        assert calls(FAST, rounds=1) == {"own"}


@pytest.mark.parametrize("name", ["cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventElapsedTime"])
def test_events_that_fail_do_not_stop_calls(calls: Calls, host: Host, name: str) -> None:
    calls.fall_behind()
    host.failing[name] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert calls(SLOW) <= {"own", "moved"}
    host.failing.clear()
    assert calls(SLOW) == {"moved"}


def test_events_are_not_recorded_in_a_capture(calls: Calls, host: Host) -> None:
    calls(SLOW)
    host.failing["cuEventQuery"] = CUresult.CUDA_ERROR_NOT_READY
    calls(SLOW)
    x, _ = calls.arrays[0]
    recorded = []

    def several(x: ct.DeviceArray) -> list[ct.DeviceArray]:
        before = host.calls.count("cuEventRecord")
        results = [ct.activation(x) for _ in range(9)]
        recorded.append(host.calls.count("cuEventRecord") - before)
        return results

    forward = ct.capture(several)
    for _ in range(2):
        np.testing.assert_array_equal(forward(x)[8].numpy(), np.maximum(values(0), 0))
    host.failing.clear()
    forward.close()
    assert recorded[0] > recorded[1] == 0, "first as usual, then in a capture"


def test_events_are_used_again(calls: Calls, host: Host) -> None:
    calls(SLOW)
    before = host.calls.count("cuEventCreate")
    calls(SLOW, rounds=20)
    assert host.calls.count("cuEventCreate") == before
    assert not context.current(default_stream(0)).replays.backlog.alone


def test_call_that_looks_for_a_graph_twice_is_counted_once(host: Host, fake: FakeCudnn) -> None:
    host.devices, fake.engines = 1, True  # else a plan does not look twice
    calls, shape, g = Calls(host), values(0).shape, ct.Graph()
    plan = g.build(g.input(shape) + g.input(shape))

    def run_all(rounds: int) -> None:
        for _ in range(rounds):
            for x, y in calls.arrays:
                plan(x, x, out=y)
                host.clock += SLOW

    run_all(8)
    host.failing["cuEventQuery"] = CUresult.CUDA_ERROR_NOT_READY
    run_all(8)
    before = host.calls.count("cuEventRecord")
    run_all(8)
    assert context.current(default_stream(0)).replays.backlog.alone
    assert host.calls.count("cuEventRecord") - before == 8 * len(calls.arrays) // backlog.FEW


def test_interrupted_look_leaves_no_event_in_two_places(calls: Calls) -> None:
    made = context.current(default_stream(0)).replays.backlog
    calls.fall_behind()
    for after in range(1, 6):
        left = [after]

        def trace(frame: Any, event: str, _: object, left: list[int] = left) -> Any:
            if frame.f_code.co_name == "_end" and event == "line":
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        with contextlib.suppress(KeyboardInterrupt):
            calls(SLOW)
        sys.settrace(before)
        assert left[0] <= 0, "interrupted"
        events = [made._ended, *made._idle, *[event for event, _ in made._pending]]
        assert len({*map(id, events)}) == len(events)
        assert calls(SLOW) == {"moved"}


def test_device_is_asked_on_the_stream_of_the_call(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y), asked = calls.arrays[0], list[int]()
    wait, ask = ct.DeviceArray.wait_for_writer, backlog.Backlog.ask

    def waiting(self: ct.DeviceArray, stream: Any) -> None:
        wait(self, stream)
        context.current(Stream(SIDE, 0)).replays.backlog.left = 0  # as a call in a finalizer

    def asking(self: backlog.Backlog, stream: Stream) -> None:
        asked.append(stream.handle)
        ask(self, stream)

    with ct.use(stream=0x6600):
        ct.fill(x, 3)
    monkeypatch.setattr(ct.DeviceArray, "wait_for_writer", waiting)
    monkeypatch.setattr(backlog.Backlog, "ask", asking)
    np.testing.assert_array_equal(ct.activation(x, out=y).numpy(), np.full(x.shape, 3))
    assert asked == [1]


def test_stream_that_waits_for_long_does_not_keep_others_from_graphs(
    calls: Calls, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls(SLOW)
    monkeypatch.setattr(backlog.events, "is_done", lambda event: host.events[event.handle].stream != SIDE)
    made = context.current(default_stream(0)).replays.backlog
    with ct.use(stream=SIDE):
        made.left = 0
        ct.activation(calls.arrays[0][0])
    assert calls(FAST) == {"alone"}
    assert calls(FAST, rounds=backlog.FEW * backlog.MOST) == {"own"}


def test_calls_that_are_slow_only_as_the_device_waits_for_graphs_keep_one_graph(calls: Calls) -> None:
    calls.fall_behind()
    ways = []
    for _ in range(40):
        for seed, arrays in enumerate(calls.arrays):
            ways.append(calls.run(*arrays, seed, 0.03))  # of two: the fill is one, too
            calls.host.clock += 0.06 if ways[-1] == "own" else 0
    assert set(ways[len(ways) // 2 :]) == {"moved"}
    assert calls(FAST) == {"own"}
