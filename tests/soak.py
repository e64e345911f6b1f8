"""Many mixed operations with changing shapes: what host and device remember of them must not grow.

python -m tests.soak                                # on a GPU: 200,000 operations, in five minutes
python -m tests.soak --json benchmarks/results/reliability.json    # and keep the figures for the page

The bounds of the caches are lowered first, so that each of them is full many times over. The same operations
are made in four laps. In the first, kernels are loaded; by the third, memory has found its order. Between the
same places of the last two, the caches hold the same: what there is more of was lost. Host memory is what the
operating system counts; Python's own allocator is watched line by line, for a while in the first lap; device
memory is what the driver counts, but for what the pool keeps idle.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import sys
import time
import tracemalloc
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cudnn_ct as ct
from cudnn_ct import algo_cache, context, descriptors, testing
from cudnn_ct._caches import BoundedDict
from cudnn_ct.cuda import lifetime
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnWarning

BOUND, PART = 256, 16  # a cache holds such a part of what it otherwise does, and so many at most
LAPS = 4
LOOKS = 8  # at memory, in each
HOT = 40  # shapes that come again and again, for each kind of operation
FRESH = 0.03  # of all rounds have a shape that is mostly new
FRESH_CONV = 0.01  # of convolutions, which take longest to choose for
PER_STREAM = 250  # rounds until another stream is made
WATCHED = 2000  # rounds that Python's own memory is watched for; each is two operations, more or less

MOST_PYTHON = (
    200_000  # bytes that Python's allocator may have more after a phase: what is hot differs by chance
)
MOST_HOST = 8 * 2**20  # bytes of the process in a lap
MOST_DEVICE = 8 * 2**20  # bytes that the driver counts in a lap


class Sample(NamedTuple):
    """What was in use after some operations, in bytes."""

    operations: int
    seconds: float
    host: int
    device: int
    malloc: int
    python: int  # blocks of Python's allocator
    streams: int  # that are known


# --- the operations ----------------------------------------------------------------------------------------


class Work:
    """Operations of a kind and a shape from a seed, mostly a shape that was there before; and their count.

    ``make_stream`` gives another stream, asked each ``per_stream`` operations; an axis of an image is at most
    ``largest``.
    """

    def __init__(
        self, seed: int, make_stream: Callable[[], Any], *, per_stream: int = PER_STREAM, largest: int = 24
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
        self._dice = ct.DropoutState(0.5, seed=1)

    def begin_again(self) -> None:
        """Make the same operations from the first on."""
        self._random.seed(self._seed)
        self._rounds = 0

    def once(self) -> None:
        """Make the next few operations and let go of their results; every so often on another stream."""
        if self._rounds % self._per_stream == 0:
            self._stream = self._make_stream()
        self._rounds += 1
        kind = self._random.choice(list(KINDS))
        fresh = self._random.random() < (FRESH_CONV if kind.startswith("conv") else FRESH)
        number = self._random.randrange(2**31) if fresh else self._random.randrange(HOT)
        shape = random.Random(f"{kind} {number}")
        if self._random.random() < 0.2:
            with ct.use(stream=self._stream):
                self.operations += KINDS[kind](self, shape)
        else:
            self.operations += KINDS[kind](self, shape)

    def _image(self, shape: random.Random) -> Any:
        dtype = shape.choice(("float32", "float16"))
        sizes = shape.randint(1, 3), 8, shape.randint(4, self._largest), shape.randint(4, self._largest)
        return ct.full(sizes, 0.1, dtype=dtype, layout=shape.choice(("nchw", "nhwc")))

    def _conv(self, shape: random.Random) -> int:
        x = self._image(shape)
        w = ct.full((4, x.shape[1], 3, 3), 0.1, dtype=x.dtype)
        padding = shape.randint(0, 1)
        y = ct.conv(x, w, padding=padding)
        ct.conv_backward_bias(y)
        if shape.random() < 0.3:
            ct.conv_backward_data(y, w, x.shape, padding=padding)
            ct.conv_backward_filter(y, x, w.shape, padding=padding)
            return 4
        return 2

    def _conv_plan(self, shape: random.Random) -> int:
        x = self._image(shape)
        w = ct.full((8, x.shape[1], 1, 1), 0.5, dtype=x.dtype)
        plan = ct.conv_plan(x, w, algo=shape.choice((None, "guess_once", "time_once")))
        plan(x, w, out=plan(x, w))
        return 2

    def _pool(self, shape: random.Random) -> int:
        x, window = self._image(shape), {"window": 2, "stride": shape.randint(1, 2)}
        y = ct.pool(x, **window)
        ct.pool_backward(y, x, y, **window)
        return 2

    def _softmax(self, shape: random.Random) -> int:
        y = ct.softmax(self._image(shape))
        ct.softmax_backward(y, y)
        return 2

    def _activation(self, shape: random.Random) -> int:
        x = self._image(shape)
        y = ct.activation(x, mode=shape.choice(("relu", "tanh", "elu")), coefficient=shape.randint(1, 9) / 8)
        ct.activation(x, mode="relu", out=y)
        return 2

    def _batch_norm(self, shape: random.Random) -> int:
        x = self._image(shape)
        scale = ct.full((1, x.shape[1], 1, 1), 1.0)
        ct.batch_norm_training(x, scale, scale)
        return 1

    def _tensors(self, shape: random.Random) -> int:
        x = self._image(shape)
        ct.scale(ct.add(x, x), alpha=shape.randint(1, 2**20) / 2**10)
        ct.op_tensor(x, x, op="mul")
        ct.transform(x, layout="nhwc")
        ct.fill(x, shape.randint(0, 9))
        return 5

    def _reduce(self, shape: random.Random) -> int:
        ct.reduce(self._image(shape), op=shape.choice(("add", "max")), axis=shape.choice(((1,), (2, 3))))
        return 1

    def _rnn(self, shape: random.Random) -> int:
        batch, steps = shape.randint(1, 4), shape.randint(1, 12)
        x = ct.full((steps, batch, 4), 0.1)
        lengths = tuple(shape.randint(1, steps) for _ in range(batch))
        self._network.forward(x, self._weights, lengths=lengths)
        return 1

    def _ctc(self, shape: random.Random) -> int:
        steps, batch = shape.randint(6, 20), shape.randint(1, 3)
        labels = [shape.randint(1, 4) for _ in range(2 * batch)]
        ct.ctc_loss(ct.full((steps, batch, 5), 0.5), labels, [2] * batch, [steps] * batch)
        return 1

    def _dropout(self, shape: random.Random) -> int:
        ct.dropout(self._image(shape), self._dice)
        return 1


# How each kind of operation is made: it returns how many those were, without what fills their operands.
KINDS: dict[str, Callable[[Work, random.Random], int]] = {
    name.removeprefix("_"): getattr(Work, name)
    for name in (
        "_conv",
        "_conv_plan",
        "_pool",
        "_softmax",
        "_activation",
        "_batch_norm",
        "_tensors",
        "_reduce",
        "_rnn",
        "_ctc",
        "_dropout",
    )
}


# --- what is remembered ------------------------------------------------------------------------------------


def bounded() -> Iterator[tuple[str, int, int]]:
    """Every cache that fills as shapes change: its name, how much is in it, how much may be."""
    for name, size in testing.cache_sizes().items():
        if size.limit is not None:
            yield name, size.entries, size.limit
    yield "memory in flight", len(lifetime._in_flight), 64
    for ctx in context._thread.contexts.values():
        yield "calls of a thread", len(ctx.calls), ctx.calls.limit
        yield "workspaces of a thread", len(ctx._workspaces), ctx._workspaces.limit
        # Those of the network and of CTC; a plan takes its own with it.
        yield "plans of a thread", len(ctx.plans), 4
        for kept in ctx.plans.values():
            for part in kept if isinstance(kept, tuple) else (kept,):
                if isinstance(part, BoundedDict):
                    yield "calls of a plan", len(part), part.limit


@contextmanager
def lowered(limit: int) -> Iterator[None]:
    """Let all caches that were not used yet, and those that are made from now on, be full soon."""
    made = BoundedDict.__init__
    cached = descriptors._cached
    shared = algo_cache._decisions, algo_cache._once
    limits, known = [cache.limit for cache in shared], streams.MAX_STREAMS
    BoundedDict.__init__ = lambda self, most: made(self, min(max(most // PART, 2), limit))  # type: ignore[method-assign]
    descriptors._cached = lru_cache(maxsize=limit)(cached.__wrapped__)
    streams.MAX_STREAMS = min(known, limit)
    for cache in shared:
        cache.limit = limit
    try:
        yield
    finally:
        descriptors._cached, BoundedDict.__init__ = cached, made  # type: ignore[method-assign]
        streams.MAX_STREAMS = known
        for cache, most in zip(shared, limits, strict=True):
            cache.limit = most


def cycles() -> list[str]:
    """What of the package only the collector of cycles has found since it ran last, by type."""
    flags = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(flags)
    found = [f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage]
    gc.garbage.clear()
    gc.collect()  # what was saved to be looked at goes now
    return sorted({name for name in found if name.startswith("cudnn_ct")})


def forget() -> None:
    """Clear all caches of problems and calls."""
    algo_cache._decisions.clear()
    algo_cache._once.clear()
    descriptors._cached.cache_clear()
    for ctx in context._thread.contexts.values():
        ctx.calls.clear()


def growth(
    work: Callable[[], object], rounds: int, settle: Callable[[], object] = gc.collect
) -> tuple[int, list[str]]:
    """How many bytes more Python has after some rounds of work than before, and the lines that took most.

    Twice as many are made first, so that everything that comes and goes was taken while it was watched.
    ``settle`` is called before each look.
    """
    tracemalloc.start()
    try:
        looks = []
        for count in (2 * rounds, rounds):
            for _ in range(count):
                work()
            settle()
            gc.collect()
            looks.append(tracemalloc.take_snapshot().filter_traces(_OURS))
    finally:
        tracemalloc.stop()
    before, after = looks
    rows = after.compare_to(before, "lineno")
    return sum(row.size_diff for row in rows), [_line(row) for row in rows[:8]]


def _line(row: tracemalloc.StatisticDiff) -> str:
    place = row.traceback[0]
    return f"{'/'.join(place.filename.split('/')[-2:])}:{place.lineno} {row.size_diff:+,}"


_OURS = (
    tracemalloc.Filter(False, tracemalloc.__file__),
    tracemalloc.Filter(False, "*/tests/*"),
    tracemalloc.Filter(False, random.__file__),
)


# --- on a GPU ----------------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of host memory that the process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


_MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


def malloc_in_use() -> int:
    """Bytes that the C library's allocator has handed out; 0 where it does not tell."""

    class Info(ctypes.Structure):  # struct mallinfo2
        _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO]

    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = Info
    found = mallinfo2()
    return int(found.hblkhd + found.uordblks)


def mappings(smaps: Iterable[str] | None = None) -> Counter[str]:
    """Resident bytes of the process by what is mapped; anonymous memory by the size of its mapping."""
    if smaps is None:
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    found, name = Counter[str](), ""
    for line in smaps:
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            first, _, end = words[0].partition("-")
            size = (int(end, 16) - int(first, 16)) / 2**20
            name = words[5].rpartition("/")[2] if len(words) > 5 else f"anonymous, {size:.1f} MiB"
        elif words[0] == "Rss:":
            found[name] += int(words[1]) * 1024
    return found


def changed(before: Counter[str], after: Counter[str]) -> list[str]:
    """The mappings that changed most."""
    sizes = {name: after[name] - before[name] for name in before | after}
    most = sorted(sizes, key=lambda name: -abs(sizes[name]))[:12]
    return [f"{name} {sizes[name]:+,}" for name in most if sizes[name]]


def on_device() -> int:
    """Bytes of device memory that the driver counts as taken, those that the pool keeps idle left out."""
    from cudnn_ct.cuda import memory

    free, total = memory.memory_info(streams.current_device())
    return total - free


def sample(work: Work, begin: float) -> Sample:
    """What is in use now."""
    ct.synchronize()
    passed = round(time.monotonic() - begin, 1)
    memory = resident(), on_device(), malloc_in_use(), sys.getallocatedblocks()
    return Sample(work.operations, passed, *memory, testing.cache_sizes()["streams"].entries)


def soak(operations: int, seconds: float, make_stream: Callable[[], Any]) -> dict[str, Any]:
    """Make the operations; return the figures, and under ``wrong`` what is not as it should be."""
    begin, work = time.monotonic(), Work(0, make_stream)
    samples: list[Sample] = []
    maps: deque[Counter[str]] = deque(maxlen=LOOKS + 1)  # of the latest looks: their own memory counts
    found: set[str] = set()
    python, lines, watched = 0, list[str](), 0
    gc.disable()
    for look in range(LAPS * LOOKS):
        if look % LOOKS == 0:
            work.begin_again()
        while work.operations < (look + 1) * operations // (LAPS * LOOKS):
            work.once()
        if time.monotonic() - begin > seconds:
            break
        found.update(cycles())
        samples.append(sample(work, begin))
        maps.append(mappings())
        print(samples[-1], flush=True)
        if look == LOOKS // 2:
            forget()  # what was made unwatched is not seen to go
            watched = -work.operations
            python, lines = growth(work.once, WATCHED, forget)  # for the caches need not be full yet
            watched += work.operations
    gc.enable()
    full = list(bounded())
    host, device, malloc, blocks = (lost([one[i] for one in samples]) for i in (2, 3, 4, 5))
    wrong = [f"{name}: {have:,} of at most {limit:,}" for name, have, limit in full if have > limit]
    wrong += [f"reference cycles: {', '.join(sorted(found))}"] if found else []
    wrong += [f"host memory grew by {host:,} bytes"] if host > MOST_HOST else []
    wrong += [f"device memory grew by {device:,} bytes"] if device > MOST_DEVICE else []
    wrong += [f"Python's memory grew by {python:,} bytes"] if python > MOST_PYTHON else []
    wrong += (
        [f"only {work.operations:,} operations in {seconds:.0f} s"] if len(samples) < LAPS * LOOKS else []
    )
    return {
        "operations": work.operations,
        "seconds": round(time.monotonic() - begin, 1),
        "bound": BOUND,
        "laps": [list(one) for one in samples[LOOKS - 1 :: LOOKS]],
        "host_growth": host,
        "host_malloc_growth": malloc,
        "host_lines": changed(maps[0], maps[-1]) if len(maps) > LOOKS else [],
        "device_growth": device,
        "python_blocks": blocks,
        "python_growth": python,
        "python_watched": watched,
        "python_lines": lines,
        "cycles": sorted(found),
        "samples": [list(one) for one in samples],
        "caches": {name: [have, limit] for name, have, limit in full},
        "wrong": wrong,
    }


def lost(amounts: list[int]) -> int:
    """The most that there is more in the last lap than at the same place of the lap before."""
    pairs = zip(amounts[-2 * LOOKS : -LOOKS], amounts[-LOOKS:], strict=False)
    return max((after - before for before, after in pairs), default=0)


def new_stream() -> Any:
    from cuda.core import Device

    device = Device()
    device.set_current()
    return device.create_stream()


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=420, help="when to stop at the latest")
    parser.add_argument("--json", help="the file of figures to put these into")
    options = parser.parse_args()
    if options.operations < (least := 16 * WATCHED * LAPS):
        parser.error(f"with fewer than {least:,} operations there is nothing to watch in the first lap")
    if not (available := ct.available()):
        print(available.reason)
        return 2
    warnings.simplefilter("ignore", CudnnWarning)
    ct.config.algo_cache = "off"
    with lowered(BOUND):
        figures = soak(options.operations, options.seconds, new_stream)
    for name, value in figures.items():
        if name != "samples":
            print(f"{name}: {value}")
    if options.json:
        from tools.reliability import put, where

        put(options.json, "soak", figures | {"where": where()})
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
