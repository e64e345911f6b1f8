"""5,000 calls with hostile arguments on this GPU, in child processes: no fault, no crash, nothing left."""

from __future__ import annotations

import os

from tests.fuzz.run import fuzz, summary

CALLS = 5000
JOBS = min(8, max(1, (os.cpu_count() or 1) // 2))


def test_hostile_calls_raise_only_documented_exceptions() -> None:
    result = fuzz(CALLS, seed=1, gpu=True, jobs=JOBS)
    assert result.wrong == [], summary(result)
    assert sum(result.outcomes.values()) == CALLS
    assert result.outcomes["fine"] > CALLS // 8
