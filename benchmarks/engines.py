"""Run every engine of random small convolutions and fused convolutions, and count the wrong results.

    python benchmarks/engines.py --seconds 60 --jobs 8 --json engines.jsonl

The problems have the sizes at which engines were found wrong: results, images and windows of one pixel, one
channel, groups, uneven padding, and operands of several layouts. Each run is compared with `ct.reference` in
float64. The operands are scaled so that a sum is about 1, and an error above 0.08 counts as wrong.

Child processes compute, because a kernel that reads outside its operands destroys the CUDA context of its
process. The table counts runs for each direction and engine; the JSON lines have the problem of each run.
With --rejected, the engines that `ops/conv/errata.py` rejects are run as well.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import stream as streams
from cudnn_ct.ops.conv import candidates, errata

WRONG = 0.08  # of a result whose sums are about 1; a correct result of bfloat16 is off by 0.02
DIRECTIONS = ("fused", "fused", "forward", "backward_data", "backward_filter")
KINDS = {"float16": None, "bfloat16": None, "float32": "float32", "tf32": "tf32"}  # precision
LAYOUTS = ("nchw", "nhwc")
ACTIVATIONS = ("identity", "relu", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish")
SHAPES = ("one pixel of y", "one pixel of x", "one row of y", "window of one", "plain")
ROWS = 10  # engines of one problem, at most
LOST = 3  # exit code of a child whose CUDA context is lost


class Problem(NamedTuple):
    """A convolution: the shapes of the forward direction, and the arguments of `cudnn_ct.conv`."""

    number: int
    direction: str
    kind: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    layouts: tuple[str, str, str]  # of x, w and y
    activation: str = ""
    bias: bool = False
    residual: bool = False

    @property
    def dtype(self) -> str:
        return "float32" if self.kind == "tf32" else self.kind

    @property
    def geometry(self) -> dict[str, Any]:
        """The keyword arguments that every direction has."""
        return {name: getattr(self, name) for name in ("padding", "stride", "dilation", "groups")}

    @property
    def y(self) -> tuple[int, ...]:
        """Shape of the forward result."""
        return ct.conv_output_shape(self.x, self.w, **self.geometry)


# --- problems ----------------------------------------------------------------------------------------------


def drawn(number: int, seed: int) -> Problem:
    """Draw a problem; it depends on its number and the seed only."""
    draws = random.Random(f"{seed} {number}")
    pick = draws.choice
    axes, shape, groups = pick((1, 2, 2, 3)), pick(SHAPES), pick((1, 1, 1, 2, 3))
    sizes = (1, 1, 2, 3, 8, 8, 16, 24) if groups == 1 else (1, 8, 8, 24)
    thick, filters, batch = pick(sizes), pick(sizes), pick((1, 1, 2, 3))
    window = [1 if shape == "window of one" else pick((1, 2, 3, 4, 5)) for _ in range(axes)]
    stride, dilation = [pick((1, 1, 2)) for _ in window], [pick((1, 1, 2)) for _ in window]
    uneven = pick((False, False, True))
    padding = [(pick((0, 1)), pick((0, 1, 2))) if uneven else (pick((0, 0, 1)),) * 2 for _ in window]
    image = []
    for axis, length in enumerate(window):
        span = (length - 1) * dilation[axis] + 1
        one = shape == "one pixel of y" or (shape == "one row of y" and axis == 0)
        steps = 1 if one else pick((2, 3, 5, 8))
        image.append((steps - 1) * stride[axis] + span - sum(padding[axis]))
        if shape == "one pixel of x":
            image[axis], padding[axis] = 1, (span // 2, span // 2 + (uneven and span > 1))
        elif image[axis] < 1:
            image[axis], padding[axis] = (steps - 1) * stride[axis] + span, (0, 0)
    mixed = [pick(LAYOUTS) for _ in range(3)] if draws.random() < 0.5 else [pick(LAYOUTS)] * 3
    direction = pick(DIRECTIONS)
    problem = Problem(
        number,
        direction,
        pick(tuple(KINDS)),
        (batch, thick * groups, *image),
        (filters * groups, thick, *window),
        tuple(padding),
        tuple(stride),
        tuple(dilation),
        groups,
        (mixed[0], mixed[1], mixed[2]),
    )
    if direction != "fused":
        return problem
    return problem._replace(
        activation=pick(ACTIVATIONS), bias=draws.random() < 0.8, residual=draws.random() < 0.3
    )


def operands(problem: Problem) -> dict[str, np.ndarray]:
    """Random operands by name, rounded to the dtype; with them a sum is about 1."""
    rng = np.random.default_rng(problem.number)
    terms = math.prod(problem.w[1:])
    shapes = {"x": problem.x, "w": problem.w, "y": problem.y, "b": problem.w[:1]}
    values = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    values["w"] /= math.sqrt(terms)
    dtype: Any = problem.dtype
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    return {name: array.astype(dtype) for name, array in values.items()}


def call_of(problem: Problem, values: dict[str, np.ndarray], of: Any, **options: Any) -> Any:
    """Make the call of a problem: of `cudnn_ct`, or of `cudnn_ct.reference`."""
    x, w, y, b = (values[name] for name in ("x", "w", "y", "b"))
    options |= problem.geometry
    if problem.direction == "forward":
        return of.conv(x, w, **options)
    if problem.direction == "backward_data":
        return of.conv_backward_data(w, y, problem.x, **options)
    if problem.direction == "backward_filter":
        return of.conv_backward_filter(x, y, problem.w, **options)
    options |= {"activation": problem.activation, "coef": 1.0, "z": y if problem.residual else None}
    return of.conv_bias_activation(x, w, b if problem.bias else None, **options)


# --- measuring ---------------------------------------------------------------------------------------------


def measure(problem: Problem) -> Iterator[dict[str, Any]]:
    """Run the engines of a problem: a record before each run, and one for its outcome."""
    values = operands(problem)
    want = call_of(problem, {name: array.astype(np.float64) for name, array in values.items()}, ct.reference)
    size = max(1.0, float(np.abs(want).max())) if problem.direction.startswith("backward") else 1.0
    x, w, y = problem.layouts
    layouts = {"x": x, "w": w, "y": y, "b": None}
    arrays = {name: ct.asarray(array, layout=layouts[name]) for name, array in values.items()}
    layout = {"backward_data": x, "backward_filter": w}.get(problem.direction, y)
    precision = KINDS[problem.kind]
    options: dict[str, Any] = {} if precision is None else {"precision": precision}
    try:
        native = _native(problem, arrays, options)
    except ct.NotSupportedError as error:
        yield {"engine": "none", "outcome": "not supported", "detail": str(error)[:200]}
        return
    for row in _rows(native):
        yield {"engine": row.algorithm}
        out = ct.full(want.shape, np.nan, problem.dtype, layout=layout)
        try:
            call_of(problem, arrays, ct, **options, out=out, algo=row._replace(problem=None), strict=True)
            got = out.numpy().astype(np.float64)
        except ct.NotSupportedError as error:
            yield {"engine": row.algorithm, "outcome": "not supported", "detail": str(error)[:200]}
            continue
        error = float(np.abs(got - want).max()) / size if np.isfinite(got).all() else math.inf
        outcome = "right" if error < WRONG else "wrong"
        yield {"engine": row.algorithm, "outcome": outcome, "error": error, "copies": row.packed}


def _native(problem: Problem, arrays: dict[str, Any], options: dict[str, Any]) -> Any:
    """The problem as the package describes it."""
    if problem.direction == "fused":
        z, b = (arrays["y"] if problem.residual else None), (arrays["b"] if problem.bias else None)
        fused = {"activation": problem.activation, "coef": 1.0, "z": z}
        return ct.conv_bias_activation_plan(
            arrays["x"], arrays["w"], b, **fused, **problem.geometry, **options
        ).problem
    first, second, shape = {
        "forward": ("x", "w", None),
        "backward_data": ("w", "y", problem.x),
        "backward_filter": ("x", "y", problem.w),
    }[problem.direction]
    return ct.conv_plan(
        arrays[first], arrays[second], shape, direction=problem.direction, **problem.geometry, **options
    ).problem


def _rows(native: Any) -> list[Any]:
    current = context.current(streams.default_stream(0))
    rows = {row.algorithm: row for row in candidates.all_candidates(native, current) if row.family == "graph"}
    return [row for row in rows.values() if not row.status][:ROWS]


def child(options: argparse.Namespace) -> int:
    """Measure problems and print a line of JSON for each record, until the time is up."""
    if options.rejected:
        errata.KNOWN_WRONG = ()
    until = time.monotonic() + options.seconds
    for number in itertools.count(options.first):
        if time.monotonic() > until:
            break
        problem = drawn(number, options.seed)
        try:
            for record in measure(problem):
                print(json.dumps({"problem": problem._asdict(), **record}), flush=True)
        except ct.CudnnError as error:
            print(json.dumps({"problem": problem._asdict(), "lost": str(error)[:200]}), flush=True)
            return LOST
    return 0


# --- processes ---------------------------------------------------------------------------------------------


def parent(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> None:
    """Run child processes at once; start another one behind the problem that ended one."""
    until = time.monotonic() + options.seconds

    def work(job: int) -> None:
        first = options.first + job * 10**6
        while (left := until - time.monotonic()) > 1:
            last: dict[str, Any] = {}
            settings = ["--seconds", str(left), "--seed", str(options.seed), "--first", str(first)]
            settings += ["--rejected"] * options.rejected
            command = [sys.executable, str(Path(__file__).resolve()), "--child", *settings]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            for line in process.stdout or ():
                record = json.loads(line)
                if "outcome" in record:
                    keep(record)
                last = record
            if not process.wait():
                return
            if not last:
                raise SystemExit("a child process could not start")
            keep({**last, "outcome": "died"})
            first = last["problem"]["number"] + 1

    workers = [threading.Thread(target=work, args=(job,)) for job in range(options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if a result was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to draw problems")
    parser.add_argument("--jobs", type=int, default=4, help="processes at once")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--rejected", action="store_true", help="run engines that are rejected, too")
    parser.add_argument("--json", type=Path, help="write the records to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return child(options)
    records: list[dict[str, Any]] = []
    parent(options, records.append)
    if options.json:
        options.json.write_text("".join(json.dumps(record) + "\n" for record in records))
    counts = Counter(
        (one["problem"]["direction"], one.get("engine", "").partition(" knobs")[0], one["outcome"])
        for one in records
    )
    for (direction, engine, outcome), count in sorted(counts.items()):
        print(f"{count:>7} {outcome:<14} {direction:<16} {engine}")
    bad = sum(one["outcome"] in ("wrong", "died") for one in records)
    print(f"seed {options.seed}: {len(records)} runs, {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
