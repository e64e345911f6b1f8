"""Time every algorithm that cuDNN has for one convolution, as a table and a picture.

    python examples/06_time_algorithms.py [--x N,C,H,W] [--w K,C,H,W] [--dtype D] [--layout L] [--output PATH]

With a GPU: the engines of the graph API and the legacy calls, each timed by the GPU's clock, and the results
of the fastest compared with the reference. Without one: three ways to compute it in NumPy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

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
    parser.add_argument("--x", type=shape, help="default: 32,64,56,56; without a GPU 4,16,28,28")
    parser.add_argument("--w", type=shape, help="default: 64,64,3,3; without a GPU 16,16,3,3")
    parser.add_argument("--dtype", default="float16", choices=TOLERANCES, help="default: %(default)s")
    parser.add_argument("--layout", default="nhwc", choices=("nchw", "nhwc"), help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the picture (default: %(default)s)")
    options = parser.parse_args(arguments)

    available = ct.available()
    x_shape = options.x or ((32, 64, 56, 56) if available else (4, 16, 28, 28))
    w_shape = options.w or ((64, 64, 3, 3) if available else (16, 16, 3, 3))
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-1, 1, s).astype(np.float32) for s in (x_shape, w_shape))
    if available:
        title, rows, difference = on_the_gpu(x, w, options.dtype, options.layout)
        tolerance = TOLERANCES[options.dtype]
    else:
        print(f"not on a GPU: {available.reason}")
        print("so three ways in NumPy are timed instead, in float32")
        title, rows, difference = in_numpy(x, w)
        tolerance = 1e-5
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
    return 0 if difference <= tolerance else 1


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


def in_numpy(x: np.ndarray, w: np.ndarray) -> tuple[str, list[Row], float]:
    """Time three ways to compute a convolution, which are also those that cuDNN's algorithms are made of."""
    wanted = ct.reference.conv(x, w, padding="half")
    rows, differences = [], []
    ways = {"the reference, in float64": direct, "one matrix product": gemm, "Fourier transforms": fft}
    for name, way in ways.items():
        seconds = []
        for _ in range(3):
            start = perf_counter()
            y, workspace = way(x, w)
            seconds.append(perf_counter() - start)
        rows.append((name, min(seconds) * 1000, workspace))
        differences.append(far(y, wanted))
    return "NumPy", sorted(rows, key=lambda row: row[1]), max(differences)


def direct(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, int]:
    return ct.reference.conv(x, w, padding="half"), 0


def gemm(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, int]:
    """Write out what lies under the window at each place, as rows of a matrix: one product is then all."""
    before = [n // 2 for n in w.shape[2:]]
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in before)])
    under = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    rows = np.ascontiguousarray(under.transpose(0, 2, 3, 1, 4, 5)).reshape(-1, w[0].size)
    y = rows @ w.reshape(len(w), -1).T
    return y.reshape(len(x), *under.shape[2:4], len(w)).transpose(0, 3, 1, 2), rows.nbytes


def fft(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, int]:
    """Multiply spectra: a sum over places becomes a product at each frequency."""
    sizes = [n + k - 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    x_spectrum = np.fft.rfft2(x, sizes)
    w_spectrum = np.fft.rfft2(w[:, :, ::-1, ::-1], sizes)
    y = np.fft.irfft2(np.einsum("nchw,kchw->nkhw", x_spectrum, w_spectrum, optimize=True), sizes)
    inside = (slice(k - 1 - k // 2, n + k // 2) for n, k in zip(x.shape[2:], w.shape[2:], strict=True))
    return y[:, :, *inside], x_spectrum.nbytes + w_spectrum.nbytes


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
