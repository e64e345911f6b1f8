"""Measure the cost of a new length, with static and with dynamic graphs.

python benchmarks/shapes.py                # plans for an H200; on a GPU, also calls
python benchmarks/shapes.py --gpu l4 --kinds "matmul bias gelu" "layer norm"

Part 1 needs no GPU: graphs of known kinds are planned for a described GPU, in a child process. ``engine`` is
the first of the heuristics. A static and a dynamic graph have the milliseconds of the first plan, and of a
second one with another length: the native graph, the heuristics, and the plan. A plan of another engine or
with other knobs is marked by *. A dash is a graph that has no dynamic engine or is known to be wrong.

Part 2 makes calls on the GPU: the milliseconds of the first call, and the median and the maximum of the first
calls with other lengths, without and with `ct.config.dynamic_shapes`. ``plan`` is "dynamic" if the graph was.
``GPU time`` is that of the dynamic kernel relative to the static one, at one length.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

KINDS = (
    "matmul", "matmul bias gelu", "matmul float32", "matmul float8 amax", "layer norm", "RMS norm",
    "ada layer norm", "RMS norm backward", "elementwise", "reduction", "convolution bias gelu",
    "attention causal", "sdpa causal",
)  # fmt: skip
LENGTHS = 12  # further lengths of each call
Times = tuple[str, float, float, float]  # the engine, and milliseconds


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", default="h200", help="the described GPU of part 1")
    parser.add_argument("--kinds", nargs="+", default=KINDS, help="kinds of tests/graph_kinds")
    parser.add_argument("--lengths", type=int, default=LENGTHS, help="further lengths of each call of part 2")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return plans(options.gpu, options.kinds)
    command = [sys.executable, __file__, "--child", "--gpu", options.gpu, "--kinds", *options.kinds]
    code = subprocess.run(command).returncode
    import cudnn_ct as ct

    if ct.available():
        calls(options.lengths)
    return code


# --- part 1: plans for a described GPU ---------------------------------------------------------------------


def plans(gpu: str, kinds: list[str]) -> int:
    """Print a row for each kind of graph."""
    from cudnn_ct.errors import format_version
    from cudnn_ct.graph.gpus import description_of
    from cudnn_ct.graph.offline import Planner
    from tests.graph_kinds import SINCE
    from tests.lib.test_graph import load_stub

    load_stub()
    planner = Planner(description_of(gpu))
    version = planner.library.version
    print(f"cuDNN {format_version(version)}, plans for {gpu}, milliseconds: graph + heuristics + plan")
    print(f"{'kind':24} {'engine':10} {'static, first':>23} {'other length':>23}", end=" ")
    print(f"{'dynamic, first':>24} {'other length':>23}")
    for kind in kinds:
        if SINCE.get(kind, 0) <= version:
            print(row_of(kind, planner), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the destructors of the libraries may fail with a stub for a driver


def row_of(kind: str, planner: Any) -> str:
    from cudnn_ct.errors import CudnnError
    from tests.graph_kinds import KINDS as GRAPHS
    from tests.graph_kinds.sizes import with_length

    graph, cells, engine = GRAPHS[kind](), [], ""
    shape = graph.operands[0].spec.shape
    length = shape[1] if len(shape) == 3 else shape[2 if kind.startswith(("sdpa", "attention")) else 0]
    for dynamic in (False, True):
        planner.kernel_caches.clear()
        for other in (length, length * 3 // 4):
            try:
                found, *times = planned(with_length(graph, length, other, dynamic=dynamic), planner)
            except CudnnError:
                cells.append("-")
                continue
            engine = engine or found
            cell = " + ".join(f"{one:.2f}" for one in times)
            cells.append(f"{cell}{'*' if found != engine else ''}")
    name = engine.partition(" knobs")[0]
    return f"{kind:24} {name:10} {cells[0]:>23} {cells[1]:>23} {cells[2]:>24} {cells[3]:>23}"


def planned(graph: Any, planner: Any) -> Times:
    """Plan a graph with the first engine of the heuristics."""
    from cudnn_ct.graph.engines import execution_plan, heuristic_configs
    from cudnn_ct.graph.native import operation_graph

    start = time.perf_counter()
    native = operation_graph(graph, planner)
    made = time.perf_counter()
    engine = next(heuristic_configs(native, planner, room=1)).engine
    asked = time.perf_counter()
    execution_plan(native, engine, planner)
    done = time.perf_counter()
    return str(engine), 1e3 * (made - start), 1e3 * (asked - made), 1e3 * (done - asked)


# --- part 2: calls on the GPU ------------------------------------------------------------------------------


def cases() -> dict[str, Callable[[int], Callable[[], object]]]:
    """Return functions of a length, which return a call; operands are made outside the call."""
    import cudnn_ct as ct

    def ones(*shape: int, dtype: str = "bfloat16") -> Any:
        return ct.full(shape, 1, dtype)

    w, bias = ones(4096, 4096), ones(4096)
    scale, shift = ones(4096, dtype="float32"), ones(4096, dtype="float32")

    def matmul(n: int) -> Callable[[], object]:
        a = ones(n, 4096)
        return lambda: ct.matmul(a, w, bias=bias, activation="gelu")

    def layer_norm(n: int) -> Callable[[], object]:
        x = ones(n, 4096)
        return lambda: ct.layer_norm(x, scale, shift)

    def rms_norm(n: int) -> Callable[[], object]:
        x = ones(n, 4096)
        return lambda: ct.rms_norm(x, scale)

    def graph(n: int) -> Callable[[], object]:
        a = ones(n, 4096)

        def call() -> object:
            if n not in built:
                g = ct.Graph()
                y = g.swish(g.input((n, 4096), "bfloat16") @ g.input((4096, 4096), "bfloat16"))
                built[n] = g.build(y, dynamic_shapes=ct.config.dynamic_shapes)
            return built[n](a, w)

        built: dict[int, Any] = {}
        return call

    def attention(n: int) -> Callable[[], object]:
        q = ones(2, 16, n, 128)
        return lambda: ct.attention(q, q, q, causal=True)

    return {
        "matmul + bias + gelu": matmul,
        "built graph": graph,
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "attention": attention,
    }


def calls(count: int) -> None:
    """Print a row for each call: first calls in milliseconds, and the time of the kernels."""
    import cudnn_ct as ct

    ct.synchronize()
    print(f"\ncuDNN {ct.version()}, first calls, milliseconds: of the process, and of {count} other lengths")
    columns = [f"{setting}{name}" for setting in ("", "dynamic ") for name in ("first", "median", "max")]
    print(f"{'call':22}", *(f"{name:>15}" for name in columns), f"{'plan':>9} {'GPU time':>9}")
    lengths = [2048, *random.Random(7).sample([*range(1000, 2040, 8), *range(1001, 2040, 100)], count)]
    for name, make in cases().items():
        cells, kept = [], []
        for dynamic in (False, True):
            ct.config.dynamic_shapes = dynamic
            times = [first_call(make(length)) for length in lengths]
            cells += [times[0], statistics.median(times[1:]), max(times[1:])]
            kept.append(make(8192))
            kept[-1]()
            plan = ct.last_plan()
        used = plan is not None and plan.candidate is not None and plan.candidate.dynamic
        numbers = (f"{cell:15.2f}" for cell in cells)
        print(
            f"{name:22}",
            *numbers,
            f"{'dynamic' if used else 'static':>9} {gpu_ratio(*kept):9.2f}",
            flush=True,
        )
    ct.config.dynamic_shapes = False


def first_call(call: Callable[[], object]) -> float:
    import cudnn_ct as ct

    ct.synchronize()
    start = time.perf_counter()
    kept = call()
    ct.synchronize()
    del kept
    return 1e3 * (time.perf_counter() - start)


def gpu_ratio(static: Callable[[], object], dynamic: Callable[[], object]) -> float:
    """Return the GPU time of a dynamic call relative to a static one; they run alternately."""
    import cudnn_ct as ct
    from cudnn_ct.autotune.benchmark import benchmark
    from cudnn_ct.cuda import stream as streams

    def run(call: Callable[[], object], setting: bool) -> Callable[[], None]:
        def once() -> None:
            if ct.config.dynamic_shapes is not setting:
                ct.config.dynamic_shapes = setting
            call()

        return once

    before, after = benchmark([run(static, False), run(dynamic, True)], streams.resolve_stream(None))
    timed = isinstance(before, float) and isinstance(after, float)
    return after / before if timed and before else float("nan")


if __name__ == "__main__":
    sys.exit(main())
