"""Runs batches of drawn calls in child processes and collects their outcomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import ceil
from pathlib import Path
from typing import Any

from tests.spread import visible

__all__ = ["Result", "at_once", "batches", "compare", "rows_of", "run_child", "share", "summary"]

ROOT = Path(__file__).parents[2]
BATCH = 200  # calls in one child, at least
FAKE_BATCH = 1000  # starting one takes a second or two
GPU_BATCH = 2000  # it takes several, for libraries and kernels to load
# As many processes as cores run already: threads of libraries would take their time.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass
class Result:
    """Outcomes of the calls of one seed.

    ``only`` are the operations that were drawn from, all if empty; ``fakes`` is as in `compare`.
    ``algorithms`` counts the runs of each algorithm, where each was run by itself.
    ``findings`` are triples: the number of the call, the call, and what is wrong with it. ``rejections`` are
    the reasons of calls that cuDNN does not support, with an example.
    """

    seed: int
    only: tuple[str, ...] = ()
    fakes: str = ""
    calls: int = 0
    replays: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    algorithms: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str, str]] = field(default_factory=list)
    rejections: dict[str, list[int]] = field(default_factory=dict)


def compare(
    seed: int,
    *,
    calls: int | None = None,
    minutes: float | None = None,
    fakes: str = "",
    jobs: int = 1,
    only: Sequence[str] = (),
    like: str = "",
    numbers: tuple[int, int] | None = None,
    seconds: int = 60,
    algorithms: bool = False,
    rejected: bool = False,
) -> Result:
    """Make drawn calls in ``jobs`` processes until there are ``calls`` of them or ``minutes`` are over.

    ``fakes`` is the set of libraries of the fakes, "full" or "jit"; empty for a GPU. ``numbers`` is a range
    of calls of the seed to make instead; ``seconds`` is the time limit of one call. Only calls with text that
    matches the pattern ``like`` are made. With ``algorithms``, convolutions are made once with each algorithm
    that cuDNN has for them; with ``rejected``, also with those that facts reject.
    """
    result = Result(seed, tuple(only), fakes)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    asked = {"seed": seed, "fakes": fakes, "only": list(only), "seconds": seconds, "end": end}
    asked |= {"like": like, "algorithms": algorithms, "rejected": rejected}
    chosen = iter([numbers]) if numbers else batches(calls, end, _batch_size(calls, jobs, fakes))
    lock = threading.Lock()

    def work(batch: tuple[int, int], process: int) -> None:
        _batch(asked | {"numbers": batch, "process": process}, result, lock)

    share(chosen, work, jobs)
    return result


def summary(result: Result) -> str:
    """Describe a result, with the command that reproduces each finding."""
    lines = [f"{count:>8} {outcome}" for outcome, count in result.outcomes.most_common()]
    for reason, numbers in sorted(result.rejections.items(), key=lambda one: -len(one[1]))[:15]:
        lines.append(f"{len(numbers):>8} not supported (such as {numbers[0]}): {reason}")
    chosen = "".join(f" --only {name}" for name in result.only)
    chosen += f" --fakes {result.fakes}" if result.fakes else ""
    for number, call, finding in result.findings:
        command = f"python -m tests.oracle --seed {result.seed} --number {number}{chosen}"
        lines.append(f"FINDING {finding}\n    {call}\n    {command}")
    lines += [f"{count:>8} runs of {algorithm}" for algorithm, count in sorted(result.algorithms.items())]
    counts = f"{result.calls} calls, {result.replays} replays, {len(result.findings)} findings"
    lines.append(f"seed {result.seed}: {counts}")
    return "\n".join(lines)


def _batch_size(calls: int | None, jobs: int, fakes: str) -> int:
    """Return the number of calls of a child. Each process has two children or more, so that all end alike."""
    most = FAKE_BATCH if fakes else GPU_BATCH
    return most if calls is None else min(most, max(BATCH, ceil(calls / jobs / 2)))


def share(found: Iterator[tuple[int, int]], work: Callable[[tuple[int, int], int], None], jobs: int) -> None:
    """Call ``work(batch, process)`` for each batch, in a thread for each of ``jobs`` processes."""
    lock = threading.Lock()

    def take(process: int) -> None:
        while True:
            with lock:
                batch = next(found, None)
            if batch is None:
                return
            work(batch, process)

    at_once([partial(take, process) for process in range(jobs)])


def at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls in threads of their own, and wait for them."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def batches(calls: int | None, end: float | None, size: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last numbers of batches until there are ``calls``, or the time is over."""
    start = 0
    while (calls is None or start < calls) and (end is None or time.monotonic() < end):
        stop = start + size if calls is None else min(start + size, calls)
        yield start, stop
        start = stop


def _batch(asked: dict[str, Any], result: Result, lock: threading.Lock) -> None:
    """Run one child; where it ends early, let another one go on after the calls that ended it."""
    first, end = asked["numbers"]
    while first < end and (asked["end"] is None or time.monotonic() < asked["end"]):
        reports, ended = run_child(asked | {"numbers": (first, end)})
        calls = {one["number"]: one["call"] for one in reports if "call" in one}
        verdicts = [one for one in reports if "outcome" in one]
        with lock:
            runs = (one["algorithm"].partition(" knobs")[0] for one in reports if one.get("algorithm"))
            result.algorithms.update(runs)
            for one in verdicts:
                _count(result, one, calls[one["number"]])
            if not ended:
                return
            open_ones = sorted(set(calls) - {one["number"] for one in verdicts})
            lost = open_ones or sorted(calls)[-1:] or [first]
            if open_ones or not verdicts or verdicts[-1]["outcome"] != "finding":
                described = "; ".join(calls.get(number, "before its first call") for number in lost)
                result.findings.append((lost[0], described, f"the process ended: {ended}"))
                result.outcomes["process ended"] += 1
                result.calls += len(lost)
            first = max([*calls, first]) + 1


def _count(result: Result, report: dict[str, Any], call: str) -> None:
    result.calls += 1
    result.replays += report["replays"]
    result.outcomes[report["outcome"]] += 1
    result.operations[call.partition("(")[0]] += 1
    if report["outcome"] == "finding":
        result.findings.append((report["number"], call, report["detail"]))
    elif report["outcome"] == "not supported":
        reason = f"{call.partition('(')[0]}: {report['detail'].splitlines()[-1][:160]}"
        result.rejections.setdefault(reason, []).append(report["number"])


def run_child(
    asked: dict[str, Any], module: str = "tests.oracle.child", function: str = "main"
) -> tuple[list[dict[str, Any]], str]:
    """Return the reports of a child, and the reason why it ended early; empty if it did not."""
    start = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from {module} import {function}; {function}()"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", start],
            input=json.dumps(asked) + "\n",
            capture_output=True,
            text=True,
            cwd=folder,
            errors="replace",
            env={**os.environ, **ONE_THREAD, **({} if _without_gpu(asked) else _gpus())},
        )
    reports = []
    for line in done.stdout.splitlines():
        try:
            reports.append(json.loads(line))
        except ValueError:  # the last line of a process that was killed
            break
    if done.returncode == 0:
        return reports, ""
    return reports, f"exit status {done.returncode}: {_last_words(done.stderr)}"


def rows_of(command: list[str], seconds: float, **facts: Any) -> tuple[list[dict[str, Any]], str, str]:
    """Run a command; return the JSON objects on its stdout, the end of its stderr, and how it ended."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=seconds, check=False, **facts)
        output, errors, status = done.stdout, done.stderr, f"exit status {done.returncode}"
    except subprocess.TimeoutExpired as late:
        output, errors, status = late.stdout or b"", late.stderr or b"", f"timeout of {seconds} s"
    lines = output.decode(errors="replace").splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return rows, errors.decode(errors="replace")[-300:], status


@cache
def _gpus() -> dict[str, str]:
    """Return the environment that names all GPUs, so that no child has to list them again."""
    names = visible()
    return {"CUDA_VISIBLE_DEVICES": ",".join(names)} if len(names) > 1 else {}


def _last_words(stderr: str) -> str:
    """The stack of a crash, which comes before a long list of extension modules; else the last lines."""
    start = stderr.find("Fatal Python error")
    lines = stderr[start:].splitlines()[:60] if start >= 0 else stderr.splitlines()[-15:]
    return " | ".join(lines)[:4000]


def _without_gpu(asked: dict[str, Any]) -> bool:
    """Return whether a child runs on the fakes; that of the fuzzer names the GPU instead."""
    return bool(asked.get("fakes", not asked.get("gpu", True)))
