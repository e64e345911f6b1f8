"""Time causal convolutions of Mamba layers in bfloat16 on one GPU, with SiLU, and compare with PyTorch.

    python benchmarks/causal_conv.py [--library LIBCUDNN] [--json OUT]

Each library runs in a process of its own, so LIBCUDNN, the cuDNN of cudnn_ct, may be another one than that of
PyTorch: the operations need 9.22 or newer. A time is the median over rounds of loops of calls, after the
kernels are compiled. "copy" is a copy of x, which reads and writes as many bytes as the forward pass. The
exit status is 1 if a process failed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

SHAPES = (  # sequences, channels, length
    (8, 1536, 2048),
    (1, 5120, 2048),
    (1, 4096, 8192),
    (32, 2048, 512),
    (4, 8192, 2048),
    (1, 1536, 16384),
)
WIDTH = 4
CALLS, ROUNDS = 50, 7
RATIOS = (("forward", "eager"), ("forward", "compiled"), ("forward", "copy"), ("backward", "eager backward"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--library", default="", metavar="LIBCUDNN", help="the cuDNN of cudnn_ct")
    options.add_argument("--json", type=Path, help="write the times to this file")
    options.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.side:
        print(json.dumps([SIDES[given.side](*shape) for shape in SHAPES]))
        return 0
    ours = child("ours", {"CUDNN_CT_LIBRARY": given.library} if given.library else {})
    theirs = child("torch", {})
    if not ours or not theirs:
        return 1
    rows = [one | other for one, other in zip(ours, theirs, strict=True)]
    print("microseconds of a call")
    for shape, row in zip(SHAPES, rows, strict=True):
        print(shape, ", ".join(f"{name} {value:.1f}" for name, value in row.items()))
    for first, second in RATIOS:
        print(f"{first} / {second}: {geomean([row[first] / row[second] for row in rows]):.2f}")
    if given.json:
        given.json.write_text(json.dumps([{"shape": s, **r} for s, r in zip(SHAPES, rows, strict=True)]))
    return 0


def child(side: str, environ: dict[str, str]) -> list[dict[str, float]]:
    """Time one side in a process of its own; empty if it failed, after its last lines were printed."""
    command = [sys.executable, __file__, "--side", side]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{side} failed with {done.returncode}:\n{done.stderr[-2000:]}")
        return []
    print(done.stderr[-1000:], end="")
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(n: int, channels: int, length: int) -> dict[str, float]:
    """Time the operations of this package, in both layouts."""
    import ml_dtypes
    import numpy as np

    import cudnn_ct as ct

    rng = np.random.default_rng(0)
    put = lambda *shape: ct.asarray(rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16))  # noqa: E731
    x, w, bias, y = put(n, channels, length), put(channels, WIDTH), put(channels), put(n, channels, length)
    x_last, w_last = put(n, length, channels).transpose(0, 2, 1), put(WIDTH, channels).T
    y_last = put(n, length, channels).transpose(0, 2, 1)
    sums = ct.zeros((channels, WIDTH)), ct.zeros((channels,))
    calls: dict[str, Callable[[], Any]] = {
        "forward": lambda: ct.causal_conv1d(x, w, bias, activation="silu", out=y),
        "adjacent channels": lambda: ct.causal_conv1d(x_last, w_last, bias, activation="silu", out=y_last),
        "backward": lambda: ct.causal_conv1d_backward(x, x, w, bias, activation="silu", out=(y, *sums)),
    }
    found = {}
    for name, call in calls.items():
        started = time.perf_counter()
        call()
        ct.synchronize()
        print(f"first call, {name}: {time.perf_counter() - started:.2f} s", file=sys.stderr)
        found[name] = timed(call, ct.synchronize)
    return found


def by_torch(n: int, channels: int, length: int) -> dict[str, float]:
    """Time PyTorch, eager and compiled, and a copy."""
    import torch
    from torch.nn import functional

    def put(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def layer(x: Any, w: Any, bias: Any) -> Any:
        padded = functional.pad(x, (WIDTH - 1, 0))
        return functional.silu(functional.conv1d(padded, w[:, None], bias, groups=channels))

    x, w, bias = put(n, channels, length), put(channels, WIDTH), put(channels)
    y, compiled = torch.empty_like(x), torch.compile(layer)
    found = {}
    with torch.inference_mode():
        for name, call in (
            ("eager", lambda: layer(x, w, bias)),
            ("compiled", lambda: compiled(x, w, bias)),
            ("copy", lambda: y.copy_(x)),
        ):
            found[name] = timed(call, torch.cuda.synchronize)
    leaves = tuple(one.clone().requires_grad_() for one in (x, w, bias))
    result, dy = layer(*leaves), torch.randn_like(x)
    backward = lambda: torch.autograd.grad(result, leaves, dy, retain_graph=True)  # noqa: E731
    return found | {"eager backward": timed(backward, torch.cuda.synchronize)}


SIDES = {"ours": ours, "torch": by_torch}


def timed(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the microseconds of a call, the median over rounds of loops that end with a wait."""
    for _ in range(12):  # replays begin after a few calls with the same pointers
        call()
    times = []
    for _ in range(ROUNDS):
        wait()
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        wait()
        times.append((time.perf_counter() - started) / CALLS * 1e6)
    return statistics.median(times)


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(map(log, values)) / len(values))


if __name__ == "__main__":
    sys.exit(main())
