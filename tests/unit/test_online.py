"""The candidates that calls try one after another: which is the fastest, and which results are right."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import pytest

from cudnn_ct._config import config
from cudnn_ct.autotune.benchmark import DifferentResultError
from cudnn_ct.autotune.measurement import Exploration
from cudnn_ct.errors import AllocationError, CudnnError
from cudnn_ct.plans.base import Candidate

TIMES = {"first": 3.0, "slow": 9.0, "quick": 1.0, "good": 2.0}


def row(name: str) -> Candidate:
    return Candidate("graph", name, "fma", 0, True)


Timing = Callable[[Sequence[Candidate]], tuple[list[Candidate], list[CudnnError]]]


def timing(results: Mapping[str, int]) -> Timing:
    """Time candidates by :data:`TIMES`. The results of most are right, or that of the first."""

    def timed(rows: Sequence[Candidate]) -> tuple[list[Candidate], list[CudnnError]]:
        found = [results.get(one.algorithm, 0) for one in rows]
        right = max(found, key=lambda result: (found.count(result), -found.index(result)))
        failures: list[CudnnError] = [DifferentResultError("other numbers") for one in found if one != right]
        made = [
            one._replace(time_ms=TIMES[one.algorithm], rejected="" if result == right else "other numbers")
            for one, result in zip(rows, found, strict=True)
        ]
        return made, failures

    return timed


def explored(timed: Timing) -> Exploration:
    state = Exploration()
    for _ in range(9):
        with state.turn(threading.RLock()) as mine:
            if mine:
                current = state.tried[0] if state.tried else row("first")
                state.step(current, lambda: [row(name) for name in TIMES], timed)
    assert state.settled
    return state


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ({}, "quick"),
        ({"quick": 1}, "good"),  # one other result: the first is right
        ({"quick": 1, "good": 1}, "first"),  # "slow" has confirmed the first
        ({"slow": 1, "quick": 1}, "quick"),  # two other results are right
        ({"first": 1}, "quick"),
        ({"slow": 1, "quick": 2, "good": 3}, "first"),
    ],
)
def test_fastest_candidate_with_the_right_result_is_the_best(results: dict[str, int], best: str) -> None:
    state = explored(timing(results))
    assert state.tried[0].algorithm == best
    assert {one.algorithm for one in state.tried} == set(TIMES)
    assert state.complete
    assert bool(state.failures) == bool(results)


def test_candidates_are_timed_once_beside_the_best() -> None:
    asked: list[list[str]] = []

    def timed(rows: Sequence[Candidate]) -> tuple[list[Candidate], list[CudnnError]]:
        asked.append([one.algorithm for one in rows])
        return timing({})(rows)

    explored(timed)
    assert asked == [["first", "slow"], ["first", "quick"], ["quick", "good"]]


def test_first_call_and_other_threads_have_no_turn() -> None:
    state, lock, turns = Exploration(), threading.RLock(), list[bool]()

    def take() -> None:
        with state.turn(lock) as mine:
            turns.append(mine)

    take()
    with state.turn(lock) as mine:
        assert mine
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    take()
    assert turns == [False, False, True]


def test_budget_and_errors_end_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "online_seconds", 1e-9)
    state = Exploration()
    state.step(row("first"), lambda: [row(name) for name in TIMES], timing({}))
    assert (state.settled, state.complete) == (True, False)

    def short(_: Sequence[Candidate]) -> tuple[list[Candidate], list[CudnnError]]:
        raise AllocationError("no memory")

    state = Exploration()
    state.step(row("first"), lambda: [row("slow")], short)
    assert (state.settled, state.complete, state.tried) == (True, False, [])
