"""Calls that are replayed on other memory, on the fakes: limits, leaks, and random sequences of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context, testing
from cudnn_ct.cuda import driver, graph, replay
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.ops import _operation
from tests.both.replays import values
from tests.unit.cuda_driver import Capture

from .cudnn import FakeCudnn
from .host import Host
from .moved import runs_of

LAUNCH = "cuGraphLaunch"


@pytest.fixture(autouse=True)
def _soon(fake: FakeCudnn) -> Iterator[None]:
    with testing.replay_after(1):
        yield
    gc.collect()
    ct.empty_cache()


def relu_on_new_memory(seed: int) -> tuple[Any, Any]:
    x, y = ct.asarray(values(seed)), ct.zeros(values(0).shape)
    ct.activation(x, out=y)
    np.testing.assert_array_equal(y.numpy(), np.maximum(values(seed), 0))
    return x, y


def test_counts_of_runs_are_bounded_when_each_call_has_another_factor(host: Host) -> None:
    x, y = ct.asarray(values(0)), ct.zeros(values(0).shape)
    for number in range(4 * _operation.MAX_POINTER_SETS):
        ct.activation(x, alpha=1 + number / 1024, out=y)
    calls = context.current(default_stream(0)).calls.values()
    assert max(len(call.runs) for call in calls) <= _operation.MAX_POINTER_SETS


def test_captures_that_cannot_be_moved_are_destroyed_at_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred = FakeCudnn._deferred

    def with_sum(self: FakeCudnn, *given: Any) -> Any:
        work, words = deferred(self, *given)
        return (lambda others: work(others[:-1])), [*words, sum(words)]

    monkeypatch.setattr(FakeCudnn, "_deferred", with_sum)
    gc.collect()
    gc.disable()
    try:
        kept = [relu_on_new_memory(seed) for seed in range(4)]
        assert host.calls.count("cuGraphInstantiate") == 0 or kept
        assert not host.graphs
    finally:
        gc.enable()


def test_calls_in_place_are_not_captured_for_other_memory(host: Host) -> None:
    kept = []
    with testing.replay_after(4):
        for seed in range(20):
            kept.append(x := ct.asarray(values(seed)))
            np.testing.assert_array_equal(ct.activation(x, out=x).numpy(), np.maximum(values(seed), 0))
    assert "cuStreamBeginCapture" not in host.calls


def test_calls_on_adjacent_columns_are_moved_and_on_overlapping_ones_rejected(host: Host) -> None:
    for seed in range(12):
        memory = ct.zeros((2, 4, 6, 3, 8))
        x, y = memory[..., 0, :6], memory[..., 1, :6]
        ct.transform(ct.asarray(values(seed)), out=x)
        host.calls.clear()
        ct.activation(x, out=y)
        np.testing.assert_array_equal(y.numpy(), np.maximum(values(seed), 0))
        with pytest.raises(ValueError, match="out overlaps"):
            ct.activation(memory[..., :2, :], out=memory[..., 1:, :])
    assert host.calls.count(LAUNCH) == 1
    assert "cuGraphExecKernelNodeSetParams" in host.calls
    assert not any("Event" in name for name in host.calls)


def test_kernel_that_depends_on_how_two_pointers_are_aligned_is_not_moved(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred = FakeCudnn._deferred

    def with_word(self: FakeCudnn, *given: Any) -> Any:
        work, words = deferred(self, *given)
        alike = int((words[0] ^ words[-1]) % 32 == 0)  # then both can be read in wider pieces

        def run(others: list[int]) -> None:
            assert others[-1] == int((others[0] ^ others[-2]) % 32 == 0)
            work(others[:-1])

        return run, [*words, alike]

    monkeypatch.setattr(FakeCudnn, "_deferred", with_word)
    memory = ct.zeros((64, 1024))
    for place in range(12):
        x = memory[2 * place, :288].reshape(2, 4, 6, 6)
        first = 4 * (place > 6)  # elements
        y = memory[2 * place + 1, first : first + 288].reshape(2, 4, 6, 6)
        ct.transform(ct.asarray(values(place)), out=x)
        ct.activation(x, out=y)
        np.testing.assert_array_equal(y.numpy(), np.maximum(values(place), 0))


@pytest.mark.parametrize("order", [1, -1])
def test_kernel_that_depends_on_the_order_of_pointers_is_not_moved(
    host: Host, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    deferred = FakeCudnn._deferred

    def with_word(self: FakeCudnn, *given: Any) -> Any:
        work, words = deferred(self, *given)

        def run(others: list[int]) -> None:
            assert others[-1] == int(others[0] < others[-2])
            work(others[:-1])

        return run, [*words, int(words[0] < words[-1])]

    monkeypatch.setattr(FakeCudnn, "_deferred", with_word)
    memory = ct.zeros((64, 1024))
    for place in range(12):
        turned = -order if place > 6 else order
        x, y = [memory[2 * place + at, :288].reshape(2, 4, 6, 6) for at in (0, 1)][::turned]
        ct.transform(ct.asarray(values(place)), out=x)
        ct.activation(x, out=y)
        np.testing.assert_array_equal(y.numpy(), np.maximum(values(place), 0))


def test_moved_graph_is_left_alone_after_a_fork(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [relu_on_new_memory(seed) for seed in range(3)]
    assert host.calls.count(LAUNCH)

    def forked() -> None:
        raise ct.NotInitializedError("CUDA does not survive a fork")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "driver", forked)
        for call in context.current(default_stream(0)).calls.values():
            call.replays.clear()  # what a finalizer raises is an error here
    assert len(kept) == 3


def test_call_is_described_while_a_replay_is_dropped() -> None:
    kept = [relu_on_new_memory(seed) for seed in range(4)]
    (call,) = [one for one in context.current(default_stream(0)).calls.values() if one.replays]

    class Dropping(tuple[Any, ...]):
        """A key whose graph another thread drops while it is compared."""

        def __getitem__(self, place: Any) -> Any:
            call.replays.clear()
            return super().__getitem__(place)

    for key in [*call.replays]:
        call.replays[Dropping(key)] = call.replays.pop(key)
    assert "replayed for other pointers" in call.describe()
    assert len(kept) == 4


@pytest.mark.parametrize("seed", range(6))
def test_random_sequences_have_the_results_and_the_memory_of_calls_without_replays(seed: int) -> None:
    expected, found, _ = runs_of(seed)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert one == other, f"python -m tests.fake.moved {seed} 1: step {number // 2}"


def test_kernel_whose_parameters_cannot_be_read_is_not_moved(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, info = Capture.add, Host._param_info

    def with_another(self: Capture, work: Any, words: list[int], kind: int = 0) -> None:
        add(self, lambda _: None, [*words, 0])  # it has the same pointers, and computes nothing
        add(self, work, words, kind)

    def failing(self: Host, function: int, *more: int) -> int:
        return 801 if function == 2 else info(self, function, *more)  # not supported

    monkeypatch.setattr(Capture, "add", with_another)
    monkeypatch.setattr(Host, "_param_info", failing)
    kept = [relu_on_new_memory(seed) for seed in range(6)]
    assert host.calls.count(LAUNCH) == 0
    assert len(kept) == 6


@pytest.mark.parametrize("kind", [graph.Graph, graph.Template, replay.Replay])
def test_finalizer_of_an_object_whose_constructor_was_interrupted_raises_nothing(kind: Any) -> None:
    kind.__new__(kind).__del__()
