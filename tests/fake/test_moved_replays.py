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
from tests.mixed import no_collecting
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


def test_captures_that_cannot_be_moved_are_destroyed_at_once(host: Host, with_word: Any) -> None:
    with_word(sum)
    with no_collecting():
        kept = [relu_on_new_memory(seed) for seed in range(4)]
        assert host.calls.count("cuGraphInstantiate") == 0 or kept
        assert not host.graphs


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


def part(memory: ct.DeviceArray, row: int, first: int = 0) -> ct.DeviceArray:
    return memory[row, first : first + 288].reshape(2, 4, 6, 6)


def in_order(memory: ct.DeviceArray, place: int, order: int) -> list[ct.DeviceArray]:
    return [part(memory, 2 * place), part(memory, 2 * place + 1)][::order]


# A parameter of the kernel, and two operands that change it from the seventh call on.
DEPENDING: dict[str, tuple[Any, Any]] = {
    "equal alignment": (  # then both can be read in wider pieces
        lambda words: int((words[0] ^ words[-1]) % 32 == 0),
        lambda memory, place: (part(memory, 2 * place), part(memory, 2 * place + 1, 4 * (place > 6))),
    ),
    "order": (
        lambda words: int(words[0] < words[-1]),
        lambda memory, place: in_order(memory, place, -1 if place > 6 else 1),
    ),
    "reversed order": (
        lambda words: int(words[0] < words[-1]),
        lambda memory, place: in_order(memory, place, 1 if place > 6 else -1),
    ),
}


@pytest.mark.parametrize("name", DEPENDING)
def test_kernel_that_depends_on_two_pointers_is_not_moved(with_word: Any, name: str) -> None:
    word, operands = DEPENDING[name]
    with_word(word, check=True)
    memory = ct.zeros((64, 1024))
    for place in range(12):
        x, y = operands(memory, place)
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
