"""Time random convolutions of float16 in NHWC, autotuned, by two cuDNNs on one GPU.

    python benchmarks/conv_versions.py NEW [OLD] [--seed N] [--number 40] [--json OUT]

NEW and OLD are paths of libcudnn.so.9; OLD is the cuDNN of this environment by default. Windows are 1 or 3,
channels and filters multiples of 64. Each cuDNN runs in a process of its own; the two take turns with each
problem. A time is that of a CUDA graph of 20 calls, divided by 20: the median over rounds. The result is the
geometric mean of new / old for each direction. With --jobs, several problems are planned and compiled at
once; whatever is timed, in autotuning too, has the GPU alone.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.figures import Bar, geomean

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {"forward": 0.88, "backward_data": 0.92, "backward_filter": 0.97}
CALLS, LAUNCHES, ROUNDS = 20, 10, 7
MOST = 2**27  # products of pixels, channels and filters, for each element of the window


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a problem failed."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("libraries", nargs="*", metavar="LIBCUDNN")
    options.add_argument("--seed", type=int, help="default: a new one, which is printed")
    options.add_argument("--number", type=int, default=40, help="of problems (default: %(default)s)")
    options.add_argument("--seconds", type=float, default=500, help="no problem begins later")
    options.add_argument("--jobs", type=int, default=1, help="problems at once (default: %(default)s)")
    options.add_argument("--json", type=Path, help="write the result to this file")
    options.add_argument("--serve", metavar="LOCK", help=argparse.SUPPRESS)
    given = options.parse_args(arguments)
    if given.serve:
        return serve(given.serve)
    if not 1 <= len(given.libraries) <= 2:
        options.error("name one cuDNN or two")
    seed = random.randrange(2**31) if given.seed is None else given.seed
    source, end = random.Random(seed), time.monotonic() + given.seconds
    problems = [draw(source) | {"number": number} for number in range(given.number)]
    own, started = threading.local(), threading.Lock()

    def rows_of(problem: dict[str, Any]) -> list[dict[str, Any]]:
        if time.monotonic() > end:
            return []
        if not hasattr(own, "sides"):
            with started:
                own.sides = [Side(path, lock.name) for path in (*given.libraries, "")[:2]]
            about.update(new=own.sides[0].about, old=own.sides[1].about)
        return [compared(own.sides, problem | {"direction": one}) for one in LIMITS]

    about: dict[str, Any] = {"seed": seed}
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(given.jobs) as pool:
        rows = [row for found in pool.map(rows_of, problems) for row in found]
    print(about)
    bars = [bar_of(direction, rows) for direction in LIMITS]
    print(*bars, sep="\n")
    if given.json:
        found = {
            "benchmark": "conv_versions",
            "about": about,
            "bars": [one.record for one in bars],
            "rows": rows,
        }
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any("error" in row for row in rows))


def draw(source: random.Random) -> dict[str, Any]:
    """Return a problem: sizes that networks have, and not too many products."""
    while True:
        batch, size = source.choice((1, 4, 8, 16, 32, 64)), source.choice((7, 14, 20, 28, 40, 56, 64))
        channels, filters = (64 * source.choice((1, 1, 2, 2, 3, 4, 6, 8)) for _ in range(2))
        window, stride = source.choice((1, 3, 3)), source.choice((1, 1, 1, 2))
        if batch * size * size * channels * filters // stride**2 <= MOST * 64:
            return {
                "x": (batch, channels, size, size), "w": (filters, channels, window, window),
                "padding": window // 2, "stride": stride,
            }  # fmt: skip


def bar_of(direction: str, rows: list[dict[str, Any]]) -> Bar:
    own = [row for row in rows if row["direction"] == direction]
    ratios = [row["new_us"] / row["old_us"] for row in own if "error" not in row]
    detail = f"worst {max(ratios):.2f}, best {min(ratios):.2f}" if ratios else ""
    return Bar(f"{direction}, new / old", geomean(ratios), LIMITS[direction], len(ratios), detail)


class Side:
    """A process that times problems with one cuDNN."""

    def __init__(self, library: str, lock: str) -> None:
        own = {"CUDNN_CT_LIBRARY": library} if library else {}
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "PYTHONPATH": paths, "CUDNN_CT_ALGO_CACHE": "off", **own}
        command = [sys.executable, __file__, "--serve", lock]
        self.process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, question: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.answer()


def compared(sides: list[Side], problem: dict[str, Any]) -> dict[str, Any]:
    """Return the times of both sides, in turns."""
    row, names = dict(problem), ("new", "old")
    for name, side in zip(names, sides, strict=True):
        row |= {f"{name}_{key}": value for key, value in side.ask(problem).items()}
    if failed := [row[f"{name}_error"] for name in names if f"{name}_error" in row]:
        return row | {"error": failed[0]}
    for name in names:
        row[f"{name}_us"] = []
    for _ in range(ROUNDS):
        for name, side in zip(names, sides, strict=True):
            row[f"{name}_us"].append(side.ask("time"))
    new, old = (statistics.median(row[f"{name}_us"]) for name in names)
    row |= {"new_us": new, "old_us": old}
    about = f"{row['direction']:15} x {row['x']} w {row['w']}"
    print(f"{about}: {new:.1f} / {old:.1f} us = {new / old:.2f}")
    return row


# --- the process of a side ---------------------------------------------------------------------------------


def serve(lock: str) -> int:
    """Answer each line of the standard input: a problem is prepared, and "time" times it.

    The lock of a file is held while something is timed.
    """
    import cudnn_ct as ct
    from cudnn_ct import _lib
    from cudnn_ct.autotune import benchmark

    for name in ("_quick_measure", "_remeasure"):
        setattr(benchmark, name, _alone(getattr(benchmark, name), lock))
    timed = _alone(_timed, lock)
    say = lambda value: print(json.dumps(value), flush=True)  # noqa: E731
    say(_lib.load().version_text)
    run: Callable[[], object] = list
    for line in sys.stdin:
        question = json.loads(line)
        if question == "time":
            say(timed(run, ct.synchronize))
            continue
        try:
            start = time.perf_counter()
            run, plan = prepared(question)
            say({"first_s": time.perf_counter() - start, "plan": plan})
        except Exception as error:
            say({"error": f"{type(error).__name__}: {str(error)[:200]}"})
    return 0


def _timed(run: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Return the microseconds of a call."""
    synchronize()
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        run()
    synchronize()
    return (time.perf_counter() - start) / (CALLS * LAUNCHES) * 1e6


def _alone(function: Callable[..., Any], path: str) -> Callable[..., Any]:
    """Return a function that holds the lock of a file while it runs."""

    @functools.wraps(function)
    def locked(*values: Any) -> Any:
        with Path(path).open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return function(*values)

    return locked


def prepared(problem: dict[str, Any]) -> tuple[Callable[[], object], str]:
    """Return a function that launches a graph of calls, and the plan of a call."""
    import numpy as np

    import cudnn_ct as ct

    rng = np.random.default_rng(problem["number"])
    geometry = {name: problem[name] for name in ("padding", "stride")}

    def put(*shape: int) -> Any:
        return ct.asarray(rng.standard_normal(shape, np.float32).astype(np.float16), layout="nhwc")

    shapes = {"x": tuple(problem["x"]), "w": tuple(problem["w"])}
    shapes["y"] = ct.conv_output_shape(shapes["x"], shapes["w"], **geometry)
    arrays = {name: put(*shape) for name, shape in shapes.items()}
    roles = {"forward": "xwy", "backward_data": "ywx", "backward_filter": "yxw"}[problem["direction"]]
    first, second, out = (arrays[role] for role in roles)
    function = getattr(ct, "conv" if problem["direction"] == "forward" else f"conv_{problem['direction']}")
    shape = () if problem["direction"] == "forward" else (out.shape,)

    def call() -> None:
        function(first, second, *shape, **geometry, algo="autotune", out=out)

    def calls() -> None:
        for _ in range(CALLS):
            call()

    call()
    plan = str(ct.last_plan().candidate)
    captured = ct.capture(calls)
    captured()
    captured()
    return captured, plan


if __name__ == "__main__":
    sys.exit(main())
