"""Numbered calls in child processes, for the commands next to the main oracle.

A parent takes the reports of all numbers from :func:`finished`; a child makes its calls in :func:`serve`. A
number whose process ends is a finding, and another child goes on behind it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

os.environ.setdefault("CUDNN_CT_ALGO_CACHE", "off")

import cudnn_ct as ct
from tests.spread import use_gpu

from .run import run_child

__all__ = ["LOST", "Made", "begin", "finished", "outcome_table", "over", "parser_of", "serve"]

# Words of errors after which a process can make no further call on its device.
LOST = (
    "captur",
    "MISALIGNED_ADDRESS",
    "ILLEGAL_ADDRESS",
    "LAUNCH_FAILED",
    "ILLEGAL_INSTRUCTION",
    "HARDWARE_STACK",
)

# A call by its number: its text, and a function that makes it and returns the facts of its report.
Made = Callable[[int], tuple[str, Callable[[], dict[str, Any]]]]


def parser_of(module: str, doc: str | None, calls: str, *, jobs: int) -> argparse.ArgumentParser:
    """Return a parser of the options that the commands share."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc, formatter_class=formatter)
    parser.add_argument(
        "--calls", type=int, help=f"how many calls to make (default: {calls}, or by --minutes)"
    )
    parser.add_argument("--minutes", type=float, help="how long to make calls")
    parser.add_argument("--seed", type=int, help="by default a new one")
    parser.add_argument("--number", type=int, help="make this call of the seed alone")
    parser.add_argument("--jobs", type=int, default=jobs, help="processes (default: %(default)s)")
    return parser


def begin(options: argparse.Namespace, seconds: int) -> dict[str, Any]:
    """Print the seed of a run; return what its child processes are told, with the time of its end."""
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    return {"seed": seed, "fakes": options.fakes, "end": end, "seconds": seconds}


def outcome_table(
    title: str, counts: dict[str, Counter[str]], last: str, names: Sequence[str], *, width: int, column: int
) -> list[str]:
    """Return a header, a line of counts for each row, and one for their sums."""
    header, total = Counter({name: name for name in names}), sum(counts.values(), Counter())  # type: ignore[dict-item]
    rows = [(title, header), *sorted(counts.items()), (last, total)]
    return [
        f"{head[:width]:{width}}" + "".join(f"{found[name]:>{column}}" for name in names)
        for head, found in rows
    ]


def over(asked: dict[str, Any]) -> bool:
    """Return whether the time of a run is over."""
    return asked.get("end") is not None and time.monotonic() > asked["end"]


def finished(module: str, asked: dict[str, Any], first: int, end: int) -> Iterator[dict[str, Any]]:
    """Yield the reports of the numbers from ``first`` to ``end``, which ``module.child`` makes.

    A report has the number, the call, an outcome, and a detail if the outcome is "finding".
    """
    while first < end and not over(asked):
        reports, ended = run_child(asked | {"numbers": (first, end)}, module, "child")
        calls = {one["number"]: one["call"] for one in reports if "call" in one}
        judged = [one for one in reports if "outcome" in one]
        yield from ({"call": calls[one["number"]], **one} for one in judged)
        if not ended:
            return
        lost = sorted(set(calls) - {one["number"] for one in judged})
        if lost or not calls:
            number, call = (lost[0], calls[lost[0]]) if lost else (first, "before its first call")
            facts = {"number": number, "call": call, "outcome": "finding"}
            yield facts | {"detail": f"the process ended: {ended}"}
        if not calls:
            return
        first = max(calls) + 1


def serve(work: Callable[[dict[str, Any]], AbstractContextManager[Made]]) -> None:
    """Make the calls that the first line on stdin asks for; write a JSON object before and after each."""
    asked = json.loads(sys.stdin.readline())
    faulthandler.enable()
    warnings.simplefilter("ignore")
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if not asked["fakes"]:
        use_gpu(asked["process"], count=1)
    with work(asked) as made:
        for number in range(*asked["numbers"]):
            if over(asked):
                break
            call, make = made(number)
            reports.write(json.dumps({"number": number, "call": call}) + "\n")
            faulthandler.dump_traceback_later(asked["seconds"], exit=True)
            report = judged(make)
            faulthandler.cancel_dump_traceback_later()
            reports.write(json.dumps({"number": number, **report}) + "\n")
            if any(word in report.get("detail", "") for word in LOST):
                os._exit(3)
        reports.flush()
        os._exit(0)


def judged(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Make a call; an exception is a finding, unless it says that cuDNN lacks the call or memory ran out."""
    try:
        return make()
    except ct.NotSupportedError as error:
        return {"outcome": "not supported", "reason": str(error).splitlines()[0][:300]}
    except ct.AllocationError as error:
        return {"outcome": "out of memory", "reason": str(error).splitlines()[0][:300]}
    except Exception:
        return {"outcome": "finding", "detail": traceback.format_exc()[-1500:]}
