"""Selection for any operation: an invented one with an erratum and stored choices. On the fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import algo_cache, context, testing
from cudnn_ct.algo_cache import CandidateSource
from cudnn_ct.autotune.store import store
from cudnn_ct.context import Context
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.ops._call import execute
from cudnn_ct.ops._operation import Operation, Select
from cudnn_ct.plans.base import AlgoRequest, Candidate, Heuristic, request
from cudnn_ct.plans.elementwise import copy_plan
from cudnn_ct.shapes.specs import TensorSpec

from .cudnn import FakeCudnn
from .host import Host
from .test_conv import images


class Doubling(NamedTuple):
    """The problem y = 2 x."""

    x: TensorSpec
    y: TensorSpec
    scaled: str = ""
    aligned: bool = True

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        return (self.y,)


COSTS = {"wrong for rows": 0.1, "slow": 8.0, "fast": 1.0}  # milliseconds; also the order of the heuristics


def why_wrong(name: str, problem: Doubling) -> str:
    return "doubles only once" if name == "wrong for rows" and len(problem.x.shape) == 1 else ""


class Plan:
    """A copy with a factor, which takes as long as its algorithm does."""

    def __init__(self, problem: Doubling, candidate: Candidate, host: Host) -> None:
        self.candidate, self._copy, self._host = candidate, copy_plan(problem.x, problem.y), host
        self.workspace = 0

    def run(self, where: Context, pointers: Any, alpha: float, beta: float) -> None:
        self._copy.run(where, pointers, 2 * alpha, beta)
        self._host.spend(where.stream.handle, COSTS[self.candidate.algorithm])

    def describe(self) -> str:
        return f"chosen: {self.candidate}"


class Source(CandidateSource):
    """The candidates of the operation, as `algo_cache` takes them."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def rows(self, problem: Doubling) -> list[Candidate]:
        return [
            Candidate("legacy", name, "fma", 0, True, rejected=why_wrong(name, problem)) for name in COSTS
        ]

    def heuristics(self, problem: Doubling) -> list[Heuristic]:
        return [lambda _: self.rows(problem)]

    def autotune_candidates(
        self, problem: Doubling, context: Context, wanted: AlgoRequest
    ) -> list[Candidate]:
        return self.rows(problem)

    def by_name(self, problem: Doubling, name: str) -> tuple[list[Heuristic], list[Heuristic]]:
        return [lambda _: [row for row in self.rows(problem) if row.algorithm == name]], self.heuristics(
            problem
        )

    def plan(self, problem: Doubling, candidate: Candidate, where: Context) -> Plan:
        wrong = why_wrong(candidate.algorithm, problem)
        if wrong or candidate.algorithm not in COSTS:
            raise NotSupportedError(wrong or f"algorithm {candidate.algorithm!r} does not exist")
        return Plan(problem, candidate, self._host)


def check_name(name: str) -> None:
    if name not in COSTS:
        raise ValueError(f"algo is unknown: got {name!r}, expected one of {', '.join(COSTS)}")


def operation(
    source: Any, name: str = "a doubling", kind: Any = Doubling, check: Any = check_name
) -> Operation:
    """Return an operation on one array, whose candidates are those of a source."""

    def problem(specs: Any, outs: Any, algo: Any, *, scaled: str, aligned: bool) -> Doubling:
        return kind(specs["x"], outs[0] or specs["x"], scaled, aligned)

    def select(problem: Doubling, params: tuple[Any, ...]) -> Select:
        wanted = request(params[0], False, None, False, problem, check)
        return lambda where: algo_cache.select(problem, source, where, wanted)

    return Operation(name, problem, select=select)


@pytest.fixture
def double(fake: FakeCudnn, host: Host) -> Any:
    """A function that doubles an array, and returns the selected algorithm."""
    op = operation(Source(host))

    def call(algo: Any = "heuristic", shape: tuple[int, ...] = (2, 3), **scaling: Any) -> str:
        x = images(*shape)
        out = scaling.pop("out", None)
        (y,) = execute(op, ("x",), (x,), (algo,), outs=(out,), **scaling)
        np.testing.assert_array_equal(y.numpy(), 2 * x.numpy() * scaling.get("alpha", 1))
        return ct.last_plan().candidate.algorithm

    return call


def test_selection_takes_the_first_candidate_without_an_erratum(double: Any) -> None:
    assert double() == "wrong for rows"
    assert double(shape=(7,)) == "slow"
    assert double("fast", shape=(7,)) == "fast"
    assert double(alpha=3) == "wrong for rows"
    with pytest.warns(ct.CudnnWarning, match="fell back to legacy slow .*: doubles only once"):
        assert double("wrong for rows", shape=(7,)) == "slow"
    with pytest.raises(ValueError, match="algo is unknown: got 'none'"):
        double("none")


def test_selection_checks_a_candidate_of_the_caller_or_of_the_store(double: Any, on_disk: Path) -> None:
    row = Candidate("legacy", "wrong for rows", "fma", 0, True)
    assert double(row) == "wrong for rows"
    assert double(row._replace(algorithm="fast")) == "fast"
    with pytest.raises(NotSupportedError, match="doubles only once"):
        double(row, shape=(7,))
    other = Doubling(*[TensorSpec.packed((1, 1))] * 2)
    with pytest.raises(ValueError, match="was made for another problem"):
        double(row._replace(problem=other))
    double("autotune", shape=(7,))
    ((key, _),) = store().export().items()
    store().put(key, {"rows": [row._asdict()]})
    testing.reset()
    assert double("autotune", shape=(7,)) == "fast"


def test_selection_asks_again_for_another_device_or_request(fake: FakeCudnn, host: Host) -> None:
    asked: list[tuple[int, AlgoRequest]] = []

    class Counting(Source):
        def heuristics(self, problem: Doubling) -> list[Heuristic]:
            asked.append((device, wanted))
            return super().heuristics(problem)

    problem, plain = Doubling(*[TensorSpec.packed((2, 3))] * 2), AlgoRequest()
    changes = {"deterministic": True, "workspace_limit": 9, "strict": True, "max_engines": 3}
    changes |= {"compiled": False}
    requests = [plain, *(plain._replace(**{name: value}) for name, value in changes.items())]
    for device in (0, 1, 0, 1):
        with ct.use(device=device) as stream, streams.on_device(device):
            for wanted in requests:
                algo_cache.select(problem, Counting(host), context.current(stream), wanted)
    assert asked == [(device, wanted) for device in (0, 1) for wanted in requests]


class Twin(Doubling):
    """Another problem, equal as a tuple."""


def test_selection_shares_nothing_among_problems_of_two_operations(fake: FakeCudnn, host: Host) -> None:
    spec = TensorSpec.packed((2, 3))
    assert Twin(spec, spec) == Doubling(spec, spec)
    here = context.current(streams.default_stream(0))
    for problem in (Doubling(spec, spec), Twin(spec, spec)):
        algo_cache.select(problem, Source(host), here, AlgoRequest())
    assert testing.cache_sizes()["decisions"].entries == 2
