"""Runs batches of calls in child processes, and collects what they find wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tests.oracle.run import run_child

__all__ = ["Result", "fuzz", "summary"]

BATCH = 250  # calls in one child


class Result(NamedTuple):
    """Numbers of calls by outcome, and the wrong calls: a reason, and the calls as lines of Python."""

    outcomes: Counter[str]
    wrong: list[tuple[str, str]]


def fuzz(
    calls: int,
    seed: int = 0,
    *,
    gpu: bool = False,
    jobs: int = 1,
    lines: Sequence[str] = (),
    seconds: int = 20,
) -> Result:
    """Make calls in child processes: the first numbers of a seed, and ``lines``, which share a child.

    ``seconds`` is the time limit of one call.
    """
    limits = {"gpu": gpu, "seconds": seconds}
    starts = range(0, calls, BATCH)
    batches = [limits | {"seed": seed, "numbers": (start, min(start + BATCH, calls))} for start in starts]
    batches += [limits | {"lines": lines}] if lines else []
    result = Result(Counter(), [])
    with ThreadPoolExecutor(jobs) as pool:
        for outcomes, wrong in pool.map(_batch, batches):
            result.outcomes.update(outcomes)
            result.wrong.extend(wrong)
    return result


def summary(result: Result) -> str:
    """Describe a result."""
    lines = [f"{count:>7} {outcome}" for outcome, count in result.outcomes.most_common()]
    lines += [f"WRONG {reason}\n      {text}" for reason, text in result.wrong]
    return "\n".join([*lines, f"{sum(result.outcomes.values())} calls, {len(result.wrong)} wrong"])


def _batch(asked: dict[str, Any]) -> Result:
    """Run one child; if a call ends its process, another child goes on after that call."""
    result = Result(Counter(), [])
    while True:
        reports, ended = run_child(asked, "tests.fuzz.child")
        calls = [one["call"] for one in reports if "call" in one]
        _count(reports, result)
        if not ended:
            return result
        result.wrong.append((ended, calls[-1] if calls else f"before the first of {asked}"))
        result.outcomes["! ended its process"] += 1
        first, end = asked.get("numbers", (0, 0))
        if not calls or first + len(calls) >= end:
            return result
        asked = asked | {"numbers": (first + len(calls), end)}


def _count(reports: list[dict[str, Any]], result: Result) -> None:
    """Count the outcomes of a child; a trouble belongs to one of the calls since the last report."""
    calls: list[str] = []
    for one in reports:
        if "call" in one:
            calls.append(one["call"])
        elif "outcome" in one:
            result.outcomes[one["outcome"].partition(":")[0]] += 1
            if one["outcome"].startswith("!"):
                result.wrong.append((one["outcome"], calls[-1]))
        else:
            if one["trouble"]:
                result.wrong.append((one["trouble"], "\n      ".join(calls)))
            calls = []
