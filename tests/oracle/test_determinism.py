"""Determinism by bits: what the draws reach, and what the comparison must find."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest

from .by_loops import ANSWERS
from .children import judged as attempted
from .determinism import joined, judged, main, on_fakes, repeated, table
from .determinism_draws import GRAPHS, LARGE, Case, draw_case
from .devices import Device

pytestmark = pytest.mark.filterwarnings("ignore::cudnn_ct.errors.CudnnWarning")


@pytest.fixture
def device() -> Iterator[Device]:
    with on_fakes() as (fakes, _):
        yield fakes


def test_determinism_has_no_finding_on_the_fakes(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--fakes", "--calls", "24", "--runs", "3", "--jobs", "2"]) == 0, capfd.readouterr().out
    last = capfd.readouterr().out.splitlines()[-1]
    assert "24 calls" in last


def _cases(operation: str, device: str, count: int) -> Iterator[Case]:
    return (draw_case(5, number, device, [operation]) for number in range(count))


@pytest.mark.parametrize("operation", [*LARGE, *GRAPHS])
def test_determinism_finds_results_that_vary(
    operation: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cudnn_ct as ct

    numpy, calls = ct.DeviceArray.numpy, []

    def varying(self: Any, *rest: Any) -> np.ndarray:
        calls.append(None)
        host = np.array(numpy(self, *rest), order="C")
        if len(calls) > 8 and host.size:
            host.reshape(-1).view(np.uint8)[0] ^= 1  # the last bit of the first element
        return host

    monkeypatch.setattr(ct.DeviceArray, "numpy", varying)
    cases = _cases(operation, "fakes", 50)
    reports = (attempted(partial(judged, one, device, ANSWERS, 12)) for one in cases)
    report = next(one for one in reports if one["outcome"] != "not supported")
    assert report["outcome"] == "finding"
    assert "different results in 12 runs" in report["detail"]


class Array:
    """An array in host memory that a run returns."""

    def __init__(self, *values: float) -> None:
        self.values = np.array(values)

    def numpy(self) -> np.ndarray:
        return self.values


def test_determinism_finds_one_varying_result_among_several(device: Device) -> None:
    runs = iter([0.0, 0.0, 0.25])
    digests, varying = repeated(lambda: {"a": Array(1.0), "b": Array(next(runs), 1.0)}, device, 3)
    assert set(digests) == {"a", "b"}
    assert varying == ["b has 2 different results in 3 runs, up to 0.25 apart"]


def test_determinism_finds_zeros_that_differ_in_sign(device: Device) -> None:
    signs = iter([0.0, -0.0])
    assert repeated(lambda: {"y": Array(next(signs))}, device, 2)[1]


def test_determinism_finds_processes_that_differ() -> None:
    reports = [
        {"number": 3, "call": "reduce by config: x", "outcome": "agrees", "digests": {"y": digest}}
        for digest in ("00", "01")
    ]
    row = joined(3, reports)
    assert row["outcome"] == "finding"
    assert "y" in row["detail"]
    text, findings = table(9, [row])
    assert findings == 1
    assert "python -m tests.oracle.determinism --seed 9 --number 3" in text
    assert joined(3, reports[:1])["outcome"] == "one process only"
    assert joined(3, [reports[0]] * 2)["outcome"] == "agrees"


@pytest.mark.parametrize("operation", [*LARGE, *GRAPHS, "docstring"])
def test_determinism_draws_are_reproducible(operation: str) -> None:
    for number in range(5):
        assert draw_case(7, number, "gpu", [operation]) == draw_case(7, number, "gpu", [operation])


def test_determinism_draws_reductions_that_are_split() -> None:
    """Rows of 2**20 elements, sums over other axes than the last in half precision, and few results."""
    calls = [case.call for case in _cases("reduce", "gpu", 400)]
    drawn = [(call.operands["x"], call.arguments["axis"]) for call in calls if call]
    terms = [prod(x.shape[axis] for axis in axes) for x, axes in drawn]
    assert sum(n >= 2**20 and x.dtype == "float32" for n, (x, _) in zip(terms, drawn, strict=True)) > 10
    assert sum(4096 <= n < 2**20 for n in terms) > 50
    assert sum(axes == (0, 2) and x.dtype == "float16" and x.size > 2**18 for x, axes in drawn) > 0
    assert all(x.size <= 2**23 for x, _ in drawn)
    assert {call.arguments["op"] for call in calls if call} >= {
        "add",
        "average",
        "norm1",
        "norm2",
        "max",
        "mul",
    }


def test_determinism_draws_reductions_behind_wide_products() -> None:
    graphs = [case.graph for case in _cases("graph product", "gpu", 200)]
    wide = [
        graph
        for graph in graphs
        if graph
        and graph.operands["b"].shape[-1] > 256
        and graph.arguments["axes"] == (len(graph.operands["a"].shape) - 1,)
    ]
    assert len(wide) > 10
    rows = [case.graph for case in _cases("graph rows", "gpu", 200)]
    assert sum(bool(graph) and graph.operands["x"].shape[-1] >= 4096 for graph in rows) > 20
