"""Host time of calls on small operands, and memory of a process, for `all.py`."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from short_pairs import Pair, Row, drawn_tensor, rows_of

SETS = 64  # of operands that rotate
FRESH = 12_000  # calls whose operands never repeat

Call = Callable[..., Any]


def calls() -> dict[str, tuple[Call, Call, list[tuple[int, ...]], str]]:
    """Return our call and that of PyTorch, the shapes of operands and the dtype, by name."""
    import torch.nn.functional as F  # noqa: N812
    from torch import matmul

    import cudnn_ct as ct

    image, heads = (1, 8, 14, 14), (1, 2, 16, 64)
    return {
        "conv": (
            partial(ct.conv, padding=1), partial(F.conv2d, padding=1), [image, (16, 8, 3, 3)], "float32",
        ),
        "matmul": (ct.matmul, matmul, [(64, 64), (64, 64)], "float16"),
        "attention": (
            lambda q, k, v: ct.attention(q, k, v).y,
            F.scaled_dot_product_attention, [heads] * 3, "float16",
        ),
        "layer norm": (
            lambda x, scale, bias: ct.layer_norm(x, scale, bias, training=False).y,
            lambda x, scale, bias: F.layer_norm(x, (128,), scale, bias), [(16, 128), (128,), (128,)],
            "float16",
        ),
        "relu": (partial(ct.activation, mode="relu"), F.relu, [image], "float32"),
    }  # fmt: skip


def operands(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the host time of calls whose operands never repeat, and of those whose operands rotate."""
    pairs = {
        f"{name}, {how}, {whose}": partial(pair_of, name, count, whose)
        for how, count in (("never again", FRESH), ("64 sets", SETS))
        for whose in ("own arrays", "torch tensors")
        for name in calls()
    }
    yield from rows_of(pairs, rounds)


def pair_of(name: str, count: int, whose: str) -> Pair:
    """Return calls that take the next set of operands each time.

    Tensors of operands that never repeat are made before; memory of PyTorch's allocator does.
    """
    import cudnn_ct as ct

    ours, theirs, shapes, dtype = calls()[name]
    sizes = [256 * -(-prod(shape) // 256) for shape in shapes]
    memory = drawn_tensor((count * sum(sizes),), dtype)
    sets, place = [], 0
    for _ in range(count):
        one = []
        for shape, size in zip(shapes, sizes, strict=True):
            one.append(memory[place : place + prod(shape)].view(shape))
            place += size
        sets.append(one)
    given = [[ct.asarray(one) for one in several] for several in sets] if whose == "own arrays" else sets
    mine, others = itertools.cycle(given), itertools.cycle(sets)
    return Pair(lambda: ours(*next(mine)), lambda: theirs(*next(others)), host=True)


def prod(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape."""
    count = 1
    for n in shape:
        count *= n
    return count


def layers(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the host time of layers that write to ``out``, with tensors of PyTorch."""
    yield from rows_of({name: partial(layer_of, name) for name in LAYERS}, rounds)


def layer_of(name: str) -> Pair:
    """Return a layer that writes to a tensor; PyTorch writes to ``out`` where it can."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    import cudnn_ct as ct

    x = drawn_tensor((4, 16, 8, 8))
    small, out = drawn_tensor((32, 128)), torch.empty_like(x)
    scale, bias = drawn_tensor((16,)), drawn_tensor((16,))
    rows, halves = torch.empty_like(small), torch.empty(4, 16, 4, 4, device="cuda")
    sums = torch.empty(32, device="cuda")
    found: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "max pooling": (lambda: ct.pool(x, window=2, out=halves), lambda: F.max_pool2d(x, 2)),
        "average pooling": (
            lambda: ct.pool(x, window=2, mode="average_inc_pad", out=halves), lambda: F.avg_pool2d(x, 2),
        ),
        "softmax": (
            lambda: ct.softmax(small, axis=1, out=rows), lambda: torch.softmax(small, 1, out=rows),
        ),
        "relu": (lambda: ct.activation(x, mode="relu", out=out), lambda: F.relu(x)),
        "sigmoid": (lambda: ct.activation(x, mode="sigmoid", out=out), lambda: torch.sigmoid(x, out=out)),
        "tanh": (lambda: ct.activation(x, mode="tanh", out=out), lambda: torch.tanh(x, out=out)),
        "add": (lambda: ct.op_tensor(x, x, op="add", out=out), lambda: torch.add(x, x, out=out)),
        "multiply": (lambda: ct.op_tensor(x, x, op="mul", out=out), lambda: torch.mul(x, x, out=out)),
        "sum": (lambda: ct.reduce(small, axis=1, out=sums), lambda: torch.sum(small, 1, out=sums)),
        "instance norm": (
            lambda: ct.instance_norm(x, scale, bias).y, lambda: F.instance_norm(x, None, None, scale, bias),
        ),
    }  # fmt: skip
    return Pair(*found[name], host=True)


LAYERS = (
    *("max pooling", "average pooling", "softmax", "relu", "sigmoid"),
    *("tanh", "add", "multiply", "sum", "instance norm"),
)


MEMORY = """
import ctypes, json, sys
from cuda.core import Device
Device().set_current()
from cuda.bindings import driver
before = driver.cuMemGetInfo()[1]
if sys.argv[1:]:
    handle = ctypes.c_void_p()
    assert not ctypes.CDLL(sys.argv[1]).cudnnCreate(ctypes.byref(handle))
    print(sys.argv[1])
else:
    import numpy as np
    import cudnn_ct as ct
    x, w = ct.asarray(np.ones((1, 8, 14, 14), "f")), ct.asarray(np.ones((16, 8, 3, 3), "f"))
    ct.conv(x, w, padding=1).numpy()
    from cudnn_ct import _lib
    print(_lib.load().path)
after = driver.cuMemGetInfo()[1]
resident = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")][0]
print(json.dumps({"host_mib": resident / 1024, "device_mib": (before - after) / 2**20}))
"""


def memory(**_: Any) -> Iterator[Row]:
    """Yield the memory of a process after its first convolution, in MiB; of one with a handle alone."""
    import json

    from harness.command import about

    from cudnn_ct.errors import format_version

    def child(*arguments: str) -> tuple[str, dict[str, float]]:
        command = [sys.executable, "-c", MEMORY, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        path, figures = done.stdout.splitlines()[-2:]
        return path, json.loads(figures)

    facts = about()
    facts |= {"cudnn": format_version(facts["cudnn"]), "date": facts["date"][:10]}
    yield {"row": "versions", "about": {name: facts[name] for name in ("driver", "cudnn", "torch", "date")}}
    path, ours = child()
    _, least = child(path)
    yield {"row": "first convolution", **ours, **{f"{name}_floor": value for name, value in least.items()}}
