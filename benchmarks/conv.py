"""Convolution beside PyTorch on one GPU: every bar, in one command.

    python benchmarks/conv.py --section all --rows rows.jsonl [--shard 2/8] [--seconds 540] [--json OUT]

A row is a layer of a network in one direction and kind, with the same data, layout and TF32 setting for all:
PyTorch with cudnn.benchmark, PyTorch without, cudnn_ct by default, and its time_on_shape_change. GPU time by
events around loops of calls, medians; the four take turns, loop by loop; operands and results rotate through
more memory than the cache holds. What is done is kept in the file of rows, one JSON object a line, and not
done again: a command that was stopped goes on where it was. `conv_report.py` merges such files.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import gc
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import conv_layers
import conv_report
from conv_layers import DIRECTIONS, KINDS, NETWORKS, Row
from conv_report import ABOVE, KERNEL_BOUND, Record

import cudnn_ct as ct

SECTIONS = ("rows", "fused", "host", "cache")
POLICIES = {"guess": None, "time": "time_on_shape_change"}
CONTENDERS = ("torch_benchmark", "torch", "guess", "time")  # in the order in which they take turns
# A timed choice comes before a guess at the same problem, so that it finds nothing prepared.
FIRST_CALLS = ("torch_benchmark", "torch", "time", "guess", "torch_eager", "torch_fused")

ROTATED = 120 * 10**6  # bytes of operands and results to walk through: twice the cache
LOOP = 1500  # microseconds that a loop of calls should take ...
CALLS = (5, 500)  # ... with so many calls at least and at most
LOOPS = 7
LONG, LOOPS_OF_LONG = 25_000, 3  # loops of more microseconds than that are repeated less often
AGAIN = 5  # how often a row above its limit is measured again
RESERVE = 60 * 2**30  # bytes of free memory below which the allocators' caches are emptied
HOST_CALLS, HOST_LOOPS = 400, 75  # fewer calls than the queue to the GPU holds
PROCESSES = 5

Call = Callable[[int], Any]


def main(argv: Sequence[str] | None = None) -> None:
    began = time.monotonic()
    options = parse(argv)
    if options.first_call:
        print(json.dumps({"ms": first_call_ever(options.first_call, options.warm)}))
        return
    results = Results(options.rows)
    work = [job for section in options.section for job in jobs(section, options, results)]
    print(f"{len(work)} to measure, {len(results.records)} records are there already", flush=True)
    if work:
        prepare()
        results.add(about())
    for done, job in enumerate(work):
        if options.seconds is not None and time.monotonic() > began + options.seconds:
            print(f"stopped after {options.seconds:g} s, {len(work) - done} left: run the same command again")
            break
        job()
    print(conv_report.render(results.merged()))
    if options.json:
        conv_report.write_whole(options.json, results.merged())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="convolution beside PyTorch")
    parser.add_argument("--rows", type=Path, help="append what is measured here, and skip what is there")
    parser.add_argument("--json", type=Path, help="write the whole result here at the end")
    parser.add_argument("--section", nargs="+", choices=(*SECTIONS, "all"), default=["rows"])
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=tuple(NETWORKS))
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--every", type=_positive, default=1, metavar="N", help="take each n-th row")
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="K/N", help="the k-th of n parts")
    parser.add_argument("--seconds", type=float, help="begin nothing new after so many seconds")
    parser.add_argument("--candidates", type=Path, help="append a table of all candidates of each row here")
    parser.add_argument("--no-torch", action="store_true", help="time cudnn_ct alone")
    parser.add_argument("--first-call", choices=tuple(POLICIES), help="time one first call and print it")
    parser.add_argument("--warm", action="store_true", help="with --first-call: after another convolution")
    options = parser.parse_args(argv)
    if "all" in options.section:
        options.section = SECTIONS
    return options


def jobs(section: str, options: argparse.Namespace, results: Results) -> Iterator[Callable[[], None]]:
    """What is left to measure of a section."""
    if section in ("host", "cache"):  # one record, for the first shard
        if options.shard[0] == 1 and not results.has(section, section):
            yield functools.partial(keep, results, host_record if section == "host" else cache_record)
    elif section == "fused":
        some = {"networks": ["resnet50"], "directions": ["forward"], "kinds": ["fp16"]}
        for row in conv_layers.rows(**some, shard=options.shard):
            if not results.has("fused", f"fused {row.id}"):
                yield functools.partial(keep, results, fused_record, row)
    else:
        wanted = tuple(POLICIES) if options.no_torch else CONTENDERS
        tables = Results(options.candidates) if options.candidates else None
        selection = ("networks", "directions", "kinds", "every", "shard")
        for row in conv_layers.rows(**{name: getattr(options, name) for name in selection}):
            if not results.has("rows", row.id, wanted):
                yield functools.partial(keep, results, row_record, row, wanted)
            if tables is not None and not tables.has("candidates", row.id):
                yield functools.partial(keep, tables, candidates_record, row)


def keep(results: Results, measure: Callable[..., Record], *arguments: Any) -> None:
    """Measure something, keep it, say so. What fails as a whole is left for the next run."""
    try:
        record = measure(*arguments)
    except Exception as error:
        print(f"{measure.__name__} of {arguments[:1]} failed: {explain(error)}", flush=True)
        if lost_context():
            raise
        return
    results.add(record)
    print(line_of(record), flush=True)
    gc.collect()
    if record.get("lost"):
        sys.exit(f"the GPU's context is lost ({record['lost']}); the same command goes on after that row")


def line_of(record: Record) -> str:
    """One line on a record, while the benchmark runs."""
    times = record["times"].items()
    parts = [", ".join(f"{name} {us:.1f}" for name, us in times if isinstance(us, float))]
    parts += [f"{len(record['candidates'])} candidates"] if "candidates" in record else []
    parts += [f"{name}: {why[:150]}" for name, why in record["errors"].items()]
    parts += [f"skipped: {record['skipped'][:150]}"] if "skipped" in record else []
    return f"{record['id']}: {'; '.join(filter(None, parts))}"


class Results:
    """Records in memory and, with a path, in a file that only grows."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        there = path is not None and path.exists()
        self.records = conv_report.read(path) if there else []
        self._settled: dict[tuple[str, str], set[str]] = {}
        for record in self.records:
            self._note(record)
        if there and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self._append("\n")  # the last line was cut off

    def has(self, section: str, key: str, wanted: Sequence[str] = ()) -> bool:
        """Whether there are records in which all that are wanted have a time, or the reason for none."""
        settled = self._settled.get((section, key))
        return settled is not None and settled.issuperset(wanted)

    def add(self, record: Record) -> None:
        """Keep a record, on disk at once."""
        self.records.append(record)
        self._note(record)
        self._append(json.dumps(record, default=str) + "\n")

    def merged(self) -> list[Record]:
        """One record of each."""
        return conv_report.merged(self.records)

    def _note(self, record: Record) -> None:
        settled = self._settled.setdefault((record["section"], record["id"]), set())
        settled.update(record.get("times", ()), record.get("errors", ()))
        settled.update(CONTENDERS if "skipped" in record else ())

    def _append(self, text: str) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)


# --- timing ------------------------------------------------------------------------------------------------


class Contender(NamedTuple):
    """Somebody to time. ``benchmark`` is PyTorch's flag; None for ours."""

    call: Call
    benchmark: bool | None = None


def race(record: Record, contenders: dict[str, Contender], count: int) -> Record:
    """Time the contenders in turns, into the record; whoever fails leaves with the reason."""
    turn = itertools.cycle(range(count))
    for name in sorted(contenders, key=FIRST_CALLS.index):
        first = attempt(record, contenders, name, first_call)
        record["first_ms"] |= {} if first is None else {name: first}
    # Once round for everybody, so that all memory has its place.
    tried = [attempt(record, contenders, name, loop, turn, max(3, count)) for name in list(contenders)]
    fastest = min((estimate for estimate in tried if estimate), default=None)
    if fastest is None:
        return record
    calls = min(max(round(LOOP / fastest), CALLS[0]), CALLS[1])
    loops = LOOPS if calls * fastest < LONG else LOOPS_OF_LONG
    record |= {"count": count, "calls": calls, "loops": loops}
    record["times"] = in_turns(record, contenders, turn, calls, loops)
    ratio = conv_report.quotient(record["times"], "time", "torch_benchmark")
    if ratio and ratio > ABOVE and record["times"]["torch_benchmark"] > KERNEL_BOUND:
        two = {name: contenders[name] for name in ("torch_benchmark", "time")}
        again = [in_turns(record, two, turn, calls, loops) for _ in range(AGAIN)]
        ratios = [conv_report.quotient(times, "time", "torch_benchmark") for times in again]
        record["remeasured"] = [one for one in ratios if one]
    return record


def in_turns(
    record: Record, contenders: dict[str, Contender], turn: Iterator[int], calls: int, loops: int
) -> dict[str, float]:
    """Microseconds of GPU time per call of everybody: medians of loops, one of each in every round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(loops):
        for name in list(contenders):
            one = attempt(record, contenders, name, loop, turn, calls)
            times[name] += [] if one is None else [one]
    return {name: statistics.median(times[name]) for name in contenders}


def attempt(
    record: Record, contenders: dict[str, Contender], name: str, work: Callable[..., float], *arguments: Any
) -> float | None:
    """Let a contender work where it lives; an error is recorded, and takes it out."""
    try:
        return at_home(contenders[name], work, *arguments)
    except Exception as error:
        record["errors"][name] = explain(error)
        record["lost"] = lost_context()
        del contenders[name]
        return None


def at_home(contender: Contender, work: Callable[..., float], *arguments: Any) -> float:
    """Run ``work(call, *arguments)`` with PyTorch's flag set.

    PyTorch remembers one plan for a convolution in each thread, whatever the flag was when it was made: with
    and without benchmark must be two threads, or the second would run what the first has found.
    """
    import torch

    def run() -> float:
        with torch.inference_mode():
            return work(contender.call, *arguments)

    if contender.benchmark is not None:
        torch.backends.cudnn.benchmark = contender.benchmark
    return _heuristics_thread().submit(run).result() if contender.benchmark is False else run()


@functools.cache
def _heuristics_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1)


def first_call(call: Call) -> float:
    """Milliseconds of a call, with all that it prepares."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    call(0)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def loop(call: Call, turn: Iterator[int], calls: int) -> float:
    """Microseconds of GPU time per call of one loop.

    One call goes before: while it runs, the next are enqueued, so that no kernel of the loop waits for the
    first of them.
    """
    start, end = _events()
    call(next(turn))
    start.record()
    for i in itertools.islice(turn, calls):
        call(i)
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end) / calls


@functools.cache
def _events() -> tuple[Any, Any]:
    import torch

    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def explain(error: BaseException) -> str:
    """An error as text of bounded length."""
    return f"{type(error).__name__}: {error}"[:2000]


def lost_context() -> str:
    """Why the GPU does not answer any more, as after an illegal access; nothing where it does."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception as error:
        return explain(error)
    return ""


# --- rows --------------------------------------------------------------------------------------------------

ROLES = {  # two inputs and the result, in the order of our arguments
    "forward": ("x", "w", "y"),
    "backward_data": ("w", "y", "x"),
    "backward_filter": ("x", "y", "w"),
}
FUNCTIONS = dict(zip(DIRECTIONS, ("conv", "conv_backward_data", "conv_backward_filter"), strict=True))
CANDIDATE = (
    "family", "algorithm", "math", "workspace", "deterministic", "packed", "notes", "status", "time",
)  # fmt: skip


def row_record(row: Row, wanted: Sequence[str]) -> Record:
    """Measure a row."""
    record = facts(row)
    operands = operands_or_reason(row, record)
    if operands is None:
        return record
    contenders = {
        "torch_benchmark": Contender(torch_call(row, operands), benchmark=True),
        "torch": Contender(torch_call(row, operands), benchmark=False),
        **{name: Contender(our_call(row, operands, policy)) for name, policy in POLICIES.items()},
    }
    contenders = {name: contenders[name] for name in wanted}
    race(record, contenders, operands.count)
    record["choice"] = {
        name: chosen(row, operands, POLICIES[name]) for name in contenders if name in POLICIES
    }
    return record


def candidates_record(row: Row) -> Record:
    """All candidates of a row with their times, in the order in which they come."""
    record = facts(row, "candidates")
    operands = operands_or_reason(row, record)
    if operands is None:
        return record
    first, second, out = (operands.ours[role][0] for role in ROLES[row.direction])
    more = {"direction": row.direction, "precision": row.kind.precision, "measure": True, "out": out}
    try:
        table = list(ct.conv_algorithms(first, second, result_shape(row), **more, **row.layer.geometry))
    except Exception as error:
        record["errors"]["candidates"] = explain(error)
        record["lost"] = lost_context()
        return record
    rows = ({name: getattr(one, name, None) for name in CANDIDATE} for one in table)
    record["candidates"] = [{"order": order, **one} for order, one in enumerate(rows)]
    return record


def chosen(row: Row, operands: Operands, policy: str | None) -> str:
    """The candidate that a policy has settled on for a row."""
    first, second, out = (operands.ours[role][0] for role in ROLES[row.direction])
    more = {"direction": row.direction, "precision": row.kind.precision, "algo": policy, "out": out}
    try:
        plan = ct.conv_plan(first, second, result_shape(row), **more, **row.layer.geometry)
        return str(plan.candidate)
    except Exception as error:
        return explain(error)


def facts(row: Row, section: str = "rows") -> Record:
    """What a row is, and room for what it comes to."""
    layer = row.layer
    return {
        "section": section,
        "id": f"fused {row.id}" if section == "fused" else row.id,
        **{"networks": layer.networks, "direction": row.direction, "kind": row.kind.name, "half": row.half},
        **{"x": layer.x, "w": layer.w, **layer.geometry},
        **{"times": {}, "first_ms": {}, "errors": {}},
    }


class Operands(NamedTuple):
    """``count`` sets of x, w and y, as PyTorch's tensors and, over the same memory, as ours."""

    count: int
    theirs: dict[str, list[Any]]
    ours: dict[str, list[Any]]


def operands_or_reason(row: Row, record: Record) -> Operands | None:
    """Make the operands of a row; where memory does not suffice, the record says so."""
    import torch

    free_memory()
    try:
        return operands_of(row)
    except (torch.OutOfMemoryError, MemoryError) as error:
        record["skipped"] = f"out of memory: {explain(error)}"
        return None


def operands_of(row: Row) -> Operands:
    """Random inputs and empty results, so many sets that one has left the cache when it comes again."""
    import torch

    torch.backends.cudnn.allow_tf32 = row.kind.tf32
    dtype = getattr(torch, row.kind.dtype)
    shapes = {"x": row.layer.x, "w": row.layer.w, "y": row.layer.y}
    count = math.ceil(ROTATED / (dtype.itemsize * sum(map(math.prod, shapes.values()))))
    theirs = {}
    for role, shape in shapes.items():
        make = torch.empty if role == ROLES[row.direction][-1] else torch.randn
        theirs[role] = carve(make, shape, dtype, row.kind.nhwc, count)
    return Operands(count, theirs, {role: list(map(ct.asarray, several)) for role, several in theirs.items()})


def carve(make: Callable[..., Any], shape: tuple[int, ...], dtype: Any, nhwc: bool, count: int) -> list[Any]:
    """Cut tensors out of one piece of memory, each aligned as an allocation of its own would be."""
    step = 256 * math.ceil(math.prod(shape) / 256)
    memory = make(count * step, dtype=dtype, device="cuda")
    strides = strides_of(shape, nhwc)
    return [memory.as_strided(shape, strides, i * step) for i in range(count)]


def strides_of(shape: tuple[int, ...], nhwc: bool) -> tuple[int, ...]:
    """Strides in elements of a packed array, with channels last in memory or in C order."""
    order = (0, *range(2, len(shape)), 1) if nhwc else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def torch_call(row: Row, operands: Operands) -> Call:
    """PyTorch's convolution. Its results are kept until their turn comes again, so they rotate as well."""
    import torch

    xs, ws, dys = (operands.theirs[role] for role in ("x", "w", "y"))
    outs: list[Any] = [None] * operands.count
    padding, stride, dilation, groups = geometry(row)
    convolve = getattr(torch.nn.functional, f"conv{len(stride)}d")
    differentiate = torch.ops.aten.convolution_backward.default
    zeros = (0,) * len(stride)
    mask = (row.direction == "backward_data", row.direction == "backward_filter", False)

    def forward(i: int) -> None:
        outs[i] = convolve(xs[i], ws[i], None, stride, padding, dilation, groups)

    def backward(i: int) -> None:
        outs[i] = differentiate(
            dys[i], xs[i], ws[i], None, stride, padding, dilation, False, zeros, groups, mask
        )

    return forward if row.direction == "forward" else backward


def our_call(row: Row, operands: Operands, policy: str | None) -> Call:
    """The convolution of cudnn_ct, into results that rotate."""
    a, b, out = (operands.ours[role] for role in ROLES[row.direction])
    run = getattr(ct, FUNCTIONS[row.direction])
    pad, step, spread, groups = geometry(row)
    exact, shape = row.kind.precision, result_shape(row)

    def forward(i: int) -> None:
        run(
            a[i], b[i], out=out[i],
            padding=pad, stride=step, dilation=spread, groups=groups, precision=exact, algo=policy,
        )  # fmt: skip

    def backward(i: int) -> None:
        run(
            a[i], b[i], shape, out=out[i],
            padding=pad, stride=step, dilation=spread, groups=groups, precision=exact, algo=policy,
        )  # fmt: skip

    return forward if shape is None else backward


def geometry(row: Row) -> tuple[Any, ...]:
    """Padding, stride, dilation and groups."""
    return row.layer.padding, row.layer.stride, row.layer.dilation, row.layer.groups


def result_shape(row: Row) -> tuple[int, ...] | None:
    """The argument that says how large a gradient is; a forward convolution has none."""
    return {"forward": None, "backward_data": row.layer.x, "backward_filter": row.layer.w}[row.direction]


# --- convolution, bias and relu ----------------------------------------------------------------------------


def fused_record(row: Row) -> Record:
    """Measure a convolution with bias and relu: in one call, and as PyTorch does it."""
    record = facts(row, "fused")
    operands = operands_or_reason(row, record)
    if operands is None:
        return record
    return race(record, fused_contenders(row, operands), operands.count)


def fused_contenders(row: Row, operands: Operands) -> dict[str, Contender]:
    """PyTorch's convolution and relu, its fused operation, and ours by both policies."""
    import torch

    xs, ws = operands.theirs["x"], operands.theirs["w"]
    a, b, out = (operands.ours[role] for role in ("x", "w", "y"))
    bias = torch.randn(row.layer.w[0], dtype=xs[0].dtype, device="cuda")
    our_bias = ct.asarray(bias)
    outs: list[Any] = [None] * operands.count
    pad, step, spread, groups = geometry(row)
    convolve, relu, both = torch.nn.functional.conv2d, torch.relu, torch.cudnn_convolution_relu

    def eager(i: int) -> None:
        outs[i] = relu(convolve(xs[i], ws[i], bias, step, pad, spread, groups))

    def fused(i: int) -> None:
        outs[i] = both(xs[i], ws[i], bias, step, pad, spread, groups)

    def ours(i: int, policy: str | None) -> None:
        ct.conv_bias_activation(
            a[i], b[i], our_bias, activation="relu", out=out[i],
            padding=pad, stride=step, dilation=spread, groups=groups, algo=policy,
        )  # fmt: skip

    return {
        "torch_eager": Contender(eager, benchmark=True),
        "torch_fused": Contender(fused, benchmark=True),
        **{name: Contender(functools.partial(ours, policy=policy)) for name, policy in POLICIES.items()},
    }


# --- host time ---------------------------------------------------------------------------------------------


def host_record() -> Record:
    """Host time per call with operands so small that the GPU waits: microseconds, medians of loops."""
    import torch

    record: Record = {"section": "host", "id": "host", "times": {}, "errors": {}}
    torch.backends.cudnn.benchmark = True
    shapes = (1, 8, 8, 8), (8, 8, 3, 3), (1, 8, 8, 8)
    x, w, y = (carve(torch.randn, shape, torch.float16, True, 1)[0] for shape in shapes)
    calls = host_calls(x, w, y)
    try:
        calls["frontend"] = frontend_call(x, w, y)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cudnn"
        record["errors"]["frontend"] = "not installed" if missing else explain(error)
    with torch.inference_mode():
        rounds = [[host_loop(call) for call in calls.values()] for _ in range(HOST_LOOPS)]
    medians = map(statistics.median, zip(*rounds, strict=True))
    record["times"] = dict(zip(calls, medians, strict=True))
    return record


def host_calls(x: Any, w: Any, y: Any) -> dict[str, Callable[[], Any]]:
    """The same convolution in the ways to call it."""
    import torch

    conv, conv2d = ct.conv, torch.nn.functional.conv2d
    ours, filters, out = map(ct.asarray, (x, w, y))
    plan = ct.conv_plan(ours, filters, padding=1)
    return {
        "torch": lambda: conv2d(x, w, padding=1),
        "conv": lambda: conv(ours, filters, padding=1),
        "conv_out": lambda: conv(ours, filters, padding=1, out=out),
        "plan_out": lambda: plan(ours, filters, out=out),
    }


def frontend_call(x: Any, w: Any, y: Any) -> Callable[[], Any]:
    """nvidia-cudnn-frontend: a graph that is built, executed with PyTorch's tensors."""
    import cudnn
    import torch

    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(
        io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle
    )
    image, weight = (
        graph.tensor(name=name, dim=list(t.shape), stride=list(t.stride()), data_type=half)
        for name, t in (("x", x), ("w", w))
    )
    result = graph.conv_fprop(image=image, weight=weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    result.set_output(True).set_data_type(half).set_dim(list(y.shape)).set_stride(list(y.stride()))
    graph.build([cudnn.heur_mode.A])
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    operands = {image: x, weight: w, result: y}
    return lambda: graph.execute(operands, workspace, handle=handle)


def host_loop(call: Callable[[], Any]) -> float:
    """Microseconds of host time per call of one loop, which begins with an idle GPU."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    return 1e6 * (time.perf_counter() - start) / HOST_CALLS


# --- a choice that is on disk ------------------------------------------------------------------------------


def cache_record() -> Record:
    """First calls of a known problem in processes of their own: milliseconds, by policy."""
    record: Record = {"section": "cache", "id": "cache", "times": {}, "errors": {}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "choices.sqlite"
        try:
            record["first_ms"] = {"time": in_a_process("time", file, warm=True)}  # fills the file
            for state in ("warm", "cold"):
                times: dict[str, list[float]] = {name: [] for name in POLICIES}
                for name in list(POLICIES) * PROCESSES:
                    times[name].append(in_a_process(name, file, warm=state == "warm"))
                record["times"][state] = times
        except (RuntimeError, OSError) as error:
            record["errors"]["first call"] = explain(error)
    return record


def in_a_process(policy: str, file: Path, *, warm: bool) -> float:
    """Milliseconds of the first call in a new process that keeps timed choices in ``file``."""
    package = str(Path(ct.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"CUDNN_CT_CACHE": str(file), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, __file__, "--first-call", policy, *(["--warm"] if warm else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-1500:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["ms"])


def first_call_ever(policy: str, warm: bool) -> float:
    """Milliseconds of this process's first convolution; with ``warm``, of its first after another one."""
    import numpy as np

    def operands(*shapes: tuple[int, ...]) -> list[Any]:
        return [ct.asarray(np.ones(shape, np.float16), layout="nhwc") for shape in shapes]

    x, w = operands((64, 64, 56, 56), (64, 64, 3, 3))
    if warm:
        ct.conv(*operands((8, 32, 28, 28), (32, 32, 3, 3)), padding=1)
    ct.synchronize()
    start = time.perf_counter()
    ct.conv(x, w, padding=1, algo=POLICIES[policy])
    ct.synchronize()
    return 1000 * (time.perf_counter() - start)


# --- the process -------------------------------------------------------------------------------------------


def prepare() -> None:
    """Get out of the way what happens once: libraries, contexts, everybody's first plan."""
    ct.config.cache = "off"  # timed choices are to be timed, not remembered
    row = conv_layers.rows(networks=["resnet50-b1"], kinds=["fp16"], directions=["forward"])[0]
    small = row.layer._replace(x=(2, 16, 32, 32), w=(16, 16, *row.layer.w[2:]))
    row_record(row._replace(layer=small), CONTENDERS)
    gc.collect()
    gc.freeze()
    gc.disable()  # no sweep during a loop; one after each record


def free_memory() -> None:
    """Give back what allocators keep for later, where little is left."""
    import torch

    if torch.cuda.mem_get_info()[0] < RESERVE:
        torch.cuda.empty_cache()
        ct.empty_cache()


def about() -> Record:
    """Where and with what all this was measured."""
    import torch

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        **{"section": "about", "id": now, "date": now},
        **{"device": torch.cuda.get_device_name(), "driver": _driver(), "torch": torch.__version__},
        **{"cudnn of torch": torch.backends.cudnn.version(), "cudnn": ct.version()},
        "cudnn_ct": ct.__version__,
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.split("\n")[0].strip()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard; 2/8 is the second of eight")
    return int(part), int(parts)


if __name__ == "__main__":
    main()
