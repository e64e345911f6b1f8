"""The benchmark of autotuning, on clocks that the tests set, and candidates that calls try in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct._config import config
from cudnn_ct.autotune import benchmark, measurement
from cudnn_ct.autotune.benchmark import DifferentResultError
from cudnn_ct.autotune.measurement import Exploration
from cudnn_ct.cuda.stream import LEGACY_DEFAULT, Stream
from cudnn_ct.errors import AllocationError, CudnnError, NotSupportedError
from cudnn_ct.plans.base import Candidate

STREAM = Stream(LEGACY_DEFAULT, 0)
CACHE = 2**26  # bytes
LOAD = 20.0  # milliseconds of the host, the first time that something runs


GLANCES = 5  # runs of what is not slow: to load, one by itself, with a cold cache, two in a row
FILL = 0.05  # milliseconds of the device to empty the cache


class Way(NamedTuple):
    """Something to time: milliseconds on the device, on the host to enqueue it, more with a cold cache."""

    device: float
    host: float = 0.01
    cold: float = 0.0


# A candidate: its times, the error that it raises, or a function of the number of its earlier runs.
Timed = Way | Exception | Callable[[int], Way | Exception]


class Clocks:
    """A host, and a device that works on what it is given one after the other."""

    def __init__(self) -> None:
        self.now = 0.0  # of the host
        self.over = 0.0  # when the device will be done
        self.count: dict[int, int] = {}
        self.noise: Callable[[], float] = lambda: 1.0
        self.cold = True
        self.free = 2**40  # bytes

    def run(self, number: int, way: Way) -> None:
        self.count[number] = self.count.get(number, 0) + 1
        self.now += way.host + (LOAD if self.count[number] == 1 else 0)
        busy = (way.device + (way.cold if self.cold else 0)) * self.noise()
        self.over = max(self.over, self.now) + busy
        self.cold = False

    def allocate(self, nbytes: int, stream: Any, what: str) -> Any:
        if nbytes > self.free:
            raise AllocationError(f"{nbytes} bytes wanted for {what}")
        return SimpleNamespace(handle=4096)

    def fill(self, pointer: int, pattern: bytes, count: int, stream: Any) -> None:
        assert (pointer, count * len(pattern)) == (4096, benchmark.L2_FLUSH_FACTOR * CACHE)
        self.over = max(self.over, self.now) + FILL
        self.cold = True

    def synchronize(self, stream: Any) -> None:
        self.now = self.over = max(self.now, self.over)

    def elapsed(self, stream: Any, work: Callable[[], None]) -> float:
        begin = max(self.now, self.over)
        work()
        self.synchronize(stream)
        return self.now - begin

    def race(
        self,
        ways: list[Timed],
        kinds: tuple[benchmark.EngineGroup, ...] = (),
        captured: Callable[[benchmark.Run], benchmark.Run] | None = None,
    ) -> list[Any]:
        def one(number: int, way: Timed) -> Callable[[], None]:
            def run() -> None:
                current = way(self.count.get(number, 0)) if callable(way) else way
                if isinstance(current, Exception):
                    raise current
                self.run(number, current)

            return run

        return benchmark.benchmark([one(*pair) for pair in enumerate(ways)], STREAM, kinds, captured=captured)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the device and of the host's clock."""
        monkeypatch.setattr(benchmark, "perf_counter", lambda: self.now / 1000)
        monkeypatch.setattr(benchmark.events, "elapsed", self.elapsed)
        monkeypatch.setattr(benchmark.streams, "cache_size", lambda device: CACHE)
        monkeypatch.setattr(benchmark.memory, "memory_info", lambda device: (self.free, self.free))
        monkeypatch.setattr(benchmark.memory, "fill", self.fill)
        monkeypatch.setattr(benchmark.allocator, "allocate", self.allocate)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    found.install(monkeypatch)
    return found


def place(times: list[Any]) -> int:
    """Return the index of the shortest time."""
    return min((time, i) for i, time in enumerate(times) if isinstance(time, float))[1]


@pytest.mark.parametrize(
    ("ways", "expected", "fastest"),
    [
        ([Way(0.5), Way(0.2), Way(0.21), Way(0.3), Way(0.05, host=0.4)], [0.5, 0.2, 0.21, 0.3, 0.4], 1),
        ([Way(0.1, cold=0.1), Way(0.12, cold=0.02), Way(0.14, cold=0.05)], [0.2, 0.14, 0.19], 1),
        ([Way(0.01, host=0.03, cold=0.01), Way(0.01, host=0.025, cold=0.01)], [0.03, 0.025], 1),
    ],
    ids=["loading is not counted", "cold cache", "host with a cold cache"],
)
def test_benchmark_returns_the_longer_of_calls_in_a_row_and_cold_calls(
    clocks: Clocks, ways: list[Way], expected: list[float], fastest: int
) -> None:
    times = clocks.race([*ways])
    assert times == pytest.approx(expected, rel=0.3)
    assert times[fastest] == pytest.approx(expected[fastest], rel=0.15)
    assert place(times) == fastest


def test_short_runs_are_timed_as_graphs(clocks: Clocks) -> None:
    launches = {0: Way(0.07, host=0.002), 1: Way(0.1, host=0.002)}
    asked: list[benchmark.Run] = []

    def captured(run: benchmark.Run) -> benchmark.Run:
        place = len(asked)
        asked.append(run)
        return lambda: clocks.run(10 + place, launches[place])

    times = clocks.race([Way(0.07, host=0.6), Way(0.1, host=0.05), Way(5.0)], captured=captured)
    assert len(asked) == 2
    assert times == pytest.approx([0.07, 0.1, 5.0], rel=0.1)
    assert clocks.race([Way(0.07, host=0.6)]) == pytest.approx([0.6], rel=0.1)


def test_benchmark_runs_a_slow_candidate_once(clocks: Clocks) -> None:
    times = clocks.race([Way(0.1), Way(100.0), Way(0.5), Way(0.001, host=30.0)])
    assert clocks.count[1] == 1
    assert clocks.count[2] == 2  # by less than a host may stumble
    assert times[1] == pytest.approx(100.0, rel=0.01)
    assert times[3] == pytest.approx(30.0, rel=0.01)


def kinds(*names: str) -> tuple[benchmark.EngineGroup, ...]:
    """Engines have lowercase names, legacy calls have capitals."""
    return tuple(benchmark.EngineGroup("legacy" if name.isupper() else "graph", name) for name in names)


def test_benchmark_skips_variants_of_an_engine_that_is_slow(clocks: Clocks) -> None:
    ways = [Way(9.0), Way(0.1), Way(9.0), Way(0.12), Way(0.2), Way(0.11), Way(0.2), Way(0.05)]
    times = clocks.race([*ways], kinds("a", "b", "a", "c", "d", "c", "d", "d"))
    assert [place for place, time in enumerate(times) if time is None] == [2, 6, 7]
    assert clocks.count[4] == 2
    assert clocks.count[5] >= GLANCES
    assert all(isinstance(time, float) for time in clocks.race([*ways]))


def test_benchmark_tries_few_variants_where_they_gain_little(clocks: Clocks) -> None:
    for brief, tried in ((True, benchmark.BRIEF_TRIALS), (False, 8)):
        ways = [Way(benchmark.BRIEF_MS * (0.5 if brief else 1.5))] * 8
        times = clocks.race([*ways, Way(0.01)], kinds(*"aaaaaaaa", "b"))
        assert sum(time is not None for time in times[:8]) == tried
        assert place(times) == 8, "other engines are tried"


def test_few_engines_are_compiled_where_others_suffice() -> None:
    def row(name: str, compiled: bool = False, **more: Any) -> Candidate:
        notes = ("runtime_compilation",) if compiled else ()
        return Candidate("graph", name, "any", more.pop("workspace", 0), True, notes=notes, **more)

    ready = [row(f"engine {number}") for number in range(measurement.ENOUGH)]
    compiled = [row(f"engine {number}", True) for number in range(20, 40)]
    assert measurement.to_time([*ready[1:], *compiled]) == [*ready[1:], *compiled]
    assert measurement.to_time([*compiled, *ready]) == [*compiled[: measurement.FEW], *ready]
    assert measurement.to_time([*ready, row("rejected", rejected="so"), *compiled[:2], *ready, *compiled])[
        : len(ready) + 2
    ] == [*ready, *compiled[:2]]
    early = [*ready, *(row(f"engine {number}") for number in range(50, 50 + measurement.EARLY))]
    assert measurement.to_time([*early, *compiled]) == early


def test_first_variants_are_timed_before_further_ones_and_large_workspaces() -> None:
    names = ["engine 1 knobs 2=0", "engine 1 knobs 2=1", "engine 3", "engine 1 knobs 2=2", "engine 4"]
    rooms = [0, 0, measurement.LARGE_WORKSPACE + 1, 0, 0]
    rows = [Candidate("graph", name, "any", room, True) for name, room in zip(names, rooms, strict=True)]
    assert [rows.index(row) for row in measurement.to_time(rows)] == [0, 4, 1, 3, 2]


def test_benchmark_skips_new_groups_of_a_family_after_several_slow_ones(clocks: Clocks) -> None:
    names = "abcdefghij"[: benchmark.FAR_BEHIND_LIMIT]
    pruned = [Way(9.0)] * benchmark.FAR_BEHIND_LIMIT
    times = clocks.race([Way(0.1), *pruned, Way(0.05)], kinds("first", *names, "new"))
    assert times[-1] is None
    assert place(times) == 0
    times = clocks.race([Way(0.1), *pruned, Way(0.05)], kinds("first", *names, "ALGO_1"))
    assert place(times) == len(times) - 1, "groups of another family are measured"
    times = clocks.race([Way(0.1), *pruned, Way(0.09), Way(0.05)], kinds("first", *names, "first", "new"))
    assert place(times) == len(times) - 1, "a variant of a fast candidate resets the count"
    times = clocks.race([Way(0.1), *pruned, Way(0.05)], kinds("first", *[names[0]] * len(names), "new"))
    assert place(times) == len(times) - 1, "variants of one group count once"


def test_benchmark_prunes_nothing_when_the_host_is_descheduled_around_each_sample(clocks: Clocks) -> None:
    elapsed = clocks.elapsed

    def stumbling(stream: Any, work: Callable[[], None]) -> float:
        clocks.now += 7.0  # before the first event
        time = elapsed(stream, work)
        clocks.now += 5.0  # before Python goes on
        return time

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark.events, "elapsed", stumbling)
        times = clocks.race([Way(0.05)] * 8, kinds(*"abcdefgh"))
    assert times == pytest.approx([0.05] * 8, rel=0.3)
    assert set(clocks.count.values()) == {clocks.count[0]}, "all were looked at alike"


def test_benchmark_returns_errors_and_does_not_prune_their_groups(clocks: Clocks) -> None:
    error = NotSupportedError("no")
    times = clocks.race([error, Way(0.1), error, Way(0.11)], kinds("a", "b", "b", "a"))
    assert times[0] is times[2] is error
    assert place(times) == 1
    assert clocks.race([error, error]) == [error, error]


def test_benchmark_drops_a_candidate_that_falls_behind_in_a_round(clocks: Clocks) -> None:
    times = clocks.race([Way(0.1), Way(0.12), Way(0.104)])
    calls = int(benchmark.ROUND / 0.11) + benchmark.COLD_SAMPLES
    assert clocks.count[1] == GLANCES + calls
    assert clocks.count[0] == clocks.count[2] == GLANCES + benchmark.ROUNDS * calls
    assert place(times) == 0


@pytest.mark.parametrize("free", [2**30, 2**40])
def test_benchmark_measures_with_a_warm_cache_when_memory_is_short(
    clocks: Clocks, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks.free = CACHE  # another process may have been quicker
    monkeypatch.setattr(benchmark.memory, "memory_info", lambda device: (free, free))
    times = clocks.race([Way(0.1, cold=0.1), Way(0.12, cold=0.02)])
    assert times == pytest.approx([0.1, 0.12], rel=0.15)
    assert place(times) == 0


@pytest.mark.parametrize("place_of_quick", [0, 1])
@pytest.mark.parametrize("disturbed", range(6))
def test_benchmark_keeps_the_fastest_when_one_sample_is_disturbed(
    clocks: Clocks, disturbed: int, place_of_quick: int
) -> None:
    """The host is away for 5 ms between the event and the call."""
    ways: list[Timed] = [Way(0.1, cold=0.01), Way(0.11)]
    ways.insert(place_of_quick, lambda n: Way(0.05, 0.01 + 5.0 * (n == disturbed), cold=0.01))
    times = clocks.race(ways, kinds("a", "b", "c"))
    assert place(times) == place_of_quick
    assert None not in times


ROUND_CALLS = int(benchmark.ROUND / 0.11) + benchmark.COLD_SAMPLES


@pytest.mark.parametrize(
    ("ways", "fastest"),
    [
        ([Way(1.15), lambda n: Way(1.0 if n < GLANCES else 1.3)], 1),
        ([lambda n: Way(0.14 if GLANCES <= n < GLANCES + ROUND_CALLS else 0.1), Way(0.105)], 0),
    ],
    ids=["the winner became slower", "one round was disturbed"],
)
def test_benchmark_keeps_the_winner_when_its_later_samples_are_slower(
    clocks: Clocks, ways: list[Timed], fastest: int
) -> None:
    assert place(clocks.race(ways)) == fastest


def test_benchmark_keeps_rejected_candidates_behind_when_the_clock_falls(clocks: Clocks) -> None:
    def slower(number: int, time: float) -> Timed:
        return lambda _: Way(time * (1.4 if clocks.count.get(0, 0) + (number == 0) > GLANCES else 1.0))

    times = clocks.race([slower(*pair) for pair in enumerate((0.1, 0.11, 0.13))])
    assert place(times) == 0
    assert sorted(times) == times


def test_benchmark_returns_the_error_of_a_candidate_that_fails_in_a_round(clocks: Clocks) -> None:
    error = NotSupportedError("no more memory")
    times = clocks.race([Way(0.11), Way(0.12), lambda n: error if n > GLANCES else Way(0.1)])
    assert times[2] is error
    assert place(times) == 0


@given(
    st.lists(st.floats(0.02, 50.0), min_size=1, max_size=12),
    st.lists(st.floats(0.97, 1.03), min_size=1, max_size=40),
)
def test_benchmark_finds_the_fastest_run_when_others_are_skipped(
    device: list[float], noise: list[float]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        found = Clocks()
        found.install(patch)
        values = iter(noise * 10_000)
        found.noise = lambda: next(values)
        times = found.race([Way(one) for one in device])
    assert device[place(times)] <= 1.07 * min(device)
    assert all(isinstance(time, float) for time in times)


# --- candidates that calls try one after another -----------------------------------------------------------


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
