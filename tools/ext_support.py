"""Print which calls of the operations of libcudnn_ext a GPU computes, and how exactly.

python tools/ext_support.py                              # all rows, in some two minutes
python tools/ext_support.py --only fft --json out.json

CUDNN_CT_LIBRARY may name libcudnn.so.9 in a folder with that and libcudnn_ext.so.9 alone.

Each row is one problem, forward and backward, against the reference in NumPy. cuDNN compiles a kernel for
nearly each, in seconds, so the rows are divided among processes, which also survive a fault of another one. A
row that no process reached in time is printed as such. The command exits with 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import cudnn_ct as ct  # noqa: E402
from cudnn_ct.dtypes import as_dtype  # noqa: E402

# Largest errors, relative to the largest element: results are rounded once, and sums are those of float32.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3.2e-2, "float32": 1e-4, "float64": 1e-10}
OFFSETS = np.array([0, 2, 3, 7, 12, 13], np.int32)
INDICES = np.array([0, 4, 1, 3, 0, 2, 4, 6, 6, 5, 1, 0, 2], np.int32)
SOURCES, DESTINATIONS = 7, 5

Compare = tuple[str, Any, Any]
"""The name of a result, the array of the device and that of the reference."""


class Row(NamedTuple):
    """One problem: its operation, a description, its dtype, and a function that yields its results."""

    operation: str
    what: str
    dtype: str
    run: Callable[[np.random.Generator, str], Iterator[Compare]]


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="a part of the names of operations")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--json", type=Path, help="store the rows in this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    numbers = [i for i, row in enumerate(ROWS) if options.only in row.operation]
    if options.child:
        run_rows([int(number) for number in options.child.split(",")])
        return 0
    found = divided(numbers, options.jobs, options.seconds)
    for number in numbers:
        print(line(ROWS[number], found.get(number)))
    if options.json:
        rows = [(*ROWS[number][:3], found.get(number)) for number in numbers]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(one["verdict"] == "wrong" for one in found.values()))


def divided(numbers: list[int], jobs: int, seconds: float) -> dict[int, dict[str, Any]]:
    """Run rows in processes, and return what they found in time."""
    until = time.monotonic() + seconds
    shares = [share for job in range(jobs) if (share := numbers[job::jobs])]
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", ",".join(map(str, share))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for share in shares
    ]
    found: dict[int, dict[str, Any]] = {}
    for child in children:
        try:
            out, err = child.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
        for text in out.splitlines():
            if text.startswith("{"):
                one = json.loads(text)
                found[one.pop("number")] = one
        if child.returncode not in (0, -9):
            print(f"a process ended with {child.returncode}: {err[-500:]}", file=sys.stderr)
    return found


def run_rows(numbers: list[int]) -> None:
    """Run rows in this process; each prints what was found as soon as it is known."""
    for number in numbers:
        print(json.dumps({"number": number, **outcome(ROWS[number])}), flush=True)


def outcome(row: Row) -> dict[str, Any]:
    """Return the verdict of a row, its errors and its seconds, with those of compilation."""
    begin, errors = time.monotonic(), dict[str, float]()
    try:
        for name, got, wanted in row.run(np.random.default_rng(0), row.dtype):
            expected = np.asarray(wanted, np.float64)
            size = max(float(np.abs(expected).max(initial=0)), 1e-30)
            difference = np.abs(got.numpy().astype(np.float64) - expected).max(initial=0)
            errors[name] = float(difference) / size
    except (ct.CudnnError, TypeError, ValueError) as error:  # the next rows of the process still run
        return {"verdict": "rejected", "reason": str(error)[-300:], "errors": errors}
    right = all(error <= TOLERANCE[row.dtype] for error in errors.values())  # false for NaN
    seconds = round(time.monotonic() - begin, 1)
    return {"verdict": "right" if right else "wrong", "errors": errors, "seconds": seconds}


def line(row: Row, found: dict[str, Any] | None) -> str:
    """Return a row of the table."""
    head = f"{row.operation:18} {row.what:34} {row.dtype:9}"
    if found is None:
        return f"{head} not reached"
    errors = " ".join(f"{name} {error:.0e}" for name, error in found["errors"].items())
    more = " ".join(found.get("reason", "").split())[-160:]
    return f"{head} {found['verdict']:8} {found.get('seconds', ''):>5} {errors} {more}".rstrip()


# --- problems ----------------------------------------------------------------------------------------------


def drawn(rng: np.random.Generator, dtype: str, *shape: int, divided_by: float = 1) -> np.ndarray[Any, Any]:
    """Draw normal numbers."""
    values: np.ndarray[Any, Any] = (rng.standard_normal(shape) / divided_by).astype(as_dtype(dtype).numpy)
    return values


def both(
    name: str, forward: dict[str, Any], backward: Callable[[Any], dict[str, Any]], **keywords: Any
) -> Iterator[Compare]:
    """Yield the results of an operation and of its gradient; ``backward`` makes its operands of results."""
    result = yield from compared(name, forward, keywords)
    yield from compared(f"{name}_backward", backward(result), keywords)


def compared(name: str, given: dict[str, Any], keywords: dict[str, Any]) -> Generator[Compare, None, Any]:
    """Yield the results of an operation next to those of the reference in float64, and return the former."""
    arrays = {key: ct.asarray(one) if isinstance(one, np.ndarray) else one for key, one in given.items()}
    wide = {
        key: one.astype(np.float64) if isinstance(one, np.ndarray) and one.dtype.kind not in "iu" else one
        for key, one in given.items()
    }
    got = getattr(ct, name)(**arrays, **keywords)
    wanted = getattr(ct.reference, name)(**wide, **keywords)
    fields = getattr(wanted, "_fields", ("y",))
    pair = (got, wanted) if isinstance(got, tuple) else ((got,), (wanted,))
    for field, one, two in zip(fields, *pair, strict=True):
        if two is not None and field != "positions":
            yield field, one, two
    return got


def by_fft(width: int, times: int) -> Callable[[np.random.Generator, str], Iterator[Compare]]:
    """Return the problem of a convolution by FFT."""

    def run(rng: np.random.Generator, dtype: str) -> Iterator[Compare]:
        shape = (2, 3, width * times)
        given = {"x": drawn(rng, dtype, *shape), "w": drawn(rng, dtype, 3, width, divided_by=width**0.5)}
        return both("fft_causal_conv1d", given, lambda _: {"dy": drawn(rng, dtype, *shape), **given})

    return run


def back_to_back(projection: int, mixer: int) -> Callable[[np.random.Generator, str], Iterator[Compare]]:
    """Return the problem of two convolutions with gates."""

    def run(rng: np.random.Generator, dtype: str) -> Iterator[Compare]:
        given = {
            "x": drawn(rng, dtype, 2, 5, 3, 300),
            "w_proj": drawn(rng, dtype, 5, 3, projection, divided_by=projection**0.5),
            "w_mixer": drawn(rng, dtype, 5, mixer, divided_by=mixer**0.5),
            "skip_bias": drawn(rng, dtype, 5),
        }
        more = {"dy": drawn(rng, dtype, 2, 5, 300)}
        return both("b2b_causal_conv1d", given, lambda y: {**more, **given, "mixed": y.mixed.numpy()})

    return run


def aggregate(op: str, integers: str) -> Callable[[np.random.Generator, str], Iterator[Compare]]:
    """Return the problem of an aggregation of nodes, edges and appended features."""

    def run(rng: np.random.Generator, dtype: str) -> Iterator[Compare]:
        graph = {"offsets": OFFSETS.astype(integers), "indices": INDICES.astype(integers)}
        x, edges = drawn(rng, dtype, SOURCES, 20), drawn(rng, dtype, len(INDICES), 3)
        given = {**graph, "x": x, "edges": edges, "concat": drawn(rng, dtype, DESTINATIONS, 2)}
        dy, shapes = drawn(rng, dtype, DESTINATIONS, 25), {"x_shape": x.shape, "edges_shape": edges.shape}

        def backward(y: Any) -> dict[str, Any]:
            positions = {} if y.positions is None else {"positions": y.positions.numpy()}
            return {"dy": dy, **graph, **shapes, **positions}

        return both("graph_aggregate", given, backward, op=op)

    return run


def attention(
    heads: int, features: int, integers: str = "int32", **keywords: Any
) -> Callable[[np.random.Generator, str], Iterator[Compare]]:
    """Return the problem of an attention of a graph."""

    def run(rng: np.random.Generator, dtype: str) -> Iterator[Compare]:
        given = {"offsets": OFFSETS.astype(integers), "indices": INDICES.astype(integers)}
        for name, rows in (("x", SOURCES), ("target", DESTINATIONS), ("edges", len(INDICES))):
            given[name] = drawn(rng, dtype, rows, features)
        given["w"] = drawn(rng, dtype, features, divided_by=(features / heads) ** 0.5)

        def backward(y: Any) -> dict[str, Any]:
            saved = {"scores": y.scores.numpy(), "activated": y.activated.numpy()}
            return {"dy": drawn(rng, dtype, *y.y.shape), **given, **saved}

        return both("graph_attention", given, backward, heads=heads, **keywords)

    return run


def of_empty(operation: str) -> Callable[[np.random.Generator, str], Iterator[Compare]]:
    """Return the problem of a graph one of whose destinations has no edge: is the result 0?"""

    def run(rng: np.random.Generator, dtype: str) -> Iterator[Compare]:
        offsets, indices = np.array([0, 2, 2, 3], np.int32), np.array([0, 1, 2], np.int32)
        x, target = drawn(rng, dtype, 4, 8), drawn(rng, dtype, 3, 8)
        more = (target, drawn(rng, dtype, 8)) if operation == "graph_attention" else ()
        hosts = (offsets, indices, x, *more)
        wide = [one if one.dtype.kind == "i" else one.astype(np.float64) for one in hosts]
        ops = ("sum", "mean", "max", "min") if operation == "graph_aggregate" else ("",)
        for op in ops:
            keywords: dict[str, Any] = {"op": op} if op else {}
            got = getattr(ct, operation)(*map(ct.asarray, hosts), **keywords)
            yield op or "y", got.y, getattr(ct.reference, operation)(*wide, **keywords).y

    return run


HALF, FLOATS = ("float16", "bfloat16"), ("float32", "float16", "bfloat16", "float64")
FFT_ROWS = [(128, 1), (128, 3), (1024, 2), (4096, 1), (4096, 2), (8192, 1), (16384, 1), (16384, 2)]
LONG_ROWS = [2**15, 2**17, 2**20]
PAIRS = ((4, 7), (2, 2), (3, 64), (8, 128), (32, 256), (17, 100))

ROWS: list[Row] = [
    *(Row("graph_aggregate", f"{op}, int32", "float32", aggregate(op, "int32")) for op in ("sum", "max")),
    *(Row("graph_aggregate", f"{op}, int32", "float32", aggregate(op, "int32")) for op in ("mean", "min")),
    *(Row("graph_aggregate", "mean, int32", dtype, aggregate("mean", "int32")) for dtype in HALF),
    Row("graph_aggregate", "mean, int64", "float32", aggregate("mean", "int64")),
    Row("graph_aggregate", "a destination without edges", "float32", of_empty("graph_aggregate")),
    *(Row("graph_attention", "2 heads of 4", dtype, attention(2, 8)) for dtype in ("float32", *HALF)),
    Row("graph_attention", "2 heads of 4, int64", "float32", attention(2, 8, "int64")),
    Row("graph_attention", "8 heads of 64, mean", "float32", attention(8, 512, concat=False)),
    Row("graph_attention", "3 heads of 1, elu", "float32", attention(3, 3, activation="elu")),
    Row("graph_attention", "a destination without edges", "float32", of_empty("graph_attention")),
    *(Row("b2b_causal_conv1d", f"widths {4} and {7}", dtype, back_to_back(4, 7)) for dtype in FLOATS),
    *(Row("b2b_causal_conv1d", f"widths {a} and {b}", "float32", back_to_back(a, b)) for a, b in PAIRS[1:]),
    *(Row("fft_causal_conv1d", f"width {k}, {n} times", "float32", by_fft(k, n)) for k, n in FFT_ROWS),
    *(Row("fft_causal_conv1d", f"width {k}, the length", "float32", by_fft(k, 1)) for k in LONG_ROWS),
    *(Row("fft_causal_conv1d", "width 128, 3 times", dtype, by_fft(128, 3)) for dtype in FLOATS[1:]),
    *(Row("fft_causal_conv1d", "width 16384, 2 times", dtype, by_fft(16384, 2)) for dtype in HALF),
    Row("fft_causal_conv1d", "width 4096, 2 times", "float64", by_fft(4096, 2)),
    *(Row("fft_causal_conv1d", f"width {2**15}, the length", one, by_fft(2**15, 1)) for one in FLOATS[1:]),
]


if __name__ == "__main__":
    sys.exit(main())
