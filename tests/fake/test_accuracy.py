"""benchmarks/accuracy.py: the problems, the errors of results, and what becomes of failures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from .installed import cudnn_installed, host_installed

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not beside these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import accuracy  # noqa: E402

sys.path.remove(str(BENCHMARKS))


def by_reference(problem: Any, one: Any, two: Any) -> Any:
    forward = problem.direction == "forward"
    function = getattr(ct.reference, "conv" if forward else f"conv_{problem.direction}")
    shape = () if forward else (problem.shapes[-1],)
    return function(one, two, *shape, **problem.geometry)


def small(kind: str, direction: str) -> Any:
    shapes = {"x": (2, 4, 7, 8), "w": (6, 2, 3, 2)}
    return accuracy.Problem(
        3, kind, direction, **shapes, padding=1, stride=2, dilation=1, groups=2, layout="nhwc"
    )


def records(problem: Any, oracle: Any = by_reference) -> list[dict[str, Any]]:
    with host_installed() as host, cudnn_installed(host):
        found = list(accuracy.measure(problem, oracle, 1, 2))
    assert json.loads(json.dumps(found))
    return [record for record in found if record["section"] != "begin"]


@pytest.mark.parametrize("kind", accuracy.KINDS)
@pytest.mark.parametrize("direction", accuracy.DIRECTIONS)
def test_measure_compares_each_candidate_with_the_oracle(kind: str, direction: str) -> None:
    rows = records(small(kind, direction))
    assert len(rows) > 2
    assert {row["section"] for row in rows} == {"row"}
    assert {row["values"] for row in rows} == set(accuracy.VALUES)
    assert max(row["relative"] for row in rows) < 4 * accuracy.KINDS[kind].unit
    assert max(row["of_bound"] for row in rows) < 1


def test_measure_reports_an_error_in_the_result() -> None:
    def wrong(problem: Any, one: Any, two: Any) -> Any:
        result = by_reference(problem, one, two)
        result[0, 0, 0, 0] *= 1.01
        return result

    rows = records(small("float32", "forward"), wrong)
    assert min(row["relative"] for row in rows) > 1e-4
    assert min(row["of_largest"] for row in rows) > 1e-4


def test_errors_count_elements_that_are_not_written() -> None:
    want = np.ones((1, 2))
    found = accuracy.errors(np.array([[np.nan, 1]]), want, want, accuracy.KINDS["float32"], (1, 1))
    assert set(found.values()) == {np.inf}


def test_errors_leave_out_the_rounding_of_the_result() -> None:
    want = np.array([1 + 2.0**-12])
    got = want.astype(np.float16).astype(float)
    found = accuracy.errors(got, want, want, accuracy.KINDS["float16"], (2.0**-12, 2.0**-11))
    assert found.pop("of_bound") == pytest.approx(1 / 3, rel=1e-3)
    assert set(found.values()) == {0}
