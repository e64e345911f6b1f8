"""Measure what comparing first results costs: first calls of a process, and warm calls.

    python benchmarks/certificates.py [--rounds N]

A row is a graph of `ct.Graph`. First calls run in processes of their own, with an empty cache folder: without
comparison, compared for the first time, and with the certificate of the process before. Warm calls with and
without a comparison at their first call run in turns in one process. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import cudnn_ct as ct

CALLS = 200  # in a loop of warm calls


def product(g: ct.Graph) -> Any:
    a, b = g.input((256, 512), "float16"), g.input((512, 256), "float16")
    return g.relu(a @ b + g.input((256,), "float16"))


def convolution(g: ct.Graph) -> Any:
    x = g.input((8, 64, 28, 28), "float16", layout="nhwc")
    w = g.input((64, 64, 3, 3), "float16", layout="nhwc")
    return g.relu(g.conv(x, w, padding=1))


def elementwise(g: ct.Graph) -> Any:
    a, b = g.input((64, 4096), "float32"), g.input((64, 4096), "float32")
    return g.relu(a * b + a)


GRAPHS: dict[str, Callable[[ct.Graph], Any]] = {
    "product, bias, relu": product,
    "convolution, relu": convolution,
    "elementwise": elementwise,
}
STEPS = {"off": "off", "compared": "new", "with certificate": "new"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=3, help="processes for each row")
    options.add_argument("--child", help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        print(json.dumps(first_call(given.child)))
        return 0
    for name in GRAPHS:
        firsts = first_calls(name, given.rounds)
        listed = ", ".join(f"{step} {1e3 * seconds:.0f} ms" for step, seconds in firsts.items())
        print(f"{name}: first call {listed}; warm call compared / off {warm_ratio(name):.3f}", flush=True)
    return 0


def first_calls(name: str, rounds: int) -> dict[str, float]:
    """Return the medians of the times of first calls in processes of their own."""
    times: dict[str, list[float]] = {step: [] for step in STEPS}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            for step, setting in STEPS.items():
                folder = one if step == "off" else other
                env = os.environ | {"CUDNN_CT_CERTIFY": setting, "CUDNN_CT_ALGO_CACHE": folder}
                command = [sys.executable, __file__, "--child", name]
                done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
                times[step].append(json.loads(done.stdout.splitlines()[-1]))
    return {step: statistics.median(values) for step, values in times.items()}


def first_call(name: str) -> float:
    """Return the time of building a graph and of its first call, after another operation has run."""
    ct.activation(ct.asarray(np.ones((2, 3), np.float32)))
    f, operands = _made(name)
    start = time.perf_counter()
    f(*operands)
    ct.synchronize()
    return time.perf_counter() - start


def warm_ratio(name: str) -> float:
    """Return the time of warm calls of a compared graph divided by that of one that is not compared."""
    made = {}
    for setting in ("off", "new"):
        ct.config.certify = setting
        f, operands = _made(name)
        out = f(*operands)
        made[setting] = f, operands, out
        for _ in range(20):
            f(*operands, out=out)
    times: dict[str, list[float]] = {"off": [], "new": []}
    for _ in range(41):
        for setting, (f, operands, out) in made.items():
            ct.config.certify = setting
            f(*operands, out=out)
            ct.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                f(*operands, out=out)
            times[setting].append(time.perf_counter() - start)
            ct.synchronize()
    return statistics.median(times["new"]) / statistics.median(times["off"])


def _made(name: str) -> tuple[Any, list[ct.DeviceArray]]:
    g = ct.Graph()
    f = g.build(GRAPHS[name](g))
    rng = np.random.default_rng(0)
    operands = [
        ct.asarray(
            rng.normal(size=spec.shape).astype(np.float32),
            spec.dtype,
            layout=spec.layout if len(spec.shape) == 4 else None,
        )
        for spec in f.inputs.values()
    ]
    return f, operands


if __name__ == "__main__":
    sys.exit(main())
