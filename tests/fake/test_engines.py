"""benchmarks/engines.py: the problems that it draws, and the outcomes that it reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .cudnn import FakeCudnn

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not beside these tests", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import engines  # noqa: E402

sys.path.remove(str(BENCHMARKS))


def problems(count: int) -> list[Any]:
    found = []
    for number in range(count):
        problem = engines.drawn(number, 1)
        if problem.activation != "gelu":  # the fake engine has none
            found.append(problem)
    return found


def outcomes(problem: Any) -> list[str]:
    return [record["outcome"] for record in engines.measure(problem) if "outcome" in record]


def test_measure_finds_the_fake_engine_right(fake: FakeCudnn) -> None:
    fake.engines = True
    found = {outcome for problem in problems(40) for outcome in outcomes(problem)}
    assert found - {"not supported"} == {"right"}


def test_measure_finds_a_wrong_engine(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.engines = True
    monkeypatch.setattr(
        fake, "_write", lambda tensor, result, *rest: type(fake)._write(fake, tensor, 2 * result + 1, *rest)
    )
    assert {outcome for problem in problems(8) for outcome in outcomes(problem)} == {"wrong"}


def test_drawn_problems_have_each_direction_and_one_pixel() -> None:
    found = problems(300)
    assert {problem.direction for problem in found} == set(engines.DIRECTIONS)
    assert sum(np.prod(problem.y[2:]) == 1 for problem in found) > 50
