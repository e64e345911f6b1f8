"""Programs of JAX that `doors.py` times: twelve convolutions or attention layers, and four LSTM layers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

__all__ = ["STACKS", "about", "reason", "turns"]

Row = dict[str, Any]
LOOP = 0.02  # seconds of a loop of steps, about
WARM = 24  # steps before the measurement: XLA captures a program again if its memory moves
LAYERS = 12


class Convolutions(NamedTuple):
    """A stack of convolutions with relu: the dtype, the images, and whether each has a bias."""

    dtype: str
    shape: tuple[int, int, int, int]
    bias: bool

    def __str__(self) -> str:
        return f"{LAYERS} x conv{' + bias' if self.bias else ''} + relu, {self.dtype}, {self.shape}"


class Attention(NamedTuple):
    """A stack of attention layers: the dtype, (batch, heads, length, size of a head), and a causal mask."""

    dtype: str
    shape: tuple[int, int, int, int]
    causal: bool

    def __str__(self) -> str:
        return f"{LAYERS} x attention{', causal' if self.causal else ''}, {self.dtype}, {self.shape}"


class Lstm(NamedTuple):
    """A network of four LSTM layers."""

    steps: int
    batch: int
    size: int

    def __str__(self) -> str:
        return f"LSTM, 4 layers, {self.steps} steps, batch {self.batch}, {self.size} units"


CONVOLUTIONS = (
    Convolutions("float16", (32, 64, 56, 56), True),
    Convolutions("float16", (32, 128, 28, 28), True),
    Convolutions("bfloat16", (32, 256, 14, 14), True),
    Convolutions("float16", (32, 128, 28, 28), False),
)
ATTENTION = (
    Attention("bfloat16", (4, 16, 2048, 64), True),
    Attention("bfloat16", (4, 16, 2048, 128), True),
    Attention("float16", (16, 12, 512, 64), False),
)
LSTMS = (Lstm(100, 64, 512), Lstm(50, 16, 256))
SMALL = Convolutions("float16", (1, 64, 8, 8), False)  # kernels so short that the host decides
DRY = {
    "convolutions": (Convolutions("float32", (1, 8, 4, 4), True),),
    "attention": (Attention("float16", (1, 2, 16, 8), True),),
    "lstm": (Lstm(3, 2, 4),),
}


class Program(NamedTuple):
    """A compiled function, its operands, and the value of ``ct.config.algo`` while it is traced."""

    function: Callable[..., Any]
    operands: Sequence[Any]
    algo: str = "heuristic"


def convolutions(*, dry: bool, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the rows of stacks of convolutions."""
    yield about()
    for stack in DRY["convolutions"] if dry else CONVOLUTIONS:
        yield row_of(str(stack), lambda stack=stack: conv_programs(stack, ("autotune", "heuristic")), rounds)


def conv_programs(stack: Convolutions, algos: Sequence[str]) -> dict[str, Program]:
    """Return our program for each way to select algorithms, and that of JAX."""
    import jax
    import jax.numpy as jnp

    from cudnn_ct import jax as ctj

    n, channels, height, width = stack.shape
    x = random(0, (n, channels, height, width), stack.dtype)
    scale = (2 / (9 * channels)) ** 0.5
    weights = [random(100 + one, (channels, channels, 3, 3), stack.dtype, scale) for one in range(LAYERS)]
    biases = [random(200 + one, (channels,), stack.dtype) for one in range(LAYERS)]

    def ours(x: Any, weights: Any, biases: Any) -> Any:
        for w, b in zip(weights, biases, strict=True):
            if stack.bias:
                x = ctj.conv_bias_activation(x, w, b, activation="relu", padding="half")
            else:
                x = jnp.maximum(ctj.conv(x, w, padding="half"), 0)
        return x

    def theirs(x: Any, weights: Any, biases: Any) -> Any:
        for w, b in zip(weights, biases, strict=True):
            x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
            x = jnp.maximum(x + b.reshape(1, -1, 1, 1) if stack.bias else x, 0)
        return x

    operands = (x, weights, biases)
    names = ("ours", "default")[: len(algos)]
    programs = {
        name: Program(jax.jit(lambda *given: ours(*given)), operands, algo)
        for name, algo in zip(names, algos, strict=True)
    }
    return programs | {"theirs": Program(jax.jit(theirs), operands)}


def attention(*, dry: bool, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the rows of stacks of attention."""
    yield about()
    peer = "xla" if dry else "cudnn"
    for stack in DRY["attention"] if dry else ATTENTION:
        yield row_of(str(stack), lambda stack=stack: attention_programs(stack, peer), rounds, swapped)


def attention_programs(stack: Attention, peer: str) -> dict[str, Program]:
    """Return our program and that of JAX, each with operands in its own order of axes."""
    import jax

    from cudnn_ct import jax as ctj

    batch, heads, length, size = stack.shape
    x, *others = (random(one, (batch, heads, length, size), stack.dtype) for one in range(1 + 2 * LAYERS))
    keys, values = others[:LAYERS], others[LAYERS:]

    def ours(x: Any, keys: Any, values: Any) -> Any:
        for k, v in zip(keys, values, strict=True):
            x = ctj.attention(x, k, v, causal="top_left" if stack.causal else None)
        return x

    def theirs(x: Any, keys: Any, values: Any) -> Any:
        for k, v in zip(keys, values, strict=True):
            x = jax.nn.dot_product_attention(x, k, v, is_causal=stack.causal, implementation=peer)
        return x

    operands = (x, keys, values)
    kind = stack.dtype if peer == "cudnn" else "float32"  # the CPU has no products in half precision
    return {
        "ours": Program(jax.jit(ours), operands),
        "theirs": Program(jax.jit(theirs), jax.tree.map(lambda one: swapped(one).astype(kind), operands)),
    }


def swapped(array: Any) -> Any:
    """Return (batch, length, heads, size) from (batch, heads, length, size), in this order in memory."""
    return array.transpose(0, 2, 1, 3)


def lstm(*, dry: bool, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the rows of recurrent networks."""
    yield about()
    for network in DRY["lstm"] if dry else LSTMS:
        make = partial(lstm_programs, network, dry)
        yield row_of(str(network), make, rounds, lambda y: y.transpose(1, 0, 2))


def lstm_programs(network: Lstm, dry: bool) -> dict[str, Program]:
    """Return our program in both precisions, and that of JAX, which has float32 alone."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import rnn

    from cudnn_ct import jax as ctj

    steps, batch, size = network
    x = random(0, (steps, batch, size), "float32")
    count = ctj.rnn_weight_size("lstm", size, size, 4)
    w = random(1, (count,), "float32", size**-0.5)
    states = jnp.zeros((4, batch, size), "float32")
    lengths = jnp.full((batch,), steps, "int32")

    def ours(x: Any, w: Any) -> Any:
        return ctj.rnn(x, w, mode="lstm", hidden_size=size, num_layers=4).y

    def theirs(x: Any, w: Any) -> Any:
        if dry:  # the peer is for GPUs
            parts = rnn.unpack_lstm_weights(w, size, size, 4, False)
            return rnn.lstm_ref(x, states, states, *parts, lengths, size, size, 4, 0.0, False)[0]
        return rnn.lstm(x, states, states, w, lengths, size, size, 4, 0.0, False)[0]

    return {
        "ours": Program(jax.jit(ours), (x, w)),
        "half": Program(jax.jit(lambda *given: ours(*given)), (x.astype("float16"), w.astype("float16"))),
        "theirs": Program(jax.jit(theirs), (x.transpose(1, 0, 2).copy(), w)),
    }


def host(*, dry: bool, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the row of host time with command buffers, or without them."""
    yield about()
    stack = DRY["convolutions"][0] if dry else SMALL
    row = row_of(str(stack), lambda: conv_programs(stack, ("heuristic",)), rounds)
    if "error" not in row:
        row["added_us"] = (row["ours_us"] - row["theirs_us"]) / LAYERS
    yield row


STACKS: dict[str, Callable[..., Iterator[Row]]] = {
    "convolutions": convolutions, "attention": attention, "lstm": lstm, "host": host, "plain": host,
}  # fmt: skip


# --- measurement -------------------------------------------------------------------------------------------


def about() -> Row:
    """Return the row with the versions."""
    import jax

    import cudnn_ct as ct

    return {"about": {"jax": jax.__version__, "cudnn": ct.version()}}


def row_of(
    name: str,
    make: Callable[[], dict[str, Program]],
    rounds: int,
    ordered: Callable[[Any], Any] = lambda y: y,
) -> Row:
    """Compile the programs of a row, compare their results, and time them in turns.

    ``ordered`` brings our result into the order of the peer's axes.
    """
    try:
        started = time.perf_counter()
        programs = make()
        results = {one: first(program) for one, program in programs.items()}
        prepared = time.perf_counter() - started
        row = {"row": name, "prepared_s": prepared, **times(programs, rounds)}
        for one in programs.keys() - {"theirs"}:
            end = {"ours": "", "half": "_half", "default": "_default"}[one]
            row[f"far{end}"] = far(ordered(results[one]), results["theirs"])
        return row
    except Exception as error:
        return {"row": name, "error": reason(error)}


def times(programs: dict[str, Program], rounds: int) -> Row:
    """Return the times of programs in turns, the ratios, and the handler calls of a step of ours."""
    for program in programs.values():
        steps(program, WARM)
    counts = {one: max(3, min(200, round(LOOP / steps(program, 3)))) for one, program in programs.items()}
    handled = counted_handlers()
    found: dict[str, list[float]] = {one: [] for one in programs}
    calls = 0
    for _ in range(rounds):
        for one, program in programs.items():
            before = len(handled)
            found[one].append(steps(program, counts[one]) * 1e6)
            calls += len(handled) - before if one == "ours" else 0
    row: Row = {f"{one}_us": statistics.median(values) for one, values in found.items()}
    row["calls"] = calls / (rounds * counts["ours"])
    for one in programs.keys() - {"theirs"}:
        ratios = [mine / other for mine, other in zip(found[one], found["theirs"], strict=True)]
        row[{"ours": "ratio"}.get(one, f"ratio_{one}")] = statistics.median(ratios)
    return row


def first(program: Program) -> Any:
    """Trace, compile and run a program."""
    import jax

    import cudnn_ct as ct

    ct.config.algo = program.algo
    return jax.block_until_ready(program.function(*program.operands))


def steps(program: Program, count: int) -> float:
    """Return the seconds of a step, in a loop that ends with a wait."""
    import jax

    y = None
    start = time.perf_counter()
    for _ in range(count):
        y = program.function(*program.operands)
    jax.block_until_ready(y)
    return (time.perf_counter() - start) / count


def turns(call: Callable[[], Any], rounds: int, calls: int) -> float:
    """Return the microseconds of a call, the median over rounds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(found)


def counted_handlers() -> list[int]:
    """Return a list to which each call of a handler appends from now on."""
    from cudnn_ct.jax import kernels

    if not hasattr(kernels, "_handled"):
        handled: list[int] = []
        prepared = kernels._prepared

        def counted(*arguments: Any) -> Any:
            handled.append(1)
            return prepared(*arguments)

        kernels._handled, kernels._prepared = handled, counted  # type: ignore[attr-defined]
    return kernels._handled  # type: ignore[attr-defined,no-any-return]


def random(seed: int, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Any:
    """Return normal random numbers."""
    import jax

    return (jax.random.normal(jax.random.key(seed), shape, "float32") * scale).astype(dtype)


def far(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest element."""
    import numpy as np

    one, other = np.asarray(found, np.float32), np.asarray(expected, np.float32)
    assert one.shape == other.shape, (one.shape, other.shape)
    return float(np.abs(one - other).max() / np.abs(other).max())


def reason(error: BaseException) -> str:
    """Return the first line of an error."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]
