"""algo="online": later calls try other candidates, until the fastest is known; on the fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct._config import config
from cudnn_ct.autotune import benchmark as agreement
from cudnn_ct.autotune.store import store
from cudnn_ct.errors import AllocationError, ExecutionFailedError
from cudnn_ct.ops._call import execute
from cudnn_ct.ops._replay import REPEATS
from cudnn_ct.plans.base import AlgoRequest
from tests.mixed import in_thread

from . import test_agreement
from .conftest import forget
from .cudnn import FakeCudnn
from .host import Host
from .test_algorithms import operands, ran
from .test_conv import images
from .test_selection import Doubling, operation

MANY = 12  # calls, more than there are candidates


def online(fake: FakeCudnn, **keywords: Any) -> str:
    return ran(fake, algo="online", **keywords)


def how() -> str:
    return next(line for line in ct.last_plan().describe().splitlines() if "how: " in line)


@pytest.fixture
def slow(fake: FakeCudnn) -> FakeCudnn:
    """The heuristic choice is the slowest algorithm."""
    fake.costs = {"GEMM": 9.0}
    return fake


def settle(fake: FakeCudnn) -> str:
    """Make calls until nothing is left to try; return the algorithm of the next call."""
    for _ in range(MANY):
        online(fake)
        if "settled" in how():
            return online(fake)
    raise AssertionError(how())


def test_first_call_runs_the_heuristic_choice_alone(slow: FakeCudnn) -> None:
    assert online(slow) == "GEMM"
    assert [name for name in slow.names() if name == "cudnnConvolutionForward"] == ["cudnnConvolutionForward"]
    assert how() == "  how: online"


def test_later_calls_find_the_fastest(slow: FakeCudnn) -> None:
    assert settle(slow) == "IMPLICIT_GEMM"
    slow.calls.clear()
    online(slow)
    assert slow.names().count("cudnnConvolutionForward") == 1  # nothing is timed any more
    assert ct.last_plan().candidate.time_ms is not None


def test_every_call_has_the_right_result_once(slow: FakeCudnn) -> None:
    x, w = operands()
    out, wanted = ct.full((2, 4, 3, 4), 2.0), ct.reference.conv(x.numpy(), w.numpy())
    for count in range(1, MANY):
        ct.conv(x, w, out=out, beta=1, algo="online")
        np.testing.assert_array_equal(out.numpy(), count * wanted + 2)


def test_nothing_is_tried_in_a_capture(slow: FakeCudnn, host: Host) -> None:
    x, w = operands()
    out = ct.empty((2, 4, 3, 4))
    ct.conv(x, w, out=out, algo="online", stream=0x77)
    host.capturing.add(0x77)
    for _ in range(3):
        ct.conv(x, w, out=out, algo="online", stream=0x77)
    assert how() == "  how: online"


def test_deterministic_calls_stay_with_the_heuristic_choice(slow: FakeCudnn) -> None:
    assert {online(slow, deterministic=True) for _ in range(MANY)} == {"GEMM"}
    assert how() == "  how: heuristic"


def test_threads_share_what_is_settled(slow: FakeCudnn) -> None:
    settle(slow)
    assert in_thread(online, slow) == "IMPLICIT_GEMM"


def test_another_process_begins_with_what_was_settled(slow: FakeCudnn, on_disk: Path) -> None:
    settle(slow)
    forget()
    assert online(slow) == "IMPLICIT_GEMM"
    assert "as the cache file has it" in how()
    assert ran(slow, algo="autotune") == "IMPLICIT_GEMM"
    assert "as the cache file has it" in how()


def test_budget_ends_the_trials(slow: FakeCudnn, on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow.engines = True
    monkeypatch.setattr(config, "online_seconds", 1e-9)
    x, w = operands()
    rows = []
    for _ in range(4):
        ct.conv(x, w, algo="online")
        rows.append(ct.last_plan().candidate)
    assert "2 candidates tried, settled" in how()
    assert len({row.algorithm for row in rows[2:] if row}) == 1
    assert not store().export()


def test_lack_of_memory_ends_the_trials(slow: FakeCudnn, host: Host) -> None:
    x, w = operands()
    out = ct.empty((2, 4, 3, 4))
    ct.conv(x, w, out=out, algo="online")
    host.limit = host.used()
    for _ in range(3):
        ct.conv(x, w, out=out, algo="online")
    np.testing.assert_array_equal(out.numpy(), ct.reference.conv(x.numpy(), w.numpy()))


# --- candidates that fail, have other results, or are many: a doubling with invented engines ---


class Source(test_agreement.Source):
    """Candidates in the order of the heuristics, each faster than the one before it."""

    def __init__(self, host: Host, names: tuple[str, ...]) -> None:
        super().__init__(host, names)
        self.errors: dict[str, Exception] = {}  # of the runs of a candidate
        self.enough = 0  # the address of results for which memory suffices
        self.made: list[str] = []
        self.ran: list[str] = []

    def heuristics(self, problem: Any) -> Any:
        return [lambda where: self.autotune_candidates(problem, where, AlgoRequest())]

    def plan(self, problem: Any, candidate: Any, where: Any) -> Any:
        self.made.append(candidate.algorithm)
        plan = super().plan(problem, candidate, where)
        inner = plan.run

        def run(*arguments: Any) -> None:
            self.ran.append(candidate.algorithm)
            if candidate.algorithm in self.errors and arguments[1][-1] != self.enough:
                raise self.errors[candidate.algorithm]
            inner(*arguments)

        plan.run = run  # type: ignore[method-assign]
        return plan


class Doubled:
    """Online calls of a doubling on the same memory."""

    def __init__(self, host: Host, *names: str, problem: type[Doubling] = Doubling) -> None:
        self.source = Source(host, names)
        self.x, self.out = images(4, 3), ct.empty((4, 3))
        self._op = operation(self.source, kind=problem, check=lambda _: None)

    def __call__(self, count: int = 1) -> str:
        """Make calls whose results are checked; return the algorithm of the last one."""
        for _ in range(count):
            execute(self._op, ("x",), (self.x,), ("online",), outs=(self.out,))
            np.testing.assert_allclose(self.out.numpy(), 2 * self.x.numpy(), 1e-3)
        return ct.last_plan().candidate.algorithm


def many(count: int) -> tuple[str, ...]:
    return tuple(f"engine {number}" for number in range(count))


def test_replays_begin_when_nothing_is_left_to_try(fake: FakeCudnn, host: Host) -> None:
    names = many(2 * REPEATS)
    double = Doubled(host, *names)
    assert double(len(names) + 2) == names[-1]
    assert how() == f"  how: online, {len(names)} candidates tried, settled, 500.0 us a call"
    assert "replayed" not in str(ct.last_plan().describe())
    double(REPEATS + 1)
    assert "replayed for 1 set of pointers" in ct.last_plan().describe()


def test_results_of_a_call_stay_when_memory_for_a_trial_lacks(
    fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise AllocationError("no memory is left")

    monkeypatch.setattr(agreement, "ScratchResults", no_memory)
    double = Doubled(host, "right", "wrong")
    assert double(3) == "right"
    assert double.source.ran == ["right"] * 3


def test_results_of_a_call_stay_when_a_trial_lacks_workspace(fake: FakeCudnn, host: Host) -> None:
    double = Doubled(host, "right", "wrong")
    double.source.errors["wrong"] = AllocationError("no memory is left")
    double.source.enough = double.out.pointer
    assert double(4) == "right"


def test_heuristic_choice_stays_when_its_trial_lacks_memory(fake: FakeCudnn, host: Host) -> None:
    double = Doubled(host, "right", "close")
    double()
    runs = iter([None, AllocationError("no memory is left")])
    make = double.source.plan

    def plan(problem: Any, candidate: Any, where: Any) -> Any:
        double.source.errors = {"right": error} if (error := next(runs, None)) else {}
        return make(problem, candidate, where)

    double.source.plan = plan
    next(runs)
    double()
    double.source.errors = {}
    assert double(2) == "right"
    assert "rejected" not in ct.last_plan().describe()


class Random(Doubling):
    """Candidates draw other numbers: a trial would change those that later calls draw."""

    random = True


def test_random_numbers_are_drawn_once_for_each_call(fake: FakeCudnn, host: Host) -> None:
    double = Doubled(host, "right", "close", problem=Random)
    assert double(4) == "right"
    assert double.source.ran == ["right"] * 4
    assert how() == "  how: heuristic"


def test_candidate_that_failed_in_a_call_is_not_tried_again(fake: FakeCudnn, host: Host) -> None:
    double = Doubled(host, "failing", "right", "close")
    double.source.errors["failing"] = ExecutionFailedError("it failed")
    with pytest.warns(ct.CudnnWarning, match="failing .* failed: it failed"):
        double()
    assert double(4) == "close"
    assert double.source.ran.count("failing") == 1
    assert "2 candidates tried, settled" in how()


def test_calls_are_usual_when_the_fastest_candidate_fails_later(fake: FakeCudnn, host: Host) -> None:
    double = Doubled(host, "right", "close", "near")
    assert double(5) == "near"
    double.source.errors["near"] = ExecutionFailedError("it failed")
    with pytest.warns(ct.CudnnWarning, match="near .* failed: it failed"):
        assert double() == "close"
    double.source.made.clear()
    assert [in_thread(double, 3)] == double.source.made == ["close"]


def test_nothing_is_stored_when_a_candidate_lacked_memory(fake: FakeCudnn, host: Host, on_disk: Path) -> None:
    double = Doubled(host, "right", "short", "close")
    double()
    double.source.errors["short"] = AllocationError("no memory is left")
    assert double(4) == "close"
    assert not store().export()


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("right", "wrong", "close"), "close"),
        (("right", "close", "wrong", "wrong knobs 1", "wrong knobs 2"), "close"),
        (("right", "close", "wrong", "half"), "close"),
    ],
)
def test_candidates_with_other_results_are_rejected(
    fake: FakeCudnn, host: Host, names: tuple[str, ...], chosen: str
) -> None:
    double = Doubled(host, *names)
    assert double(len(names) + 2) == chosen
    assert "its result differs from that of graph" in ct.last_plan().describe()


def test_time_of_the_heuristic_choice_is_shown_when_it_is_the_fastest(fake: FakeCudnn, host: Host) -> None:
    fake.costs = {"IMPLICIT_GEMM": 9.0, "DIRECT": 9.0}
    assert settle(fake) == "GEMM"
    assert ct.last_plan().candidate.time_ms is not None


def test_nothing_is_tried_when_the_budget_is_zero(slow: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "online_seconds", 0)
    assert {online(slow) for _ in range(4)} == {"GEMM"}
    assert slow.names().count("cudnnConvolutionForward") == 1
    assert how() == "  how: online, no other candidates tried, settled"
