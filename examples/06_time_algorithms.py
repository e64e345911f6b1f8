"""Time every algorithm that cuDNN has for one convolution, as a table and a picture.

    python examples/06_time_algorithms.py [--x N,C,H,W] [--w K,C,H,W] [--dtype D] [--layout L] [--output PATH]

With a GPU: the engines of the graph API and the legacy calls, each timed by the GPU's clock, and the results
of the fastest compared with the reference. Without one: the engines planned for an H200, without times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from rich.console import Console
from rich.table import Table

import cudnn_ct as ct

OUTPUT = Path(__file__).parent / "output" / "algorithms.png"
TOLERANCES = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 2e-3, "float64": 1e-9}  # float32: TF32 is allowed
CHECKED, SHOWN = (
    5,
    30,
)  # number of algorithms, fastest first, that are compared with the reference; that are plotted


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status: 1 if an algorithm computes something else."""
    parser = argparse.ArgumentParser(description="Time every algorithm for one convolution.")
    parser.add_argument("--x", type=shape, help="default: 32,64,56,56")
    parser.add_argument("--w", type=shape, help="default: 64,64,3,3")
    parser.add_argument("--dtype", default="float16", choices=TOLERANCES, help="default: %(default)s")
    parser.add_argument("--layout", default="nhwc", choices=("nchw", "nhwc"), help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the picture (default: %(default)s)")
    options = parser.parse_args(arguments)

    x_shape, w_shape = options.x or (32, 64, 56, 56), options.w or (64, 64, 3, 3)
    if not (available := ct.available()):
        print(f"not on a GPU: {available.reason}")
        return planned(x_shape, w_shape, options.dtype, options.layout)
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-1, 1, s).astype(np.float32) for s in (x_shape, w_shape))
    title, rows, difference = on_the_gpu(x, w, options.dtype, options.layout)
    title = f"x {x_shape}, w {w_shape}: {title}"

    print(title)
    table = Table("algorithm", "ms", "workspace, MiB")
    for name, milliseconds, workspace in rows:
        table.add_row(name, f"{milliseconds:.3f}", f"{workspace / 2**20:.1f}")
    Console(width=100).print(table)
    print(f"largest difference to the reference, relative to the largest element: {difference:.1e}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(title, rows).savefig(options.output, dpi=120)
    print(f"saved {options.output}")
    return 0 if difference <= TOLERANCES[options.dtype] else 1


def shape(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


Row = tuple[str, float, int]
"""A name, milliseconds, and bytes of workspace."""


def on_the_gpu(x: np.ndarray, w: np.ndarray, dtype: str, layout: str) -> tuple[str, list[Row], float]:
    """Time all algorithms, and compute with the fastest."""
    on_device = [ct.asarray(array, dtype, layout=layout) for array in (x, w)]
    table = ct.conv_algorithms(*on_device, padding="half")
    usable = [row for row in table if not row.rejected and row.time_ms is not None]
    print(f"{len(usable)} algorithms were timed; cuDNN rejected {len(table) - len(usable)} others")
    rounded = [array.numpy().astype(np.float32) for array in on_device]
    wanted = ct.reference.conv(*rounded, padding="half")
    results = [ct.conv(*on_device, padding="half", algo=row) for row in usable[:CHECKED]]
    difference = max(far(y.numpy(), wanted) for y in results)
    rows = [(f"{row.backend} {row.algorithm}", row.time_ms, row.workspace) for row in usable]
    return f"{dtype}, {layout}, cuDNN {ct.version()}", rows, difference


def planned(x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str, layout: str) -> int:
    """Print the engines that cuDNN plans for a GPU that is only described; return the exit status."""
    shapes = [",".join(map(str, shape)) for shape in (x_shape, w_shape)]
    command = [sys.executable, "-m", "cudnn_ct", "algorithms", "--x", shapes[0], "--w", shapes[1]]
    command += ["--padding", "half", "--dtype", dtype, "--layout", layout, "--gpu", "h200", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print("nothing was planned: this needs the libraries of cuDNN 9.8 or newer")
        return 0
    found = json.loads(done.stdout)
    table = Table("engine", "workspace, MiB", "notes")
    for row in found["rows"]:
        if not row["rejected"]:
            table.add_row(row["algorithm"], f"{row['workspace'] / 2**20:.1f}", ", ".join(row["notes"]))
    Console(width=100).print(table)
    print(f"{table.row_count} engines planned for {found['device']} without a GPU; times need one")
    return 0 if table.row_count else 1


def far(y: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(y.astype(np.float64) - wanted).max() / np.abs(wanted).max())


def draw(title: str, rows: list[Row]) -> Figure:
    """Draw a point for each algorithm, the fastest at the top."""
    if len(rows) > SHOWN:
        title = f"{title}\nthe fastest {SHOWN} of {len(rows)}"
    names, times, _ = zip(*rows[:SHOWN], strict=True)
    figure = Figure(figsize=(10, 1.4 + 0.26 * len(names)), layout="constrained")
    axes = figure.subplots()
    places = range(len(names))
    axes.hlines(places, min(times) / 1.5, times, color="0.85")
    axes.scatter(times, places, c=["C1" if name.startswith("legacy") else "C0" for name in names], zorder=2)
    for place, time in zip(places, times, strict=True):
        axes.annotate(f"{time:.3g}", (time, place), (7, -3), textcoords="offset points", fontsize=8)
    labels = [name if len(name) <= 60 else f"{name[:57]}..." for name in names]
    axes.set_yticks(places, labels, fontsize=8)
    axes.set(xlabel="ms, logarithmic", xscale="log", xlim=(min(times) / 1.5, max(times) * 1.5))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", which="both", alpha=0.2)
    return figure


if __name__ == "__main__":
    sys.exit(main())
