"""Measure the Python time of a GPT without a capture, whose arrays are new in each pass. No GPU is needed.

    PYTHONPATH=. python benchmarks/network_path.py
    PYTHONPATH=. python benchmarks/network_path.py --top 40

The networks are those of `short_networks.py`, of small sizes, and all their arrays are freed on their stream
as large ones are. The fakes of the tests replace the libraries. After the first passes, empty functions of C
replace the launches of graphs that take any pointers, and the updates of their nodes; no graph is recorded
for the same pointers. ``calls`` counts the functions of Python and of C that a pass enters, ``us`` is the
minimum of several rounds; both are divided by the number of operations.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import gc
import sys
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import short_networks as networks

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import memory
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.movable import MovableGraph
from cudnn_ct.ops import _replay
from tests.fake.cudnn import FakeCudnn
from tests.fake.installed import cudnn_installed, host_installed

ALLOCATE = memory.allocate
ROUNDS, CALLS, WARM = 15, 3000, 24
BATCH = 2


def launch_nothing() -> Callable[[], int]:
    """Return a function of C that takes as long as a call through ctypes, and returns 0."""
    return partial(ctypes.CDLL(None).isalpha, ctypes.c_int(0))


def weights() -> dict[str, Any]:
    """Return the weights of the layers, zeros in half precision."""
    width = networks.WIDTH
    shapes = {"qkv": (width, 3 * width), "mix": (width, width), "up": (width, 4 * width)}
    shapes["down"] = (4 * width, width)
    found = {}
    for i in range(networks.LAYERS):
        for name, shape in shapes.items():
            found[f"{name}{i}"], found[f"{name}{i} bias"] = zeros(*shape), zeros(*shape[1:])
        for name in ("before", "between"):
            found[f"{name}{i}"], found[f"{name}{i} bias"] = zeros(width), zeros(width)
    return found


def zeros(*shape: int) -> Any:
    return ct.zeros(shape, "float16")


def passes() -> dict[str, Callable[[], Any]]:
    """Return a pass of each network by name, and calls on a new operand each time."""
    w, x = weights(), zeros(BATCH * networks.LENGTH, networks.WIDTH)
    dy, last = zeros(*x.shape), [x]

    def training() -> Any:
        kept: list[Any] = []
        networks.our_gpt(w, BATCH, x, kept)
        return networks.our_gradients(w, dy, kept, BATCH)

    def chain() -> Any:
        last[0] = ct.activation(last[0])
        return last[0]

    return {
        "GPT inference": lambda: networks.our_gpt(w, BATCH, x),
        "GPT training": training,
        "relu of the last result": chain,
    }


def entered(call: Callable[[], Any], top: int) -> tuple[int, collections.Counter[str]]:
    """Count the functions that a call enters, and name them."""
    names: collections.Counter[str] = collections.Counter()

    def count(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            code = frame.f_code
            names[f"{'/'.join(code.co_filename.split('/')[-2:])}:{code.co_name}"] += 1
        elif event == "c_call":
            names[f"{getattr(function, '__qualname__', function)}"] += 1

    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    del names["setprofile"], names["sys.setprofile"]
    if top:
        for name, number in names.most_common(top):
            print(f"    {number:6} {name}")
    return names.total(), names


def operations(call: Callable[[], Any]) -> int:
    """Return the number of operations of a pass."""
    watched: list[Any] = []
    ctx = context.of_device(0)
    ctx.watched = watched
    call()
    ctx.watched = None
    return len(watched)


def without_launches() -> None:
    """Replace the launches of all graphs."""
    for prepared in context.current(streams.default_stream(0)).calls.values():
        for replay in prepared.replays.values():
            moved: MovableGraph = replay.launch.__self__
            moved._launch = launch_nothing()
            moved._updates = tuple(launch_nothing() for _ in moved._updates)


def measure(call: Callable[[], Any], name: str, top: int) -> None:
    """Print the figures of one pass."""
    for _ in range(WARM):
        call()
    count = operations(call)
    without_launches()
    number = max(1, CALLS // count)
    times = [timeit.timeit(call, number=number) / number * 1e6 for _ in range(ROUNDS)]
    calls = entered(call, top)[0]
    print(f"{min(times) / count:7.2f} us {calls / count:6.1f} calls for each of {count:3} operations  {name}")


def main() -> None:
    """Measure the passes, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--top", type=int, default=0, help="print the functions that are entered most")
    parser.add_argument("--only", default="", help="a part of the names of passes to measure")
    options = parser.parse_args()
    networks.WIDTH, networks.HEADS, networks.LENGTH = 32, 4, 16
    with host_installed() as host, cudnn_installed(host, FakeCudnn) as fake:
        host.devices, memory.allocate, fake.engines = 1, ALLOCATE, True
        _replay.REPEATS = sys.maxsize
        for name, call in passes().items():
            if options.only in name:
                measure(call, name, options.top)
        del call
        ct.empty_cache()
        host.live.clear()


if __name__ == "__main__":
    main()
