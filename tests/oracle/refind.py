"""Find known defects again: each with its fix taken out, by the draws of the oracle that look for their kind.

python -m tests.oracle.refind --minutes 1 --jobs 16       # on a GPU with cuDNN 9.19
python -m tests.oracle.refind --only "gradient of filters" --seed 7

The draws of one kind run with the fix taken out until one call is a finding of that kind, and this call runs
again with the fix. The exit status is 1 if a defect is not found, or if the call is a finding with its fix,
too. Second opinions are off: they would find most of the defects.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .without import MEASUREMENT, VARIABLE

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = 40  # of random_graphs, in one round
CALLS = 400  # of the other draws, in one round
RARE = 4000  # draws in one round, of which few are made
WIDE = (
    r"q=Tensor\(shape=\(\d+, \d+, (19[3-9]|2\d\d)\).* v=Tensor\(shape=\(\d+, \d+, (\d\d?|1[01]\d|12[0-8])\)"
)


class Defect(NamedTuple):
    """A defect, the fixes to take out, the draws that find it, and words of a finding of its kind."""

    name: str
    without: tuple[str, ...]
    draws: tuple[str, ...]
    words: str = "."


def _graphs(family: str) -> tuple[str, ...]:
    return ("random_graphs", "--family", family)


DEFECTS = (
    Defect(
        "attention gradients of packed sequences, heads of q above 192 and of v up to 128",
        ("attention-narrow-values",),
        ("", "--only", "attention_backward", "--like", WIDE, "--calls", str(RARE)),
        "offsets",
    ),
    Defect(
        "a gradient of filters and an elementwise operation, channels that are not multiples of 8",
        ("conv-filter-of-eights",),
        _graphs("conv_gradient"),
        "conv filter",
    ),
    Defect(
        "a gradient of data and the gradient of an activation of one value per channel",
        ("native-broadcasts",),
        _graphs("conv_gradient"),
        "conv data.*_backward",
    ),
    Defect(
        "a product of computed half precision and float32 with an odd number of terms",
        ("native-conversions",),
        _graphs("two_dtypes"),
    ),
    Defect(
        "an index, and the gradient of an activation of a broadcast operand",
        ("native-broadcasts",),
        _graphs("chain"),
        "index.*_backward",
    ),
    Defect(
        "the largest magnitude of attention of float8, queries that are not a multiple of 128",
        ("attention-fp8-amax-rows",),
        ("", "--only", "scaled_attention", "--calls", str(CALLS)),
        "amax",
    ),
    Defect("deterministic sums of long rows", (MEASUREMENT,), ("determinism", "--only", "reduce")),
    Defect(
        "Graph.build(deterministic=True) of reductions behind a product",
        (MEASUREMENT, "graph-reduction-order"),
        ("determinism", "--only", "graph product"),
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.oracle.refind",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="by default a new one")
    parser.add_argument("--minutes", type=float, default=1.0, help="for all defects (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=8, help="processes (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="WORDS", help="defects with these words")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    defects = [defect for defect in DEFECTS if options.only in defect.name]
    end = time.monotonic() + 60 * options.minutes
    jobs = max(2, options.jobs // len(defects))
    with ThreadPoolExecutor(len(defects)) as pool:
        found = list(pool.map(lambda defect: _found(defect, seed, jobs, end), defects))
    for defect, (verdict, text) in zip(defects, found, strict=True):
        print(f"{verdict:24} {defect.name}\n    {text}")
    return int(any(verdict != FOUND for verdict, _ in found))


FOUND = "found, right with fix"


def _found(defect: Defect, seed: int, jobs: int, end: float) -> tuple[str, str]:
    """Draw until a finding of a defect; return the verdict, and the finding with a command to repeat it."""
    rounds = 0
    while time.monotonic() < end:
        for finding, command in _findings(_drawn(defect, seed + rounds, jobs, end), defect.words):
            again = shlex.split(command.removeprefix("python -m "))
            status = _run(again, (), end + 60).returncode
            if status:  # 1 is a finding; a process that was killed for its time has another status
                verdict = "WRONG WITH THE FIX TOO" if status == 1 else "NOT REPEATED"
                return verdict, f"{finding}\n    {command}"
            return FOUND, f"{finding}\n    {VARIABLE}={','.join(defect.without)} {command}"
        rounds += 1
    return "NOT FOUND", f"in {rounds} rounds"


def _drawn(defect: Defect, seed: int, jobs: int, end: float) -> str:
    module, *options = defect.draws
    command = [f"tests.oracle.{module}".rstrip("."), *options, "--seed", str(seed), "--jobs", str(jobs)]
    if "--calls" not in options:
        command += ["--graphs", str(GRAPHS)] if module == "random_graphs" else ["--calls", str(CALLS)]
    return _run(command, defect.without, end).stdout


def _run(command: list[str], without: tuple[str, ...], end: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDNN_CT_CERTIFY": "off", "CUDNN_CT_ALGO_CACHE": "off"}
    environment[VARIABLE] = ",".join(without)
    line = [sys.executable, "-m", *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(line, cwd=ROOT, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        output, _ = process.communicate(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
    return subprocess.CompletedProcess(line, process.returncode, output)


def _findings(output: str, words: str) -> list[tuple[str, str]]:
    """Return the findings in the output of any of the draws that have certain words, with their commands."""
    found, text = [], list[str]()
    for line in output.splitlines():
        if line.strip().startswith("python -m tests.oracle"):
            finding = " ".join(text).removeprefix("FINDING ")
            if re.search(words, finding):
                found.append((finding[:300], line.strip()))
            text = []
        elif line.startswith(("FINDING ", "wrong ", "error ", "crash ")):
            text = [line.strip()]
        elif text:
            text.append(line.strip())
    return found


if __name__ == "__main__":
    sys.exit(main())
