"""Measure the error of every candidate of random convolutions against a float64 result of PyTorch.

    python benchmarks/accuracy.py --seconds 600 --children 4 --json accuracy.jsonl

Child processes compute, because one kernel that reads outside its operands destroys the CUDA context of its
process. If a problem ends a child, the parent starts another child with the next problem. PyTorch computes on
the GPU with its own kernels (its cuDNN is switched off) on contiguous float64 copies.

``of_bound`` is the largest |got - want| over the bound of the precision (docs/algorithms.md). An algorithm
with a value above 1 belongs in cudnn_ct/facts.json, with the effect "inaccurate". Each result has three more
figures, with |err| = |got - want| reduced by the rounding of the result to its dtype:

- ``relative``: the largest |err| / sum |x| |w|, element by element;
- ``normwise``: the largest |err| over the largest sum |x| |w|. FFT and Winograd algorithms mix elements, so
  their errors are bounded by the largest sum, not by the sum of the same element;
- ``of_largest``: the largest |err| over the largest |want|.

The table divides ``relative`` and ``normwise`` by the unit roundoff of the precision. It is sorted by
``of_bound``, largest first.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct import facts
from cudnn_doctor.read.versions import table

Record = dict[str, Any]
Array = np.ndarray[Any, Any]
Oracle = Callable[["Problem", Array, Array], Array]

DIRECTIONS = ("forward", "backward_data", "backward_filter")
WINDOWS = (
    *((1,), (2,), (3,), (5,), (7,)),
    *((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (9, 9), (1, 5), (5, 3)),
    *((3, 3, 3), (5, 5, 5)),
)
SIZES = {1: (7, 16, 31, 64), 2: (7, 8, 13, 14, 16, 28, 32, 56, 64), 3: (7, 8, 12, 16)}
VALUES = ("normal", "positive")
SILENCE = 240  # seconds without a line after which a child counts as hung
LINES = 70


class Kind(NamedTuple):
    """Dtype and precision, with the unit roundoff of the precision and of the dtype."""

    dtype: str
    precision: str | None
    unit: float
    rounding: float


KINDS = {
    "float32": Kind("float32", "float32", 2.0**-24, 2.0**-24),
    "tf32": Kind("float32", "tf32", 2.0**-11, 2.0**-24),
    "float16": Kind("float16", None, 2.0**-11, 2.0**-11),
    "float16-as_input": Kind("float16", "as_input", 2.0**-11, 2.0**-11),
    "float16-float32": Kind("float16", "float32", 2.0**-24, 2.0**-11),
    "bfloat16": Kind("bfloat16", None, 2.0**-8, 2.0**-8),
    "bfloat16-as_input": Kind("bfloat16", "as_input", 2.0**-8, 2.0**-8),
    "bfloat16-float32": Kind("bfloat16", "float32", 2.0**-24, 2.0**-8),
    "float64": Kind("float64", "float64", 2.0**-53, 2.0**-53),
}


class Problem(NamedTuple):
    """Convolution: the shapes of the forward direction, and the arguments of `cudnn_ct.conv`."""

    number: int
    kind: str
    direction: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    padding: int
    stride: int
    dilation: int
    groups: int
    layout: str

    @property
    def geometry(self) -> dict[str, int]:
        """Keyword arguments of every direction."""
        return {name: getattr(self, name) for name in ("padding", "stride", "dilation", "groups")}

    @property
    def y(self) -> tuple[int, ...]:
        """Shape of the forward result."""
        return ct.conv_output_shape(self.x, self.w, **self.geometry)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the two operands and of the result."""
        return {
            "forward": (self.x, self.w, self.y),
            "backward_data": (self.y, self.w, self.x),
            "backward_filter": (self.y, self.x, self.w),
        }[self.direction]

    @property
    def terms(self) -> int:
        """Number of products in the longest sum."""
        return {
            "forward": math.prod(self.w[1:]),
            "backward_data": self.w[0] // self.groups * math.prod(self.w[2:]),
            "backward_filter": self.x[0] * math.prod(self.y[2:]),
        }[self.direction]

    @property
    def bound(self) -> tuple[float, float]:
        """Factors of the largest sum of absolute products and of the largest result in the error bound."""
        kind = KINDS[self.kind]
        unit = kind.unit if kind.precision else KINDS["float32"].unit  # half precision is summed in float32
        return 8 * math.sqrt(self.terms + 64) * unit, 6 * kind.rounding


# --- problems ----------------------------------------------------------------------------------------------


def problems(
    kinds: Sequence[str],
    seed: int,
    first: int = 0,
    step: int = 1,
    windows: Sequence[tuple[int, ...]] = WINDOWS,
) -> Iterator[Problem]:
    """Yield random problems without end.

    A problem depends only on the kinds, the windows, the seed and its index. Every combination of kind,
    direction and window comes once before any is repeated.
    """
    table = [(kind, way, window) for kind in kinds for way in DIRECTIONS for window in windows]
    random.Random(seed).shuffle(table)
    index = first
    while True:
        yield drawn(index, *table[index % len(table)], random.Random(f"{seed} {index}"))
        index += step


def drawn(number: int, kind: str, direction: str, window: tuple[int, ...], draws: random.Random) -> Problem:
    """Draw the sizes and the geometry of a problem. Half of the problems have stride and dilation 1."""
    plain = draws.random() < 0.5
    stride, dilation = (1, 1) if plain else draws.choice(((2, 1), (1, 2), (2, 2), (2, 1)))
    image = tuple(draws.choice(SIZES[len(window)]) for _ in window)
    batch = draws.choice((1, 2, 4, 8))
    span = (max(window) - 1) * dilation + 1
    padding = draws.choice((0, span // 2, span // 2, max(window) - 1))
    if span > min(image) + 2 * padding:
        dilation, padding = 1, max(window) // 2
    channels = draws.choice((1, 2, 3, 4, 8, 8, 16, 16, 32, 32, 64, 64))
    filters = draws.choice((1, 2, 3, 4, 8, 8, 16, 16, 32, 32, 64, 64))
    groups = draws.choice((1, 1, 1, 1, channels, 2, 4))
    channels, filters = (groups * math.ceil(n / groups) for n in (channels, filters))
    return Problem(
        number,
        kind,
        direction,
        (batch, channels, *image),
        (filters, channels // groups, *window),
        padding,
        stride,
        dilation,
        groups,
        draws.choice(("nchw", "nhwc")),
    )


def operands(problem: Problem, values: str, seed: int) -> tuple[Array, Array]:
    """Return random operands, rounded to the dtype of the problem."""
    numbers = np.random.default_rng([seed, problem.number, VALUES.index(values)])
    draw = numbers.standard_normal if values == "normal" else numbers.random
    one, two, _ = (draw(shape) for shape in problem.shapes)
    dtype = KINDS[problem.kind].dtype
    if dtype == "float16":  # sums of many positive products would overflow
        two *= 2.0 ** -math.ceil(math.log2(max(1, problem.terms / 256)))
    return rounded(one, dtype), rounded(two, dtype)


def rounded(values: Array, dtype: str) -> Array:
    """Convert values to a dtype, which is given by its name."""
    if dtype == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    return values.astype(dtype)


def by_torch(problem: Problem, one: Array, two: Array) -> Array:
    """Compute in float64 on the GPU with the kernels of PyTorch itself."""
    import torch

    torch.backends.cudnn.enabled = False
    a, b = (torch.from_numpy(np.ascontiguousarray(operand)).cuda() for operand in (one, two))
    axes, geometry = len(problem.w) - 2, problem.geometry
    if problem.direction == "forward":
        result = getattr(torch.nn.functional, f"conv{axes}d")(a, b, **geometry)
    elif problem.direction == "backward_data":
        result = getattr(torch.nn.grad, f"conv{axes}d_input")(problem.x, b, a, **geometry)
    else:
        result = getattr(torch.nn.grad, f"conv{axes}d_weight")(b, problem.w, a, **geometry)
    return np.asarray(result.cpu().numpy())


# --- measuring ---------------------------------------------------------------------------------------------


def measure(problem: Problem, oracle: Oracle, seed: int, knobs: int) -> Iterator[Record]:
    """Run the usable candidates of a problem. Yield a record before each row, and one for each result."""
    kind = KINDS[problem.kind]
    about = {"problem": problem._asdict(), "kind": problem.kind, "terms": problem.terms}
    yield {"section": "begin", "index": problem.number, "row": "the table"}
    how: dict[str, Any] = {"direction": problem.direction, "precision": kind.precision, **problem.geometry}
    unwritten = rounded(np.full(problem.shapes[-1], np.nan), kind.dtype)
    shape = None if problem.direction == "forward" else problem.shapes[-1]
    given = {values: operands(problem, values, seed) for values in VALUES}
    try:
        wanted = {values: with_scale(oracle, problem, *pair) for values, pair in given.items()}
        arrays = {
            values: tuple(ct.asarray(operand, layout=problem.layout) for operand in pair)
            for values, pair in given.items()
        }
        first, second = arrays["normal"]
        out = ct.asarray(unwritten, layout=problem.layout)
        table = ct.conv_algorithms(first, second, shape, measure=False, out=out, **how)
    except Exception as error:
        yield {"section": "error", **about, "row": "the table", "error": explain(error)}
        raise_if_lost()
        return
    for row in chosen(table, knobs, random.Random(f"{seed} {problem.number}")):
        facts = about | facts_of(row)
        yield {"section": "begin", "index": problem.number, "row": str(row)}
        try:
            plan = ct.conv_plan(first, second, shape, algo=row, out=out, **how)
            for values in VALUES:
                out = ct.asarray(unwritten, layout=problem.layout)
                plan(*arrays[values], out=out)
                got = out.numpy().astype(np.float64)
                found = errors(got, *wanted[values], kind, problem.bound)
                yield {"section": "row", **facts, "values": values, **found}
        except Exception as error:
            yield {"section": "error", **facts, "error": explain(error)}
            raise_if_lost()


def with_scale(oracle: Oracle, problem: Problem, one: Array, two: Array) -> tuple[Array, Array]:
    """Return the result in float64, and the sums of absolute products."""
    a, b = one.astype(np.float64), two.astype(np.float64)
    return oracle(problem, a, b), oracle(problem, abs(a), abs(b))


def chosen(table: Iterable[Any], knobs: int, draws: random.Random) -> list[Any]:
    """Return usable rows: each algorithm with a few settings of its knobs, and one compiled at run time."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in table:
        if not row.rejected:
            key = ("compiled",) if row.compiled else (row.backend, name_of(row), row.math, row.relayout)
            groups.setdefault(key, []).append(row)
    return [
        row
        for key, rows in groups.items()
        for row in draws.sample(rows, min(len(rows), 1 if key == ("compiled",) else knobs))
    ]


def facts_of(row: Any) -> Record:
    """Return the fields of a candidate that identify its implementation."""
    return {
        "backend": row.backend,
        "engine": name_of(row),
        "row": row.algorithm,
        "math": row.math,
        "notes": row.notes,
        "relayout": row.relayout,
    }


def name_of(row: Any) -> str:
    """Return the name of the engine without its knobs, or of the legacy algorithm."""
    return str(row.algorithm.partition(" knobs")[0])


def errors(got: Array, want: Array, scale: Array, kind: Kind, bound: tuple[float, float]) -> Record:
    """Compare a result with the float64 result and the sums of absolute products.

    ``bound`` has the factors of the largest sum of absolute products and of the largest result.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        beyond = np.maximum(abs(got - want) - kind.rounding * abs(want), 0)
        beyond[~np.isfinite(got)] = np.inf
        whole = float(np.where(np.isfinite(got), abs(got - want), np.inf).max())
        relative = np.where(beyond == 0, 0, beyond / scale)
    worst, largest = float(beyond.max()), float(abs(want).max())
    top = float(scale.max())
    allowed = bound[0] * top + bound[1] * largest
    return {
        "of_bound": whole / allowed if allowed else whole,
        "relative": float(relative.max()),
        "normwise": worst / top if top else worst,
        "of_largest": worst / largest if largest else worst,
    }


def explain(error: BaseException) -> str:
    """Return an error as one line of at most 500 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def raise_if_lost() -> None:
    """Copy an array to the GPU and back, which raises if the CUDA context is lost."""
    ct.asarray(np.zeros(1, np.float32)).numpy()


# --- processes ---------------------------------------------------------------------------------------------


def child(options: argparse.Namespace) -> None:
    """Measure problems until the time limit, and print a line of JSON for each record."""
    if find_spec("torch") is None:
        sys.exit("PyTorch is not installed; it computes the float64 results")
    until = time.monotonic() + options.seconds
    drawing = problems(options.kinds, options.seed, options.first, options.step, options.windows)
    for problem in drawing:
        if time.monotonic() > until or problem.number >= options.problems:
            break
        for record in measure(problem, by_torch, options.seed, options.knobs):
            print(json.dumps(record), flush=True)
    print(json.dumps({"section": "end"}), flush=True)


def children(options: argparse.Namespace, keep: Callable[[Record], None]) -> None:
    """Run child processes at the same time, each on its own problems."""
    workers = [
        threading.Thread(target=one_after_another, args=(options, number, keep))
        for number in range(options.children)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def one_after_another(options: argparse.Namespace, number: int, keep: Callable[[Record], None]) -> None:
    """Run a child until the time limit. If a problem ends the child, start another with the next problem."""
    until = time.monotonic() + options.seconds
    first = options.first + number
    while first < options.problems and time.monotonic() < until:
        last: Record = {}
        for record in records_of(command(options, first, until - time.monotonic())):
            if record["section"] in ("begin", "end"):
                last = record
            else:
                keep(record)
        if last.get("section") == "end":
            return
        keep({**last, "section": "lost"})
        if not last:
            return  # the child could not start
        first = last["index"] + options.children


def command(options: argparse.Namespace, first: int, seconds: float) -> list[str]:
    """Return the command line of a child process."""
    numbers = {
        "--first": first,
        "--step": options.children,
        "--seconds": seconds,
        "--problems": options.problems,
        "--seed": options.seed,
        "--knobs": options.knobs,
    }
    settings = [str(part) for pair in numbers.items() for part in pair]
    windows = ("x".join(map(str, window)) for window in options.windows)
    lists = ("--kinds", *options.kinds, "--windows", *windows, *["--excluded"] * options.excluded)
    return [sys.executable, str(Path(__file__).resolve()), "--child", *settings, *lists]


def records_of(arguments: list[str]) -> Iterator[Record]:
    """Run a child and yield its records. Kill a child that prints nothing for `SILENCE` seconds."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    assert process.stdout is not None
    reader = threading.Thread(target=read_into, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        while True:
            try:
                line = lines.get(timeout=SILENCE)
            except queue.Empty:
                return
            if line is None:
                return
            try:
                yield json.loads(line)
            except json.JSONDecodeError:  # output of a library
                print(line, end="", file=sys.stderr)
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()


def read_into(stream: Iterable[str], lines: queue.Queue[str | None]) -> None:
    """Put the lines of a stream into a queue, and None at its end."""
    for line in stream:
        lines.put(line)
    lines.put(None)


# --- report ------------------------------------------------------------------------------------------------


class Worst:
    """Largest errors by kind, direction, algorithm and window, and all failures."""

    def __init__(self, path: Path | None = None) -> None:
        self.rows: dict[tuple[str, ...], Record] = {}
        self.failures: dict[str, tuple[int, Record]] = {}
        self.results = 0
        self._path = path
        self._lock = threading.Lock()

    def keep(self, record: Record) -> None:
        """Add a record, and append it to the file at once."""
        with self._lock:
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    print(json.dumps(record), file=file)
            if record["section"] == "row":
                self._add(record)
            else:
                what = f"{record['section']}: {record.get('backend', '')} {record.get('row', 'no row')}"
                count, kept = self.failures.get(what, (0, record))
                self.failures[what] = count + 1, kept

    def _add(self, record: Record) -> None:
        self.results += 1
        unit = KINDS[record["kind"]].unit
        problem = record["problem"]
        method = "+".join(note for note in record["notes"] if note in ("winograd", "fft")) or "-"
        key = (
            record["kind"],
            problem["direction"],
            f"{record['backend']} {record['engine']}",
            method,
            "x".join(map(str, problem["w"][2:])),
        )
        figures = ("of_bound", "relative", "normwise", "of_largest")
        worst = self.rows.setdefault(key, {"count": 0, **dict.fromkeys(figures, 0.0)})
        worst["count"] += 1
        worst["relative"] = max(worst["relative"], record["relative"] / unit)
        worst["normwise"] = max(worst["normwise"], record["normwise"] / unit)
        worst["of_largest"] = max(worst["of_largest"], record["of_largest"])
        if record["of_bound"] >= worst["of_bound"]:
            worst |= {
                "of_bound": record["of_bound"],
                "index": problem["number"],
                "terms": record["terms"],
            }

    def lines(self, most: int = LINES) -> Iterator[str]:
        """Yield the lines of the table, largest error over its bound first, and of the failures."""
        head = f"{'of bound':>9} {'relative/u':>11} {'normwise/u':>11} {'of largest':>10}"
        yield f"{head} {'terms':>6} {'runs':>5} {'index':>6}  kind  direction  algorithm  method  window"
        ordered = sorted(self.rows.items(), key=lambda item: item[1]["of_bound"], reverse=True)
        for key, row in ordered[:most]:
            yield (
                f"{row['of_bound']:>9.3g} {row['relative']:>11.4g} {row['normwise']:>11.4g} "
                f"{row['of_largest']:>10.2e} {row['terms']:>6} {row['count']:>5} {row['index']:>6}  "
                f"{'  '.join(key)}"
            )
        yield f"{self.results} results in {len(self.rows)} rows, {len(ordered[most:])} rows not shown"
        for what, (count, record) in list(self.failures.items())[:20]:
            yield f"{count} x {what}: {record.get('error', '')[:150]}"
        yield f"{len(self.failures)} kinds of failures"


def window_of(text: str) -> tuple[int, ...]:
    """Parse a window from the command line."""
    return tuple(int(length) for length in text.split("x"))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="append each result as a line of JSON")
    parser.add_argument("--seconds", type=float, default=600, help="start no problem after this time (600)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the problems and the operands (1)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--windows", nargs="+", type=window_of, default=list(WINDOWS), metavar="5x5")
    parser.add_argument("--children", type=int, default=2, metavar="N", help="number of child processes (2)")
    parser.add_argument("--knobs", type=int, default=2, metavar="N", help="knob settings of each engine (2)")
    parser.add_argument("--first", type=int, default=0, metavar="INDEX", help="start with this problem")
    parser.add_argument("--problems", type=int, default=10**9, metavar="N", help="end before this problem")
    parser.add_argument("--excluded", action="store_true", help="run algorithms known to exceed the bound")
    parser.add_argument("--step", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure problems, and print the table at the end."""
    options = parse(arguments)
    if options.child:
        ct.config.algo_cache = "off"
        if options.excluded:
            facts.ignore([row["name"] for row in table() if row["effect"] == "inaccurate"])
        child(options)
        return
    worst = Worst(options.json)
    children(options, worst.keep)
    print("\n".join(worst.lines()))


if __name__ == "__main__":
    main()
