"""Measure the Python time of warm calls, from the arguments to the plan. No GPU or cuDNN is needed.

    PYTHONPATH=. python benchmarks/call_path.py
    PYTHONPATH=. python benchmarks/call_path.py --json before.json

The fakes of the tests replace the libraries, and an empty function replaces the launch of the graph that
replays a call. A time is the minimum of nine rounds, in microseconds per call. To compare two versions,
alternate their runs on one idle machine. ``functions`` counts the Python functions of the package that one
call enters.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
import timeit
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import allocator
from cudnn_ct.cuda import stream as streams
from tests.fake.installed import cudnn_installed, host_installed

PACKAGE = str(Path(ct.__file__).parent)
ROUNDS, CALLS = 9, 5000
MAX_BLOCK = allocator.MAX_BLOCK
WARM = 20  # calls before the first measurement, after which calls are replayed


def launch_nothing() -> Callable[[], int]:
    """Return a function of C that takes as long as a call through ctypes, and returns 0."""
    return partial(ctypes.CDLL(None).isalpha, ctypes.c_int(0))


def calls() -> dict[str, Callable[[], Any]]:
    """Return warm calls by name."""
    x, w, y = ct.zeros((2, 3, 5, 6)), ct.zeros((4, 3, 3, 3)), ct.zeros((2, 4, 3, 4))
    same, pooled = ct.zeros(x.shape), ct.zeros((2, 3, 2, 3))
    return {
        "conv": lambda: ct.conv(x, w),
        "conv, out=": lambda: ct.conv(x, w, out=y),
        "conv, alpha=, beta=, out=": lambda: ct.conv(x, w, alpha=2, beta=0.5, out=y),
        "activation, out=": lambda: ct.activation(x, out=same),
        "add, out=": lambda: ct.add(x, x, out=same),
        "pool, out=": lambda: ct.pool(x, window=2, out=pooled),
        "scale": lambda: ct.scale(same, alpha=1),
    }


def functions(call: Callable[[], Any]) -> int:
    """Count the functions of the package that a call enters, without comprehensions, as Python 3.12 does."""
    entered = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal entered
        own = frame.f_code.co_filename.startswith(PACKAGE) and not frame.f_code.co_name.startswith("<")
        entered += event == "call" and own

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def measure(repeat: int = CALLS) -> dict[str, dict[str, float]]:
    """Return the microseconds and the number of functions of each call, which each round repeats."""
    with host_installed() as host, cudnn_installed(host):
        host.devices = 1
        allocator.MAX_BLOCK = MAX_BLOCK  # the fakes cache no blocks, but most real calls use cached blocks
        return {name: measured(number, repeat) for number, name in enumerate(calls())}


def measured(number: int, repeat: int) -> dict[str, float]:
    """Return the microseconds and the number of functions of one call."""
    call = list(calls().values())[number]
    for _ in range(WARM):
        call()
    for prepared in context.current(streams.default_stream(0)).calls.values():
        for replay in prepared.replays.values():
            replay.launch = launch_nothing()
    times = [timeit.timeit(call, number=repeat) / repeat * 1e6 for _ in range(ROUNDS)]
    gc.collect()  # the next call reuses the blocks that are in no cycle any more
    call()
    return {"us": round(min(times), 2), "functions": functions(call)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the calls, print a table, and write it to a file with ``--json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    found = measure()
    for name, row in found.items():
        print(f"{row['us']:8.2f} us {row['functions']:4} functions  {name}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
