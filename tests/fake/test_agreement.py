"""Timed candidates whose results differ from those of the other engines. On the fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.autotune import benchmark as agreement
from cudnn_ct.autotune.store import store
from cudnn_ct.context import Context
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import AllocationError, NotSupportedError
from cudnn_ct.ops._call import execute
from cudnn_ct.plans.base import (
    TOLERANCE,
    AlgoRequest,
    Candidate,
    Heuristic,
    difference,
    tolerance_of,
)
from cudnn_ct.plans.elementwise import copy_plan
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import TensorSpec

from .host import ForeignArray, Host
from .test_conv import images
from .test_selection import Doubling, operation

pytestmark = pytest.mark.usefixtures("fake")


class Plan:
    """A copy with a factor, and with the error that its algorithm is named after."""

    workspace = 0

    def __init__(self, problem: Doubling, candidate: Candidate, host: Host, cost: float) -> None:
        self._error, self._cost, self._host = candidate.algorithm.partition(" knobs")[0], cost, host
        self._copy = copy_plan(problem.x, problem.y)
        n = problem.x.shape[0] // 2
        half = [spec._replace(shape=(n, *spec.shape[1:])) for spec in (problem.x, problem.y)]
        self._half = copy_plan(*half)

    def run(self, where: Context, pointers: Any, alpha: float, beta: float) -> None:
        self._host.spend(where.stream.handle, self._cost)
        if self._error == "nothing":
            return
        copy = self._half if self._error == "half" else self._copy
        factor = {"wrong": 3, "close": 2.0001}.get(self._error, 2)
        copy.run(where, pointers, factor * alpha, 1.0 if self._error == "adds" else beta)

    def describe(self) -> str:
        return self._error


class Source:
    """Candidates in the given order, each faster than the one before it."""

    def __init__(self, host: Host, names: tuple[str, ...]) -> None:
        self._host, self._names = host, names

    def autotune_candidates(self, problem: Doubling, where: Context, wanted: AlgoRequest) -> list[Candidate]:
        return [Candidate("graph", name, "fma", 0, True) for name in self._names]

    def heuristics(self, problem: Doubling) -> list[Heuristic]:
        return []

    def by_name(self, problem: Doubling, name: str) -> tuple[list[Heuristic], list[Heuristic]]:
        return [], []

    def plan(self, problem: Doubling, candidate: Candidate, where: Context) -> Plan:
        return Plan(problem, candidate, self._host, 2.0 - 0.1 * self._names.index(candidate.algorithm))


def autotuned(host: Host, names: tuple[str, ...], x: Any = None, **arguments: Any) -> tuple[Any, str, str]:
    """Return the doubled operand, the algorithm of the plan, and its description."""
    op = operation(Source(host, names), check=lambda _: None)
    outs = (arguments.pop("out", None),)
    (y,) = execute(op, ("x",), (images(4, 3) if x is None else x,), ("autotune",), outs=outs, **arguments)
    plan = ct.last_plan()
    return y, plan.candidate.algorithm, plan.describe()


@pytest.mark.parametrize("error", ["wrong", "nothing", "adds", "half"])
def test_fastest_candidate_is_rejected_when_its_result_differs(host: Host, error: str) -> None:
    x = images(4, 3)
    y, chosen, description = autotuned(host, ("right", error), x)
    assert chosen == "right"
    np.testing.assert_array_equal(y.numpy(), 2 * x.numpy())
    assert f"rejected: graph {error} " in description
    assert "its result differs from that of graph right" in description


def test_candidate_within_the_tolerance_is_selected(host: Host) -> None:
    assert autotuned(host, ("right", "close"))[1] == "close"


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("wrong", "right", "close"), "close"),  # two engines are right
        (("right", "close knobs 1", "wrong knobs 1", "wrong knobs 2", "wrong knobs 3"), "close knobs 1"),
        (
            ("right", "wrong knobs 1", "wrong knobs 2"),
            "right",
        ),  # the first is right in a tie
        (("right",), "right"),
    ],
)
def test_most_engines_have_the_right_result(host: Host, names: tuple[str, ...], chosen: str) -> None:
    assert autotuned(host, names)[1] == chosen


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_results_are_compared_when_out_has_gaps(host: Host, beta: float) -> None:
    x = images(4, 3)
    memory = np.full((4, 6), 5, np.float32)
    out = ForeignArray(host, memory[:, ::2])
    y, chosen, _ = autotuned(host, ("right", "nothing", "half"), x, out=out, beta=beta)
    assert chosen == "right"
    np.testing.assert_array_equal(y.numpy(), 2 * x.numpy() + beta * 5)
    out.shape, out.byte_strides = memory.shape, memory.strides
    np.testing.assert_array_equal(out.numpy()[:, 1::2], np.full((4, 3), 5))


def test_samples_of_a_large_result_are_compared(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "BRIEF", {"samples": 16, "sample": 64})
    assert autotuned(host, ("right", "half"), images(64, 100))[1] == "right"


def test_results_are_not_compared_when_memory_for_them_lacks(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise AllocationError("no memory is left")

    x = images(4, 3)
    monkeypatch.setattr(agreement, "ScratchResults", no_memory)
    assert autotuned(host, ("right", "wrong"), x, out=images(4, 3))[1] == "wrong"


def test_choice_is_not_stored_when_results_differ(host: Host, on_disk: Path) -> None:
    """Other operands may have results that agree."""
    assert autotuned(host, ("right", "half"))[1] == "right"
    assert store().export() == {}
    assert autotuned(host, ("right", "close"), images(5, 3))[1] == "close"
    assert len(store().export()) == 1


def test_candidates_are_timed_without_scratch_memory_when_it_takes_that_of_workspaces(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, given = Plan.run, []

    def crowded(self: Plan, where: Context, pointers: Any, alpha: float, beta: float) -> None:
        given.append(pointers[-1])
        if pointers[-1] != out.pointer:
            raise AllocationError("no memory is left for a workspace")
        run(self, where, pointers, alpha, beta)

    out = images(4, 3)
    monkeypatch.setattr(Plan, "run", crowded)
    assert autotuned(host, ("right", "close"), out=out)[1] == "close"
    assert {out.pointer} < set(given)


def test_tolerance_counts_all_tensors_of_a_problem() -> None:
    x, w = TensorSpec.packed((2, 8, 4, 4), "float16"), TensorSpec.packed((8, 8, 1, 1), "float16")
    fused = FusedConv(conv_problem("forward", x, w))
    graph = ct.Graph(intermediate_dtype="bfloat16")
    a = graph.input((4, 8), "float32")
    built = graph.define(graph.exp(graph.relu(a)))
    found = [tolerance_of(agreement._tensors(problem)) for problem in (fused, fused.conv, built)]
    assert found == [TOLERANCE["float16"], TOLERANCE["float16"], TOLERANCE["bfloat16"]]


def test_random_problem_is_not_compared() -> None:
    spec = TensorSpec.packed((2, 3))

    class Random(Doubling):
        random = True

    assert agreement.comparable(Doubling(spec, spec))
    assert not agreement.comparable(Random(spec, spec))


def test_candidate_that_fails_in_the_comparison_is_rejected() -> None:
    def fail() -> None:
        raise NotSupportedError("the address is not aligned")

    spec = TensorSpec.packed((2, 3))
    with streams.on_device(0):
        scratch = agreement.ScratchResults(Doubling(spec, spec), (1, 2), streams.default_stream(0))
        errors = agreement.outliers(scratch, {0: lambda: None, 1: fail}, ["a", "b"], ["a", "b"])
    assert {place: str(error) for place, error in errors.items()} == {1: "the address is not aligned"}


def bytes_of(*values: float, dtype: str = "float32") -> list[np.ndarray]:
    return [np.array(values, dtype).view(np.uint8)]


@pytest.mark.parametrize(
    ("dtype", "ours", "others", "found"),
    [
        ("float32", (1.0, 2.0), (1.0, 2.001), ""),
        ("float32", (1.0, 2.0), (1.0, 2.1), "differs by 0.1"),
        ("float32", (1.0, np.nan), (1.0, np.nan), ""),
        ("float32", (1.0, np.nan), (1.0, 2.0), "NaN or infinity at other places"),
        ("float32", (1.0, np.inf), (1.0, -np.inf), "NaN or infinity at other places"),
        ("int8", (3, 100), (3, 101), ""),
        ("int8", (3, 100), (3, 102), "differs by 2"),
        ("int32", (3, 100), (3, 101), "has other elements"),
    ],
)
def test_difference_of_results(dtype: str, ours: Any, others: Any, found: str) -> None:
    spec = TensorSpec.packed((2,), dtype)
    got = difference([spec], bytes_of(*ours, dtype=dtype), bytes_of(*others, dtype=dtype), 2e-3)
    assert found in got
    assert bool(got) == bool(found)
