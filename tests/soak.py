"""Many operations with changing shapes; the memory that the package keeps must not grow.

python -m tests.soak                                # on a GPU: 200,000 operations, in about five minutes
python -m tests.soak --json benchmarks/results/reliability.json    # and keep the figures for the page

The bounds of the caches are lowered first, so that each of them is full many times over. The same operations
are made in four laps. In the first, kernels are loaded and caches fill. At the same place of both last laps
the caches are equally full, so memory that only the last one has was lost. The operating system counts host
memory, the driver counts device memory, and Python counts the blocks of its allocator.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

import pytest

import cudnn_ct as ct
from cudnn_ct import algo_cache, context, descriptors, testing
from cudnn_ct._caches import BoundedDict
from cudnn_ct.cuda import lifetime, memory
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnWarning
from tests.mixed import own_stream
from tests.op_cases import CASES, ON_IMAGES, row_of, simple_call

BOUND, PART = 256, 16  # a cache keeps at most a sixteenth of its usual entries, and at most 256
LAPS = 4
SAMPLES = 8  # of memory, in each lap
HOT = 24  # shapes that come again and again, for each kind of operation
FRESH = 0.03  # of all rounds have a shape that is mostly new
FRESH_CONV = 0.01  # of convolutions, whose algorithms take longest to choose

MAX_HOST = MAX_DEVICE = 8 * 2**20  # bytes in a lap
MAX_BLOCKS = 200  # of Python's allocator in a lap; and one more for every eight operations


class Sample(NamedTuple):
    """Memory in use after a number of operations, in bytes."""

    operations: int
    seconds: float
    host: int
    device: int
    python: int  # blocks of Python's allocator


# --- the operations ----------------------------------------------------------------------------------------


class Work:
    """Operations of random kinds and shapes from a seed; most shapes come again.

    ``make_stream`` creates another stream every ``per_stream`` rounds; an axis of an image is at most
    ``largest``.
    """

    def __init__(
        self, seed: int, make_stream: Callable[[], Any], *, per_stream: int = 250, largest: int = 24
    ) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._make_stream = make_stream
        self._per_stream = per_stream
        self._largest = largest
        self._stream: Any = None
        self._rounds = 0
        self.operations = 0
        self._network = ct.RNN("gru", 4, 8, dtype="float32", algo="standard")
        self._weights = ct.full((self._network.weight_size,), 0.1)
        self._state = ct.DropoutState(0.5, seed=1)
        self._own = {
            "conv_plan": self._conv_plan,
            "scale": self._scale,
            "RNN": self._rnn,
            "ctc_loss": self._ctc_loss,
            "dropout": self._dropout,
        }
        self._kinds = [row.operations[0] for row in CASES] + list(self._own)

    def begin_again(self) -> None:
        """Make the same operations from the first on."""
        self._random.seed(self._seed)
        self._rounds = 0

    def once(self) -> None:
        """Make the operations of one kind for one shape, and drop their results."""
        if self._rounds % self._per_stream == 0:
            self._stream = self._make_stream()
        self._rounds += 1
        kind = self._random.choice(self._kinds)
        fresh = self._random.random() < (FRESH_CONV if kind.startswith("conv") else FRESH)
        number = self._random.randrange(2**31) if fresh else self._random.randrange(HOT)
        shape = random.Random(f"{kind} {number}")
        with ct.use(stream=self._stream if self._random.random() < 0.2 else None):
            self.operations += self._own[kind](shape) if kind in self._own else self._row(kind, shape)

    def _row(self, kind: str, shape: random.Random) -> int:
        """Call the operations of a row of the table; return how many they are."""
        x = self._image(shape)
        operations = [name for name in row_of(kind).operations if name in ON_IMAGES]
        for name in operations:
            simple_call(name, x)
        return len(operations)

    def _image(self, shape: random.Random) -> ct.DeviceArray:
        dtype = shape.choice(("float32", "float16"))
        sizes = shape.randint(1, 3), 8, shape.randint(4, self._largest), shape.randint(4, self._largest)
        return ct.full(sizes, 0.1, dtype=dtype, layout=shape.choice(("nchw", "nhwc")))

    def _conv_plan(self, shape: random.Random) -> int:
        x = self._image(shape)
        w = ct.full((4, 8, 3, 3), 0.1, dtype=x.dtype)
        policy = shape.choice((None, "guess_once", "time_once"))
        plan = ct.conv_plan(x, w, padding=shape.randint(0, 1), algo=policy)
        plan(x, w, out=plan(x, w))
        return 2

    def _scale(self, shape: random.Random) -> int:
        x = self._image(shape)
        ct.scale(x, alpha=shape.randint(1, 2**20) / 2**10)
        ct.fill(x, shape.randint(0, 9))
        return 2

    def _rnn(self, shape: random.Random) -> int:
        batch, steps = shape.randint(1, 4), shape.randint(1, 12)
        lengths = tuple(shape.randint(1, steps) for _ in range(batch))
        self._network.forward(ct.full((steps, batch, 4), 0.1), self._weights, lengths=lengths)
        return 1

    def _ctc_loss(self, shape: random.Random) -> int:
        steps, batch = shape.randint(6, 20), shape.randint(1, 3)
        labels = [shape.randint(1, 4) for _ in range(2 * batch)]
        ct.ctc_loss(ct.full((steps, batch, 5), 0.5), labels, [2] * batch, [steps] * batch)
        return 1

    def _dropout(self, shape: random.Random) -> int:
        ct.dropout(self._image(shape), self._state)
        return 1


# --- caches and cycles -------------------------------------------------------------------------------------


def bounded() -> Iterator[tuple[str, int, int]]:
    """Yield every cache that fills as shapes change: its name, its entries, and their limit."""
    for name, size in testing.cache_sizes().items():
        if size.limit is not None:
            yield name, size.entries, size.limit
    yield "memory in flight", len(lifetime._in_flight), 64
    for ctx in context.local.contexts.values():
        yield "calls of a thread", len(ctx.calls), ctx.calls.limit
        yield "workspaces of a thread", len(ctx._workspaces), ctx._workspaces.limit
        # The network, the dropout state and the labels of CTC; other plans are dropped with their object.
        yield "plans of a thread", len(ctx.plans), 4
        for kept in ctx.plans.values():
            for part in kept if isinstance(kept, tuple) else (kept,):
                if isinstance(part, BoundedDict):
                    yield "calls of a plan", len(part), part.limit


@contextmanager
def lowered(limit: int) -> Iterator[None]:
    """Lower the limits of shared caches, and of all caches that are created from now on."""
    create = BoundedDict.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descriptors, "_cached", lru_cache(maxsize=limit)(descriptors._cached.__wrapped__))
        patch.setattr(streams, "MAX_STREAMS", min(streams.MAX_STREAMS, limit))
        patch.setattr(algo_cache._decisions, "limit", limit)
        patch.setattr(
            BoundedDict, "__init__", lambda self, usual: create(self, min(max(usual // PART, 2), limit))
        )
        yield


def cycles() -> list[str]:
    """Return the types of the package in reference cycles since the last collection.

    Without ctypes pointers of its bindings: the fakes cast them, and each cast is a cycle.
    """
    flags = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(flags)
    found = [f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage]
    gc.garbage.clear()
    gc.collect()
    return sorted({name for name in found if name.startswith("cudnn_ct") and "_bindings" not in name})


# --- the laps ----------------------------------------------------------------------------------------------


def sample(work: Work, begin: float) -> Sample:
    """Measure the memory in use now; on the device without idle memory of the pool."""
    ct.synchronize()
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * 4096
    free, total = memory.memory_info(streams.current_device())
    passed = round(time.monotonic() - begin, 1)
    return Sample(work.operations, passed, resident, total - free, sys.getallocatedblocks())


def soak(operations: int, seconds: float, work: Work) -> dict[str, Any]:
    """Make the operations; return the figures, and under ``wrong`` every limit that was exceeded."""
    begin = time.monotonic()
    samples: list[Sample] = []
    found: set[str] = set()
    gc.collect()
    gc.disable()
    try:
        for number in range(LAPS * SAMPLES):
            if number % SAMPLES == 0:
                work.begin_again()
            while work.operations < (number + 1) * operations // (LAPS * SAMPLES):
                work.once()
            if time.monotonic() - begin > seconds:
                break
            found.update(cycles())
            samples.append(sample(work, begin))
            print(samples[-1], flush=True)
    finally:
        gc.enable()
    caches = list(bounded())
    host = max(lost([one.host for one in samples]))
    device = max(lost([one.device for one in samples]))
    blocks = round(median(lost([one.python for one in samples])))
    wrong = [f"{name}: {size:,} of at most {limit:,}" for name, size, limit in caches if size > limit]
    if found:
        wrong.append(f"reference cycles: {', '.join(sorted(found))}")
    for name, grown, limit in (
        ("bytes of host memory", host, MAX_HOST),
        ("bytes of device memory", device, MAX_DEVICE),
        ("blocks of Python's allocator", blocks, MAX_BLOCKS + operations // (8 * LAPS)),
    ):
        if grown > limit:
            wrong.append(f"{grown:,} {name} more after a lap")
    if len(samples) < LAPS * SAMPLES:
        wrong.append(f"only {work.operations:,} operations in {seconds:.0f} s")
    return {
        "operations": work.operations,
        "seconds": round(time.monotonic() - begin, 1),
        "laps": [list(one) for one in samples[SAMPLES - 1 :: SAMPLES]],
        "host_growth": host,
        "device_growth": device,
        "python_blocks": blocks,
        "cycles": sorted(found),
        "caches": {name: [size, limit] for name, size, limit in caches},
        "wrong": wrong,
    }


def lost(amounts: list[int]) -> list[int]:
    """Return by how much the last lap exceeds the lap before it, at each of their places."""
    pairs = zip(amounts[-2 * SAMPLES : -SAMPLES], amounts[-SAMPLES:], strict=False)
    return [after - before for before, after in pairs] or [0]


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=600, help="when to stop at the latest")
    parser.add_argument("--json", help="the file of figures to put these into")
    options = parser.parse_args()
    if not (available := ct.available()):
        print(available.reason)
        return 2
    warnings.simplefilter("ignore", CudnnWarning)
    ct.config.algo_cache = "off"
    with lowered(BOUND):
        figures = soak(options.operations, options.seconds, Work(0, own_stream))
    for name, value in figures.items():
        print(f"{name}: {value}")
    if options.json:
        from tools.reliability import put, where

        put(options.json, "soak", figures | {"where": where()})
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
