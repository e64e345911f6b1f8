"""Calls under ``enable()`` that torch computes faster, on the fakes."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

import cudnn_ct.torch as ctt
from cudnn_ct.cuda import stream as streams
from cudnn_ct.torch import blocks, faster, kernels, serving
from tests.fake.cudnn import FakeCudnn
from tests.torch_cases import Programs

X = torch.randn(2, 4, 8, 8)


@pytest.fixture(autouse=True)
def _chosen_by_time(door: FakeCudnn, direct: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))
    monkeypatch.setattr(serving, "current_stream", streams.default_stream)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    kernels.traced.clear()  # other tests compile programs


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Torch is faster in each measurement; the results of both functions."""
    made: list[Any] = []

    def measured(ours: Callable[[], Any], theirs: Callable[[], Any], stream: Any) -> bool:
        made.append((ours(), theirs()))
        return True

    monkeypatch.setattr(serving, "torch_is_faster", measured)
    return made


@pytest.fixture(params=[False, True], ids=["mode", "names"])
def block(request: pytest.FixtureRequest) -> Iterator[ctt.enable]:
    with torch.no_grad(), ctt.enable(rebind=request.param) as made:
        yield made


def left_of(block: ctt.enable, group: str) -> int:
    return block.report().left[group, faster.SLOWER]


def test_a_call_is_left_to_torch_once_torch_was_faster(block: ctt.enable, timed: list[Any]) -> None:
    for _ in range(faster.TIMED + 5):
        y = F.softmax(X, 1)
    ((ours, theirs),) = timed
    torch.testing.assert_close(ours, theirs)
    with ctt.enable(skip=["softmax"]):
        assert torch.equal(y, F.softmax(X, 1))
    # The first call settles, and the last one that is counted is left.
    assert block.report().served == {"softmax": faster.TIMED}
    assert left_of(block, "softmax") == 5


def without_memory(*_: object) -> bool:
    raise torch.OutOfMemoryError("no memory for the results of torch")


@pytest.mark.parametrize("measured", [lambda *_: False, without_memory], ids=["slower", "fails"])
def test_a_call_is_served_unless_torch_was_faster(
    block: ctt.enable, monkeypatch: pytest.MonkeyPatch, measured: Any
) -> None:
    monkeypatch.setattr(serving, "torch_is_faster", measured)
    for _ in range(3 * faster.TIMED):
        F.softmax(X, 1)
    assert block.report().served == {"softmax": 3 * faster.TIMED}


@pytest.mark.parametrize("setting", ["benchmark", "deterministic", "any", "capture"])
def test_nothing_is_timed_unless_torch_chooses_by_time(
    block: ctt.enable, timed: list[Any], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    if setting == "any":
        torch.use_deterministic_algorithms(True)
    elif setting == "capture":
        monkeypatch.setattr(streams, "is_capturing", lambda _: True)
    else:
        monkeypatch.setattr(torch.backends.cudnn, setting, setting == "deterministic")
    try:
        for _ in range(2 * faster.TIMED):
            F.softmax(X, 1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not timed


def test_convolutions_are_not_timed(block: ctt.enable, timed: list[Any]) -> None:
    """Torch would search for an algorithm of its own."""
    for _ in range(2 * faster.TIMED):
        F.conv2d(X, torch.ones(4, 4, 3, 3))
    assert not timed
    assert faster.SEARCHED <= blocks.GROUPS


def test_a_group_rests_while_torch_computes_all_its_calls_faster(
    block: ctt.enable, timed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, find = [], serving._settled.find
    monkeypatch.setattr(serving._settled, "find", lambda *given: (found.append(given[0]), find(*given))[1])
    for _ in range(faster.TIMED + faster.STREAK):
        F.softmax(X, 1)
    seen = len(found)
    for _ in range(faster.BETWEEN):
        F.softmax(X[:1], 1)
    assert len(found) == seen
    assert left_of(block, "softmax") == faster.STREAK + faster.BETWEEN
    for count in range(1, 4):  # another call is served, and the group rests no longer
        F.softmax(X[:1], 1)
        assert block.report().served["softmax"] == faster.TIMED + count
    F.layer_norm(X, (8,), torch.ones(8), torch.ones(8))
    assert block.report().served["layer_norm"] == 1


@pytest.mark.parametrize("setting", ["benchmark", "deterministic"])
def test_a_group_rests_only_while_torch_chooses_by_time(
    block: ctt.enable, timed: list[Any], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    for _ in range(faster.TIMED + faster.STREAK):
        F.softmax(X, 1)
    monkeypatch.setattr(torch.backends.cudnn, setting, setting == "deterministic")
    F.softmax(X, 1)
    assert block.report().served["softmax"] == faster.TIMED + 1


def test_names_of_a_resting_group_are_bound_in_few_blocks(
    timed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    block, own, other = ctt.enable(rebind=True), F.softmax, F.layer_norm

    def is_bound(x: torch.Tensor | None = None) -> bool:
        with torch.no_grad(), block:
            assert F.layer_norm is not other
            found = F.softmax is not own
            if x is not None:
                F.softmax(x, 1)
        return found

    with torch.no_grad(), block:
        for _ in range(faster.TIMED + faster.STREAK):
            F.softmax(X, 1)
    for _ in range(2):
        assert not any(is_bound() for _ in range(faster.BETWEEN))
        assert is_bound(X)  # which is slower still
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    assert is_bound()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert not any(is_bound() for _ in range(faster.BETWEEN))
    assert all(is_bound(X[:1]) for _ in range(3))  # served


def rest(block: ctt.enable) -> None:
    """Let the group of softmax rest."""
    with torch.no_grad(), block:
        for _ in range(faster.TIMED + faster.STREAK):
            F.softmax(X, 1)


Y = torch.randn(2, 6, 8, 8)


@pytest.fixture
def slow_x(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is faster for tensors of the shape of X alone."""
    monkeypatch.setattr(serving, "torch_is_faster", lambda ours, *_: ours().shape == X.shape)


@pytest.mark.parametrize("before", [1, 2, 20])
def test_another_call_of_a_group_that_rests_is_served_although_it_is_not_the_first_of_its_block(
    slow_x: None, before: int
) -> None:
    rest(block := ctt.enable(rebind=True))
    for _ in range(2 * (faster.BETWEEN + 1)):
        with torch.no_grad(), block:
            for _ in range(before):
                F.softmax(X, 1)
            F.softmax(Y, 1)
    assert block.report().served["softmax"] > faster.TIMED + faster.BETWEEN // 2


@pytest.mark.parametrize("count", [2, 12, 64])
def test_another_call_of_a_group_that_rests_is_served_wherever_it_is_in_a_step(
    block: ctt.enable, slow_x: None, count: int
) -> None:
    rest(block)
    for _ in range(faster.BETWEEN + 1):
        for place in range(count):
            F.softmax(X if place != 1 else Y, 1)
    assert block.report().served["softmax"] > faster.TIMED


def test_a_group_that_rests_without_gradients_serves_steps_with_gradients(slow_x: None) -> None:
    rest(block := ctt.enable(rebind=True))
    x = X.clone().requires_grad_()
    for _ in range(2):
        for _ in range(3):
            with torch.no_grad(), block:
                F.softmax(X, 1)
        served = block.report().served["softmax"]
        with block:
            y = [F.softmax(x, 1) for _ in range(faster.BETWEEN + 1)][-1]
        assert block.report().served["softmax"] > served
        (found,) = torch.autograd.grad(y.square().sum(), x)
        torch.testing.assert_close(found, torch.autograd.grad(F.softmax(x, 1).square().sum(), x)[0])


def test_a_long_block_binds_the_names_of_resting_groups_while_others_are_called(
    slow_x: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LONG", 50)
    rest(block := ctt.enable(rebind=True))
    weight = torch.ones(8)
    with torch.no_grad(), block:
        for _ in range(150):
            F.layer_norm(Y, (8,), weight, weight)
            F.softmax(Y, 1)
        assert block.report().served["softmax"] > faster.TIMED + 50


def test_threads_do_not_let_a_group_rest_for_ever() -> None:
    resting, switches = faster.Resting(), sys.getswitchinterval()
    for _ in range(faster.STREAK):
        resting.add("softmax", 0, False)
    awake: list[int] = []

    def enter() -> None:
        for _ in range(5000):
            awake.append(not resting.asleep(Counter(), False))
            if awake[-1]:
                resting.add("softmax", 0, False)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=enter) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switches)
    assert any(not resting.asleep(Counter(), False) for _ in range(faster.BETWEEN + 1))
    assert sum(awake) >= 8 * 5000 // (8 * (faster.BETWEEN + 1))


def test_a_compiled_program_keeps_the_operators_of_a_group_that_rests(
    slow_x: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_JOINED_BY_TORCH", ())
    programs = Programs()
    compiled = torch.compile(lambda x: F.softmax(x, 1) + 1, backend=programs, fullgraph=True)
    block, expected = ctt.enable(rebind=True), F.softmax(Y, 1) + 1
    for number in range(3 * faster.BETWEEN):
        with torch.no_grad(), block:
            torch.testing.assert_close(compiled(Y), expected)
            for _ in range((faster.TIMED + faster.STREAK) * (number == 0)):
                F.softmax(X, 1)
    assert programs.have("softmax") == [True]


def test_names_of_skipped_groups_are_not_bound() -> None:
    own, other = F.softmax, F.layer_norm
    with ctt.enable(rebind=True, skip=["softmax"]):
        assert F.softmax is own
        assert F.layer_norm is not other
        with ctt.enable(rebind=True):
            assert F.softmax is not own
    assert F.softmax is own


class _Counted(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func is F.softmax
        return func(*args, **(kwargs or {}))


def test_modes_of_others_do_not_see_a_measurement() -> None:
    counts = []
    for runs in (2 * faster.TIMED, 2):
        with torch.no_grad(), _Counted() as mode, ctt.enable() as block:
            for _ in range(runs):
                F.softmax(X, 1)
        counts.append(mode.calls - block.report().left.total())
    assert counts == [0, 0]


def test_calls_that_are_served_between_end_a_streak(block: ctt.enable, timed: list[Any]) -> None:
    for _ in range(faster.TIMED):
        F.softmax(X, 1)
    for _ in range(2 * faster.STREAK // faster.TIMED):
        for number in range(faster.TIMED):  # of another one, which is not timed yet
            F.softmax(X, 1)
            F.softmax(X.flatten(number % 3), 0) if number % 2 else F.softmax(X[:1], 1)
    assert not block._resting._left


class Clock:
    """Time that calls and the device take; ``behind`` is when the device has finished."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.behind = 0.0
        monkeypatch.setattr(faster.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(streams, "wait", self.wait)

    def wait(self, _: object) -> None:
        self.now = max(self.now, self.behind)

    def call(self, host: float, device: float) -> Callable[[], None]:
        def run() -> None:
            self.now += host
            self.behind = max(self.behind, self.now) + device

        return run


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((10, 1), (9, 1), True),
        ((9, 1), (10, 1), False),
        ((20, 3), (5, 30), False),  # the device takes longer
        ((5, 30), (20, 3), True),
        ((7, 7), (7, 7), False),
    ],
)
def test_the_longer_of_host_and_device_is_compared(
    monkeypatch: pytest.MonkeyPatch, ours: Any, theirs: Any, expected: bool
) -> None:
    clock = Clock(monkeypatch)
    calls = [clock.call(*(number * 1e-6 for number in one)) for one in (ours, theirs)]
    assert faster.torch_is_faster(*calls, streams.default_stream(0)) is expected


def test_a_measurement_of_long_calls_ends_after_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = Clock(monkeypatch), []
    calls = [clock.call(1e-6, 0.02), clock.call(1e-6, 0.01)]
    assert faster.torch_is_faster(
        *[lambda one=one: (ran.append(1), one()) for one in calls], streams.default_stream(0)
    )
    assert len(ran) == 2 * 2 * faster.CALLS
