"""Time one problem on this GPU, and print the rows of a table.

python tools/bench.py conv --x 32,64,56,56 --w 64,64,3,3 --padding 1 --dtype float16 --layout nhwc
python tools/bench.py pool --x 32,64,112,112 --window 3 --stride 2 --padding 1
python tools/bench.py rnn --x 50,64,512 --hidden 512 --layers 2 --dtype float16 --algo autotune
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from statistics import median
from typing import Any, NamedTuple

import click

import cudnn_ct as ct
from cudnn_ct.autotune import benchmark
from cudnn_ct.cli.algorithms import name_here, operands_of, some
from cudnn_ct.cli.options import INTS, SHAPE, Convolution, choice, convolution_options
from cudnn_ct.cli.output import (
    Column,
    Tick,
    fail,
    first_line,
    need_gpu,
    plain_warnings,
    plainly,
    progress,
    say,
    say_json,
    show,
    usage,
)
from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnError
from cudnn_ct.plans.base import Candidate
from cudnn_ct.shapes.arithmetic import CONV_DTYPES
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.layers import POOLING_MODES
from cudnn_ct.shapes.norm import norm_parameter_dtype, norm_parameter_shape
from cudnn_ct.shapes.rnn import RNN_ALGOS, RNN_MODES
from cudnn_ct.shapes.specs import INT_MAX, LAYOUTS
from cudnn_ct.typing import Layout, RNNDirection

ROUNDS = 10
ROUND = 2.0  # milliseconds of each
MAX_CALLS = 200  # calls in a round

COLUMNS: tuple[Column, ...] = (
    ("us", True), ("least", True), ("GB/s", True), ("TFLOP/s", True), ("what", False), ("", False),
)  # fmt: skip


class Row(NamedTuple):
    """The time of one call in milliseconds, or in ``note`` the reason why it was not timed.

    ``nbytes`` counts each array once. ``operations`` counts the multiplications and additions in the formula
    of a convolution, even if the algorithm needs fewer.
    """

    what: str
    time: float | None
    least: float | None = None
    nbytes: int = 0
    operations: int = 0
    note: str = ""


Report = tuple[str, Sequence[Row]]
"""The problem in words, and the times of its calls."""

Run = tuple[Callable[[], object], Sequence[Any]]
"""A function that makes one call, and the arrays that it reads and writes."""


@click.group(name="bench")
def command() -> None:
    """Time one problem on this GPU with CUDA events."""


def image_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of operations on one array."""
    shape = click.option("--x", type=SHAPE, required=True, help="Shape of x.")
    return shape(choice("--dtype", CONV_DTYPES, "float32")(choice("--layout", LAYOUTS)(command)))


def printed(benchmark: Callable[..., Report]) -> Callable[..., Any]:
    """Add the option ``--json``, and print the report of a benchmark."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
    @plainly()
    @functools.wraps(benchmark)
    def wrapped(as_json: bool, **options: Any) -> None:
        with usage():
            problem, rows = benchmark(**options)
        device = name_here()
        if as_json:
            timed = [row._asdict() for row in rows]
            report = {"schema": 1, "problem": problem, "device": device, "rows": timed}
            say_json(report)
        else:
            say(problem)
            say(f"on {device}")
            say()
            show(COLUMNS, [_cells(row) for row in rows])
        if all(row.time is None for row in rows):
            fail("no call could be timed")

    return wrapped


@command.command()
@convolution_options
@printed
def conv(convolution: Convolution) -> Report:
    """Time a convolution with each algorithm and engine of cuDNN."""
    need_gpu()
    first, second, shape = operands_of(convolution)
    keywords: dict[str, Any] = {
        "direction": convolution.direction, "precision": convolution.precision, **convolution.geometry,
    }  # fmt: skip
    found = ct.conv_algorithms(first, second, shape, measure=False, **keywords)
    usable = [row for row in found if not row.rejected]
    problem: Any = found.problem
    spec = problem.result
    out = ct.empty(spec.shape, spec.dtype, layout=convolution.layout)
    nbytes = first.nbytes + second.nbytes + out.nbytes
    operations = 2 * prod(convolution.shapes["y"]) * prod(convolution.w[1:])  # additions, multiplications

    def call_of(row: Candidate, tick: Tick) -> Callable[[], object]:
        made: list[Any] = []

        def run() -> None:
            if not made:  # created in the first call, so that an unsupported candidate fails in its benchmark
                tick(row.algorithm)
                made.append(ct.conv_plan(first, second, shape, algo=row, out=out, **keywords))
            made[0](first, second, out=out)

        return run

    with progress("conv", len(usable)) as tick:
        times = benchmark.benchmark([call_of(row, tick) for row in usable], streams.current_stream())
    rows = []
    for row, time in zip(usable, times, strict=True):
        name = f"{row.backend} {row.algorithm}"
        if isinstance(time, CudnnError):
            rows.append(Row(name, None, note=first_line(time)))
        else:
            note = f"{row.workspace:,} bytes of workspace"
            rows.append(Row(name, time, None, nbytes, operations, note))
    rows.sort(key=lambda row: (row.time is None, row.time or 0.0))
    return str(found.problem), rows


@command.command()
@image_options
@click.option("--window", type=INTS, default="2", show_default=True)
@click.option("--stride", type=INTS, help="The window's size by default.")
@click.option("--padding", type=INTS, default="0", show_default=True)
@choice("--mode", POOLING_MODES)
@printed
def pool(x: tuple[int, ...], dtype: str, layout: Layout, **options: Any) -> Report:
    """Time pooling and its gradient."""
    y_shape = ct.pool_output_shape(x, **{name: options[name] for name in ("window", "stride", "padding")})
    need_gpu()
    image, y, dx = (some(shape, dtype, layout) for shape in (x, y_shape, x))
    runs = {
        "pool": (lambda: ct.pool(image, **options, out=y), (image, y)),
        "pool_backward": (lambda: ct.pool_backward(y, image, y, **options, out=dx), (image, y, y, dx)),
    }
    return f"pooling of {image.spec}, {_words(options)}", _timed(runs)


@command.command()
@image_options
@choice("--algo", ("accurate", "fast", "log"))
@choice("--mode", ("channel", "instance"))
@printed
def softmax(x: tuple[int, ...], dtype: str, layout: Layout, **options: Any) -> Report:
    """Time softmax and its gradient."""
    need_gpu()
    image, y, dy, dx = (some(x, dtype, layout) for _ in range(4))
    runs = {
        "softmax": (lambda: ct.softmax(image, **options, out=y), (image, y)),
        "softmax_backward": (lambda: ct.softmax_backward(dy, y, **options, out=dx), (y, dy, dx)),
    }
    return f"softmax of {image.spec}, {_words(options)}", _timed(runs)


@command.command("batch_norm")
@image_options
@choice("--mode", ("spatial", "per_activation"))
@printed
def batch_norm(x: tuple[int, ...], dtype: str, layout: Layout, **options: Any) -> Report:
    """Time batch normalisation: training, its gradient, and inference."""
    need_gpu()
    image, y, dx = (some(x, dtype, layout) for _ in range(3))
    kept = norm_parameter_shape(x, options["mode"]), norm_parameter_dtype(image.spec.dtype)
    scale, bias, mean, var = (ct.full(kept[0], value, kept[1]) for value in (1, 0, 0, 1))
    step = ct.batch_norm_training(image, scale, bias, **options, out=y)
    train, backward, infer = ct.batch_norm_training, ct.batch_norm_backward, ct.batch_norm_inference
    saved = step.mean, step.invstd
    runs: dict[str, Run] = {
        "batch_norm_training": (lambda: train(image, scale, bias, **options, out=y), (image, y)),
        "batch_norm_backward": (lambda: backward(y, image, scale, *saved, **options, out=dx), (image, y, dx)),
        "batch_norm_inference": (lambda: infer(image, scale, bias, mean, var, **options, out=y), (image, y)),
    }
    return f"batch normalisation of {image.spec}, {_words(options)}", _timed(runs)


@command.command()
@click.option("--x", type=SHAPE, metavar="T,N,C", required=True, help="Time steps, batch, input size.")
@click.option("--hidden", type=click.IntRange(1, INT_MAX), required=True, help="Size of the hidden state.")
@click.option("--layers", type=click.IntRange(1, INT_MAX), default=1, show_default=True)
@choice("--mode", RNN_MODES, default="lstm")
@click.option("--bidirectional", is_flag=True)
@choice("--dtype", FLOATS, default="float32")
@choice("--algo", ("heuristic", "autotune", *RNN_ALGOS))
@printed
def rnn(x: tuple[int, ...], hidden: int, layers: int, bidirectional: bool, **options: Any) -> Report:
    """Time an RNN: the forward pass for inference and for training, and with its gradients."""
    if len(x) != 3:
        raise click.UsageError(f"x has shape {x}; expected (T, N, C): time steps, batch, input size")
    need_gpu()
    steps, batch, size = x
    mode, dtype = options.pop("mode"), options["dtype"]
    direction: RNNDirection = "bidirectional" if bidirectional else "unidirectional"
    network = ct.RNN(mode, size, hidden, layers, direction=direction, **options)
    outputs = (steps, batch, hidden * (2 if bidirectional else 1))
    sequence, dy = (some(shape, dtype, "nchw") for shape in (x, outputs))
    weights = ct.scale(some((network.weight_size,), dtype, "nchw"), alpha=hidden**-0.5)

    def train() -> object:
        reserve = network.forward(sequence, weights, training=True).reserve
        return network.backward_data(dy, reserve), network.backward_weights(reserve)

    read = (sequence, weights, dy)  # dy for y, which is as large
    runs = {
        "forward": (lambda: network.forward(sequence, weights), read),
        "forward, training": (lambda: network.forward(sequence, weights, training=True), read),
        "forward and gradients": (train, (*read, *read)),
    }
    words = _words({"hidden": hidden, "layers": layers, "algo": options["algo"]})
    return f"{direction} {mode} of {sequence.spec}, {words}", _timed(runs)


# --- shared by all benchmarks -----------------------------------------------------------------------------


def _timed(runs: Mapping[str, Run]) -> list[Row]:
    rows = []
    with progress("bench", ROUNDS * len(runs)) as tick:
        for what, (run, arrays) in runs.items():
            times = _measure(run, what, tick)
            rows.append(Row(what, median(times), min(times), sum(array.nbytes for array in arrays)))
    return rows


def _measure(run: Callable[[], object], what: str, tick: Tick) -> list[float]:
    """Return the milliseconds per call of each round. The first call loads kernels and is not counted."""

    def loop() -> None:
        for _ in range(calls):
            run()

    calls, stream = 1, streams.current_stream()
    run()
    calls = max(1, min(MAX_CALLS, int(ROUND / max(events.elapsed(stream, loop), 1e-6))))
    times = []
    for _ in range(ROUNDS):
        times.append(events.elapsed(stream, loop) / calls)
        tick(what)
    return times


def _words(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)


def _cells(row: Row) -> list[str]:
    if row.time is None:
        return ["-", "", "", "", row.what, row.note]
    seconds = max(row.time / 1000, 1e-9)  # event times have a finite resolution
    least = "" if row.least is None else f"{row.least * 1000:.1f}"
    tera = f"{row.operations / seconds / 1e12:.1f}" if row.operations else ""
    return [f"{row.time * 1000:.1f}", least, f"{row.nbytes / seconds / 1e9:.0f}", tera, row.what, row.note]


if __name__ == "__main__":
    with plain_warnings():
        command()
