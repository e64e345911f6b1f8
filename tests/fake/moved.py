"""Random sequences of calls whose memory moves, with replays and without: results, memory and errors agree.

``python -m tests.fake.moved SEED COUNT`` runs that many sequences, and prints the seeds of those that differ.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct import context, testing
from cudnn_ct.cuda import allocator
from cudnn_ct.cuda.stream import default_stream
from tests.both.replays import configured

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .installed import cudnn_installed, host_installed

BLOCKS, NBYTES = 6, 16384  # memory that operands and results take turns in
OFFSETS = (0, 0, 0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # bytes
STREAMS = (None, None, 0x5500, 0x6600)
SHAPE = (2, 4, 6, 6)
W, ROW, CHANNELS, EACH, MATRIX = (4, 4, 3, 3), (1, 1, 1, 6), (1, 4, 1, 1), (4,), (8, 8)
INTERRUPTED = (
    *("ops/_replay.py", "ops/_call.py"),
    *("cuda/backlog.py", "cuda/graph.py", "cuda/movable.py", "cuda/replay.py"),
)
BLOCK_OF_CACHE = allocator.MAX_BLOCK


class Kind(NamedTuple):
    """A call: the shapes of its operands and of its result, and a function of these and of keywords."""

    operands: tuple[tuple[int, ...], ...]
    result: tuple[int, ...] | None  # None: it takes no `out`
    call: Callable[..., Any]
    views: bool = True


def _plan(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of a plan that is made at the first use."""

    def call(made: dict[Any, Any], *operands: Any, **keywords: Any) -> Any:
        if make not in made:
            made[make] = make(*operands)
        return made[make](*operands, **keywords)

    return call


def _graph(a: Any, b: Any) -> Any:
    g = ct.Graph()
    return g.build(g.input(SHAPE) + g.input(SHAPE))


def _network(made: dict[Any, Any], x: Any, **keywords: Any) -> Any:
    if "net" not in made:
        net = ct.RNN("rnn_relu", 6, 3)
        made["net"] = net, ct.full((net.weight_size,), 0.125)
    net, w = made["net"]
    return net.forward(x, w, **keywords)


def _captured(made: dict[Any, Any], x: Any, **keywords: Any) -> Any:
    if "captured" not in made:
        made["captured"] = ct.capture(lambda x: ct.activation(ct.softmax(x)))
    return made["captured"](x).copy()


def of(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    return lambda _, *operands, **keywords: function(*operands, **fixed, **keywords)


KINDS: dict[str, Kind] = {
    "relu": Kind((SHAPE,), SHAPE, of(ct.activation)),
    "tanh": Kind((SHAPE,), SHAPE, of(ct.activation, mode="tanh", alpha=0.5)),
    "add": Kind((SHAPE, SHAPE), SHAPE, of(ct.op_tensor, op="add")),
    "mul": Kind((SHAPE, SHAPE), SHAPE, of(ct.op_tensor, op="mul", alpha1=0.25)),
    "add row": Kind((SHAPE, ROW), SHAPE, of(ct.op_tensor, op="add")),
    "softmax": Kind((SHAPE,), SHAPE, of(ct.softmax)),
    "softmax back": Kind((SHAPE, SHAPE), SHAPE, of(ct.softmax_backward)),
    "lrn": Kind((SHAPE,), SHAPE, of(ct.lrn)),
    "pool": Kind((SHAPE,), SHAPE, of(ct.pool, window=3, padding=1, stride=1)),
    "conv": Kind((SHAPE, W), SHAPE, of(ct.conv, padding=1)),
    "conv data": Kind((SHAPE, W), SHAPE, of(ct.conv_backward_data, x_shape=SHAPE, padding=1)),
    "conv filter": Kind((SHAPE, SHAPE), W, of(ct.conv_backward_filter, w_shape=W, padding=1)),
    "conv bias": Kind((SHAPE,), EACH, of(ct.conv_backward_bias)),
    "conv relu": Kind((SHAPE, W, CHANNELS), SHAPE, of(ct.conv_bias_activation, padding=1)),
    "transform": Kind((SHAPE,), SHAPE, of(ct.transform)),
    "cast": Kind((SHAPE,), None, of(ct.transform, dtype="float16")),
    "nhwc": Kind((SHAPE,), None, of(ct.transform, layout="nhwc")),
    "scale": Kind((SHAPE,), None, of(ct.scale, alpha=0.5)),
    "fill": Kind((SHAPE,), None, of(ct.fill, value=0.25)),
    "clear": Kind((SHAPE,), None, of(ct.fill, value=0)),
    "reduce": Kind((SHAPE,), CHANNELS, of(ct.reduce, axis=(0, 2, 3), keepdims=True)),
    "group norm": Kind((SHAPE, EACH, EACH), None, of(ct.group_norm, groups=2)),
    "instance norm": Kind((SHAPE, EACH, EACH), None, of(ct.instance_norm)),
    "layer norm": Kind((SHAPE, SHAPE[1:], SHAPE[1:]), None, of(ct.layer_norm)),
    "batch norm": Kind((SHAPE, *[CHANNELS] * 4), SHAPE, of(ct.batch_norm_inference)),
    "training": Kind((SHAPE, *[CHANNELS] * 2), None, of(ct.batch_norm_training)),
    "matmul": Kind((MATRIX, MATRIX), MATRIX, of(ct.matmul)),
    "matmul relu": Kind((MATRIX, MATRIX), MATRIX, of(ct.matmul, activation="relu", alpha=0.5)),
    "plan": Kind((SHAPE, W), SHAPE, _plan(lambda x, w: ct.conv_plan(x, w, padding=1)), views=False),
    "graph": Kind((SHAPE, SHAPE), SHAPE, _plan(_graph), views=False),
    "network": Kind(((5, 2, 6),), None, _network, views=False),
    "captured": Kind((SHAPE,), None, _captured),
}

EVENTS = (
    *("empty", "drop", "collect", "plans", "fail", "grow", "deterministic", "limit", "gone", "refuse"),
    "behind",
)
FALLIBLE = (
    *(f"cuGraphExec{kind}NodeSetParams" for kind in ("Kernel", "Memcpy", "Memset")),
    *("cuGraphLaunch", "cuGraphInstantiate", "cuStreamBeginCapture"),
)
SCALABLE = {"relu", "softmax", "lrn", "pool", "conv", "transform", "batch norm", "reduce"}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda array: array,
    "reversed": lambda array: array[..., ::-1],
    "turned": lambda array: array.transpose(*range(array.ndim - 2), array.ndim - 1, array.ndim - 2),
    "spread": lambda array: array[:1],
}


def sequence(rng: random.Random, length: int) -> list[tuple[Any, ...]]:
    """Draw steps: calls of a few kinds, and events between them."""
    kinds = rng.sample(list(KINDS), rng.randint(1, 4))
    views = rng.choice([("plain",), ("plain",), ("plain", "reversed", "turned")])
    offsets = rng.choice([(0,), (0, 0, 512, 1024), (0, 16, 32, 64, 128), OFFSETS])
    streams = rng.choice([(0,), (0,), (0, 2), (0, 2, 3)])
    threads = rng.choice([(0,), (0, 0, 0, 1)])
    factors = rng.choice([(1,), (1, 1, 0.5, 2, 0.0, -0.0)])
    disturbances = rng.choice(
        [("",), ("",), ("", "raise"), ("", "call"), ("", "", "collect", "empty", "call")]
    )
    steps: list[tuple[Any, ...]] = []
    while len(steps) < length:
        if rng.random() < 0.06:
            steps.append((rng.choice(EVENTS), rng.random()))
            continue
        kind = rng.choice(kinds)
        one = KINDS[kind]
        view = rng.choice(views) if one.views else "plain"
        blocks = rng.choices(range(BLOCKS), k=len(one.operands) + 1)
        if rng.random() < 0.9:
            blocks = rng.sample(range(BLOCKS), k=len(one.operands) + 1)
        places = [(block, rng.choice(offsets)) for block in blocks]
        where = [rng.choice(("pool", "pool", "pool", "new", "foreign")) for _ in one.operands]
        out = rng.choice((None, None, "pool", "pool", "pool", 0))
        alpha, beta = (rng.choice(factors), rng.choice(factors) - 1) if kind in SCALABLE else (1, 0)
        facts = (kind, view, places, where, out, alpha, 0 if out is None else beta)
        disturbed = rng.choice(disturbances), int(10 ** rng.uniform(0, 2.8))
        steps.append(
            ("call", facts, rng.choice(streams), rng.choice(threads), rng.randrange(2**31), disturbed)
        )
    return steps


def _arrays(results: Any) -> list[Any]:
    several = results if isinstance(results, tuple) else (results,)
    return [array for array in several if type(array) is ct.DeviceArray]


@contextlib.contextmanager
def _traced(after: int, action: Callable[[], object]) -> Iterator[None]:
    """Act after so many lines of replays, as a finalizer or the handler of a signal does."""
    left = [after]

    def trace(frame: Any, event: str, _: object) -> Any:
        if event == "line" and frame.f_code.co_filename.endswith(INTERRUPTED):
            left[0] -= 1
            if left[0] <= 0 and not _finalizing(frame):
                sys.settrace(None)
                action()
        return trace

    before = sys.gettrace()
    if after:
        sys.settrace(trace)
    try:
        yield
    finally:
        if after:
            sys.settrace(before)


def _finalizing(frame: Any) -> bool:
    """Return whether a finalizer or a function of the fakes runs, which no error leaves."""
    while frame is not None and frame.f_code.co_filename != __file__:
        if frame.f_code.co_name == "__del__" or "tests" in frame.f_code.co_filename.split("/"):
            return True
        frame = frame.f_back
    return False


class Run:
    """One run of a sequence; ``seen`` is all that must agree with other runs of it."""

    def __init__(self, host: Host, fake: FakeCudnn, device: int) -> None:
        self.host, self.fake, self.device = host, fake, device
        with ct.use(device=device):
            self.pool = [ct.zeros((NBYTES // 4,)) for _ in range(BLOCKS)]
        self.kept: list[Any] = []
        self.made: list[dict[Any, Any]] = [{}, {}]
        self.seen: list[Any] = []
        self.undisturbed: dict[Any, bytes] = {}

    def write(self, pointer: int, values: np.ndarray) -> None:
        ctypes.memmove(pointer, np.ascontiguousarray(values).ctypes.data, values.nbytes)

    def slot(self, place: tuple[int, int], shape: tuple[int, ...]) -> Any:
        first = place[1] // 4
        return self.pool[place[0]][first : first + int(np.prod(shape))].reshape(shape)

    def call(self, facts: tuple[Any, ...], stream: int, thread: int, *more: Any) -> None:
        with ct.use(device=self.device):
            self._call(facts, stream, thread, *more)

    def _alone(self, kind: str, thread: int) -> bytes:
        """Return the results of a call on memory of its own."""
        operands = []
        for place, shape in enumerate(KINDS[kind].operands):
            operands.append(ct.empty(shape))
            values = np.random.default_rng(place).integers(-8, 9, shape).astype(np.float32) / 4
            self.write(operands[-1].pointer, values)
        try:
            results = KINDS[kind].call(self.made[thread], *operands)
        except ct.CudnnError:
            return b""
        return b"".join([one.numpy().tobytes() for one in _arrays(results)])

    def _disturb(self, action: str, kind: str, thread: int) -> None:
        if action == "raise":
            raise KeyboardInterrupt
        if action == "collect":
            gc.collect()
        elif action == "empty":
            ct.empty_cache(self.device)
        elif action == "call" and self._alone(kind, thread) != self.undisturbed[kind]:
            self.seen.append(("wrong", kind))

    def _call(
        self, facts: tuple[Any, ...], stream: int, thread: int, seed: int, disturbed: tuple[str, int]
    ) -> None:
        kind, view, places, where, out, alpha, beta = facts
        one, numbers = KINDS[kind], np.random.default_rng(seed)
        operands = []
        for place, home, shape in zip(places, where, one.operands, strict=False):
            values = numbers.integers(-8, 9, shape).astype(np.float32) / 4
            if home == "foreign":
                operands.append(ForeignArray(self.host, values, device=self.device))
                continue
            array = self.slot(place, shape) if home == "pool" else ct.empty(shape)
            self.write(array.pointer, values)
            array = VIEWS[view](array) if len(shape) == 4 else array
            operands.append(array)
        keywords: dict[str, Any] = {}
        if isinstance(out, int):
            if type(operands[out]) is ct.DeviceArray:
                keywords["out"] = operands[out]
        elif out == "pool" and one.result is not None:
            keywords["out"] = self.slot(places[-1], one.result)
        if one.result is None:
            keywords.pop("out", None)
        if alpha != 1:
            keywords["alpha"] = alpha
        if beta and "out" in keywords:
            keywords["beta"] = beta
        results: Any
        action, after = disturbed
        if action == "call" and kind not in self.undisturbed:
            self.undisturbed[kind] = self._alone(kind, thread)
        try:
            where = {"stream": STREAMS[stream]} if STREAMS[stream] else {}
            with (
                ct.use(device=self.device, **where),
                _traced(after if action else 0, lambda: self._disturb(action, kind, thread)),
            ):
                results = one.call(self.made[thread], *operands, **keywords)
            if action == "raise":
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.settrace(None)
            for block in self.pool:
                self.write(block.pointer, np.zeros(NBYTES // 4, np.float32))
            return
        except (ValueError, TypeError, ct.CudnnError) as error:
            self.seen.append((kind, type(error).__name__))
            return
        arrays = _arrays(results)
        self.seen.append((kind, *[array.numpy().tobytes() for array in arrays]))
        self.kept.append((arrays, operands if seed % 3 else None))
        del self.kept[: -(seed % 12) or None]

    # --- events ---

    def event(self, name: str, number: float) -> None:
        if name == "empty":
            ct.empty_cache(self.device)
        elif name == "drop":
            self.kept.clear()
        elif name == "collect":
            gc.collect()
        elif name == "plans":
            self.made = [{}, {}]
        elif name == "fail":
            failing = [name for name in FALLIBLE if random.Random(repr((name, number))).random() < 0.2]
            self.host.failing = dict.fromkeys(failing, 1)
        elif name == "grow":
            self.fake.workspaces = {"GEMM": int(number * 4096), "ALGO_1": int(number * 4096)}
        elif name == "deterministic":
            ct.config.deterministic = number < 0.5
        elif name == "limit":
            ct.config.workspace_limit = 0 if number < 0.3 else None
        elif name == "gone":
            with ct.use(device=self.device):
                self.pool[int(number * BLOCKS)] = ct.zeros((NBYTES // 4,))
        elif name == "behind":
            with ct.use(device=self.device):
                backlog = context.current(default_stream(self.device)).replays.backlog
            backlog.moves, backlog.alone = number < 0.75, number < 0.25
            backlog.left, backlog.until = 0, -9
        elif name == "refuse":
            self.fake.unrunnable = {"GEMM"} if number < 0.5 else set()

    def all(self, steps: list[tuple[Any, ...]], worker: ThreadPoolExecutor) -> None:
        for step, *facts in steps:
            if step != "call":
                self.event(step, *facts)
                continue
            if facts[2]:
                worker.submit(self.call, *facts).result()
            else:
                self.call(*facts)
            content = hashlib.blake2b()
            for block in self.pool:
                content.update(block.numpy().tobytes())
            self.seen.append(content.digest())


@contextlib.contextmanager
def _installed(seed: int, *, jit: bool) -> Iterator[tuple[Host, FakeCudnn]]:
    rng, before = random.Random(seed), allocator.MAX_BLOCK
    gc.collect()
    with host_installed() as host, cudnn_installed(host) as fake:
        host.devices = rng.choice((1, 2))
        fake.engines = jit
        if rng.random() < 0.5:
            allocator.MAX_BLOCK = BLOCK_OF_CACHE
        try:
            yield host, fake
        finally:
            allocator.MAX_BLOCK = before


def runs_of(seed: int, length: int = 90) -> tuple[list[Any], list[Any], dict[str, int]]:
    """Run the sequence of a seed without replays and with them; return what was seen, and counts of calls."""
    rng = random.Random(seed)
    steps, after, jit = sequence(rng, length), rng.choice((1, 1, 2)), rng.random() < 0.3
    seen, counts = [], {}
    for replay in (False, True):
        with (
            _installed(seed, jit=jit) as (host, fake),
            configured(replay=replay, deterministic=False, workspace_limit=None),
            testing.replay_after(after),
            ThreadPoolExecutor(1) as worker,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", ct.CudnnWarning)  # of captures that fail
            run = Run(host, fake, random.Random(seed).randrange(host.devices))
            run.all(steps, worker)
            host.failing.clear()
            seen.append(run.seen)
            for name in ("cuGraphLaunch", "cuStreamBeginCapture", "cuGraphInstantiate"):
                counts[name] = host.calls.count(name)
            counts["updates"] = sum("NodeSetParams" in name for name in host.calls)
            del run
    return seen[0], seen[1], counts


def main(first: int, count: int) -> None:
    total: dict[str, int] = {}
    unraisable: list[str] = []
    sys.unraisablehook = lambda one: unraisable.append(repr(one.exc_value))  # its frames keep memory
    for seed in range(first, first + count):
        try:
            expected, found, counts = runs_of(seed)
        except BaseException as error:
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if isinstance(error, KeyboardInterrupt):
                raise
            continue
        if unraisable:
            print(f"seed {seed}: unraisable {unraisable[0]}", flush=True)
            unraisable.clear()
        for name, number in {**counts, "calls": len(found) // 2}.items():
            total[name] = total.get(name, 0) + number
        if expected != found:
            at = next(i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b)
            what = found[at] if isinstance(found[at], tuple) else ("memory after", found[at - 1])
            print(f"seed {seed}: step {at // 2} differs: {str(what[:2])[:120]}", flush=True)
        if seed % 50 == 49 or seed == first + count - 1:
            print(f"seeds {first} to {seed}: {total}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
