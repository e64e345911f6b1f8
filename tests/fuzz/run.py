"""Runs batches of calls in child processes, and says what they found."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Result", "fuzz", "summary"]

ROOT = Path(__file__).parents[2]
BATCH = 250  # calls in one child


class Result(NamedTuple):
    """How often calls ended in what way, and what was wrong: a reason, and the call as a line to paste."""

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
    """Make calls in child processes: the first numbers of a seed, or ``lines``, one in each child.

    ``seconds`` are those of one call at most.
    """
    how = {"gpu": gpu, "seconds": seconds}
    starts = range(0, calls, BATCH)
    asked = [how | {"seed": seed, "numbers": (start, min(start + BATCH, calls))} for start in starts]
    asked += [how | {"lines": [one]} for one in lines]
    with ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(_batch, asked))
    return Result(
        sum((part.outcomes for part in parts), Counter()), [one for part in parts for one in part.wrong]
    )


def summary(result: Result) -> str:
    """All of it as text."""
    lines = [f"{count:>7} {outcome}" for outcome, count in result.outcomes.most_common()]
    lines += [f"WRONG {reason}\n      {text}" for reason, text in result.wrong]
    return "\n".join([*lines, f"{sum(result.outcomes.values())} calls, {len(result.wrong)} wrong"])


def _batch(asked: dict[str, Any]) -> Result:
    """One child; where it ends before its time, another goes on after the call that ended it."""
    outcomes: Counter[str] = Counter()
    wrong: list[tuple[str, str]] = []
    while True:
        told, ended = _child(asked)
        calls = [one["call"] for one in told if "call" in one]
        wrong += _judged(told, asked, outcomes)
        if not ended:
            return Result(outcomes, wrong)
        wrong.append((ended, calls[-1] if calls else f"before the first of {asked}"))
        outcomes["! ended its process"] += 1
        first, end = asked.get("numbers", (0, 0))
        if not calls or first + len(calls) >= end:
            return Result(outcomes, wrong)
        asked = asked | {"numbers": (first + len(calls), end)}


def _judged(
    told: list[dict[str, Any]], asked: dict[str, Any], outcomes: Counter[str]
) -> list[tuple[str, str]]:
    """What a child found wrong; ``outcomes`` are counted."""
    wrong, since = [], []
    for one in told:
        if "call" in one:
            since.append(one["call"])
        elif "outcome" in one:
            outcomes[one["outcome"].partition(":")[0]] += 1
            if one["outcome"].startswith("!"):
                wrong.append((one["outcome"], since[-1]))
        else:
            if one["health"] and len(since) > 1:  # which of them it was, where one alone shows it
                alone, _ = _child(asked | {"lines": since, "every": 1})
                found = _judged(alone, asked, Counter())
                wrong += found or [(one["health"], f"after these: {since}")]
            elif one["health"]:
                wrong.append((one["health"], since[0]))
            since = []
    return wrong


def _child(asked: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """What a child told, and how it ended where that was not as it should; empty where it was."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from tests.fuzz.child import main; main()",
            ],
            input=json.dumps(asked) + "\n",
            capture_output=True,
            text=True,
            cwd=folder,
            errors="replace",
            timeout=600,
        )
    told = [json.loads(text) for text in done.stdout.splitlines()]
    if done.returncode == 0:
        return told, ""
    return told, f"exit status {done.returncode}: {' | '.join(done.stderr.splitlines()[-12:])[-1500:]}"
