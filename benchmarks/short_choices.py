"""Choices of algorithms on convolutions that are drawn, and times of first calls, for `all.py`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from short_pairs import Pair, Row, drawn_tensor, rows_of

NUMBER = 40  # of drawn convolutions
MOST = 2**35  # multiplications of one
ELEMENTS = 2**26  # of an array


class Drawn(NamedTuple):
    """A convolution: shapes of x and w, and its parameters."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    padding: int
    stride: int
    groups: int
    dtype: str
    channels_last: bool

    def __str__(self) -> str:
        more = f"padding {self.padding}, stride {self.stride}, groups {self.groups}"
        return f"{self.x} * {self.w}, {more}, {self.dtype}{', NHWC' * self.channels_last}"


def drawn_convolutions(seed: int, number: int = NUMBER) -> Iterator[Drawn]:
    """Yield random convolutions that take at most some milliseconds."""
    source = random.Random(seed)
    while number:
        axes = source.choice((1, 2, 2, 2, 2, 3))
        channels, filters = (round(2 ** source.uniform(0, 12)) for _ in range(2))
        groups = source.choice((1, 1, 1, 1, channels, 4))
        if groups > 1:
            channels = max(groups, channels // groups * groups)
            filters = max(groups, filters // groups * groups)
        batch, window = round(2 ** source.uniform(0, 9.4)), source.choice((1, 3, 3, 3, 5, 7, 11, 25))
        size = round(2 ** source.uniform(0, 9.4 if axes < 3 else 6))
        padding, stride = source.choice((0, window // 2, window // 2)), source.choice((1, 1, 1, 2, 3, 4))
        result = (size + 2 * padding - window) // stride + 1
        shapes = (batch, channels, *(size,) * axes), (filters, channels // groups, *(window,) * axes)
        dtype, last = source.choice(("float32", "float16", "bfloat16")), axes > 1 and source.random() < 0.5
        one = Drawn(*shapes, padding, stride, groups, dtype, last)
        pixels = batch * max(result, 0) ** axes
        work = pixels * filters * (channels // groups) * window**axes
        sizes = batch * channels * size**axes, pixels * filters
        if result > 0 and work <= MOST and max(sizes) <= ELEMENTS:
            number -= 1
            yield one


def choices(*, rounds: int, seed: int, **_: Any) -> Iterator[Row]:
    """Yield times of the heuristic choice divided by those of the fastest algorithm."""
    pairs = {str(one): partial(chosen, one) for one in drawn_convolutions(seed)}
    yield from rows_of(pairs, min(rounds, 5))


def chosen(one: Drawn) -> Pair:
    import cudnn_ct as ct

    x, w = (drawn_tensor(shape, one.dtype) for shape in (one.x, one.w))
    if one.channels_last:
        x, w = (ct.asarray(array).packed("nhwc") for array in (x, w))
    given = {"padding": one.padding, "stride": one.stride, "groups": one.groups}
    far = 0.05 if one.dtype != "float32" else 1e-2
    calls = {algo: partial(ct.conv, x, w, **given, algo=algo) for algo in ("heuristic", "autotune")}

    def told() -> Row:
        return {algo: plan_after(call) for algo, call in calls.items()}

    return Pair(*calls.values(), near=far, told=told)


def plan_after(call: Callable[[], Any]) -> str:
    """Return the algorithm that a call uses."""
    import cudnn_ct as ct

    call()
    return str(ct.last_plan().candidate)


def transposed(*, rounds: int, seed: int, **_: Any) -> Iterator[Row]:
    """Yield transposed convolutions of one axis in float32 against PyTorch, as in vocoders."""
    source, pairs = random.Random(seed), {}
    for _ in range(8):
        channels = source.choice((32, 64, 128, 256, 512))
        stride = source.choice((2, 4, 5, 8))
        length, batch = source.choice((200, 1000, 4096)), source.choice((1, 8, 16))
        name = f"({batch}, {channels}, {length}), window {2 * stride}, stride {stride}"
        pairs[name] = partial(upsampled, batch, channels, length, stride)
    yield from rows_of(pairs, rounds)


def upsampled(batch: int, channels: int, length: int, stride: int) -> Pair:
    import torch.nn.functional as F  # noqa: N812

    import cudnn_ct as ct

    x = drawn_tensor((batch, channels, length))
    w = drawn_tensor((channels, max(1, channels // 2), 2 * stride))
    given = {"stride": stride, "padding": stride // 2}
    ours = partial(ct.conv_transpose, x, w, **given)
    return Pair(ours, lambda: F.conv_transpose1d(x, w, **given), floor=partial(ours, algo="autotune"))


def patches(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield convolutions whose stride is their window against a product of the same memory, both ours."""
    sizes = (("videos", 522_240 // 8, (3, 2, 14, 14), 1280), ("one window", 65_536, (3, 16, 16), 768))
    yield from rows_of({name: partial(embedded, *one) for name, *one in sizes}, rounds)


def embedded(count: int, window: tuple[int, ...], filters: int) -> Pair:
    import cudnn_ct as ct

    x, w = drawn_tensor((count, *window), "float16"), drawn_tensor((filters, *window), "float16")
    rows, columns = x.reshape(count, -1), w.reshape(filters, -1).T
    return Pair(lambda: ct.conv(x, w, stride=window[1:]), lambda: ct.matmul(rows, columns))


# --- first calls -------------------------------------------------------------------------------------------

FIRST = """
import json, sys, time
import numpy as np
import cudnn_ct as ct
kind, seed, algo = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(seed)
put = lambda *shape, dtype="float16": ct.asarray(rng.standard_normal(shape).astype("f"), dtype)
ct.conv(put(1, 8, 9, 9), put(8, 8, 3, 3)).numpy()  # creates the handle
if kind == "convolution":
    n, c, k, size = (int(2 ** rng.uniform(*one)) for one in ((0, 6), (3, 9), (3, 9), (3, 6)))
    x, w = put(n, c, size, size), put(k, c, 3, 3)
    call = lambda: ct.conv(x, w, padding=1, algo=algo)
elif kind == "product":
    m, k, n = (8 * int(2 ** rng.uniform(4, 9)) for _ in range(3))
    x, w = put(m, k), put(k, n)
    call = lambda: ct.matmul(x, w, algo=algo)
elif kind == "norm":
    columns = 8 * int(2 ** rng.uniform(4, 9))
    x, scale = put(512, columns), put(columns)
    call = lambda: ct.layer_norm(x, scale, scale, algo=algo).y
else:
    size = 32 * int(2 ** rng.uniform(1, 5))
    x, rnn = put(50, 32, size), ct.RNN("lstm", size, size, 2, dtype="float16", algo=algo)
    w = put(rnn.weight_size)
    call = lambda: rnn.forward(x, w).y
ct.synchronize()
begin = time.perf_counter()
call().numpy()
print(json.dumps({"ms": 1e3 * (time.perf_counter() - begin)}))
"""
FIRST_CALLS = {"convolution": 8, "product": 2, "norm": 2, "network": 2}


def first(*, seed: int, **_: Any) -> Iterator[Row]:
    """Yield the milliseconds of first autotuned calls, each in a process of its own without a store.

    The floor is a first call that times nothing: the heuristic choice.
    """
    for kind, number in FIRST_CALLS.items():
        for place in range(number):
            row: Row = {"row": f"{kind} {place}"}
            try:
                floor, ms = (first_call(kind, seed + place, algo) for algo in ("heuristic", "autotune"))
                yield row | {"ms": ms, "ms_floor": floor}
            except RuntimeError as error:
                yield row | {"error": str(error)[:200]}


def first_call(kind: str, seed: int, algo: str) -> float:
    """Return the milliseconds of a first call in a process of its own."""
    command = [sys.executable, "-c", FIRST, kind, str(seed), algo]
    environ = {**os.environ, "CUDNN_CT_ALGO_CACHE": "off"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return float(json.loads(done.stdout.splitlines()[-1])["ms"])
