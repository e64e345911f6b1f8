"""Time every engine and knob of layer normalisation and RMS normalisation on one GPU, next to PyTorch.

    python benchmarks/layer_norms.py --rows rows.jsonl [--seconds 110] [--tries 20] [--json OUT]

A row is an operation on a matrix, forward or backward. The floor is the time to read and write its arrays
once, at the speed of a copy in the same run. All engines of the heuristics are timed, then settings that
differ in one knob from the fastest so far, at most ``--tries`` of them. An engine whose result differs from
PyTorch's is an error of the row. At the end PyTorch, the heuristic choice, the autotuned choice and the
fastest engine run alternately. Rows in the file are not measured again. Most of the time goes into compiling
engines: run shards at the same time, with a ``--rows`` file each and one ``--lock`` file, and merge the rows
with cat.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import command
from harness.command import keep
from harness.comparison import EPSILON, distance, tensor_of
from harness.figures import Bar, Limit, geomean
from harness.knobs import knob_ranges, neighbours
from harness.operands import Array, Operands, operands_or_reason
from harness.results import Record, Results, explain, of_section, room_for, write_whole
from harness.text import about_lines, failures
from harness.timing import Contender, alone, loop, race

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.graph.engines import Engine
from cudnn_ct.ops.norm.row_norm import has_wide_parameters, parameters_last_graph, row_norm_graph, source_of
from cudnn_ct.shapes.layer_norm import row_norm, row_norm_gradient
from cudnn_ct.shapes.specs import TensorSpec

LIMIT = Limit("ct_best", "torch", 1.0, bound=15)
CALLS = 20  # calls of a loop that times one engine
SHAPES = ((8192, 4096), (65536, 1024), (4096, 768), (16384, 8192), (2048, 5120))


class Row(NamedTuple):
    """An operation on a matrix; ``wide`` is the dtype of the parameters."""

    operation: str
    rows: int
    columns: int
    dtype: str = "bfloat16"
    wide: str = "bfloat16"

    @property
    def id(self) -> str:
        return f"{self.operation} {self.rows} x {self.columns} {self.dtype}, parameters {self.wide}"

    @property
    def backward(self) -> bool:
        return self.operation.endswith("_backward")


def rows() -> list[Row]:
    names = ("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward")
    found = [Row(name, *shape) for shape in SHAPES for name in names]
    found += [Row(name, 8192, 4096, wide="float32") for name in names]
    found += [
        Row(name, *shape, wide="float32") for shape in SHAPES[1:] for name in ("layer_norm", "rms_norm")
    ]
    return [*found, *(Row(name, 8192, 4096, "float32", "float32") for name in names)]


# --- operands and calls ------------------------------------------------------------------------------------


def operands_of(row: Row, record: Record) -> Operands | None:
    shape, parameter = (row.rows, row.columns), (row.columns,)
    arrays = {
        "x": Array(shape, row.dtype),
        "y": Array(shape, row.dtype, empty=True),
        "scale": Array(parameter, row.wide),
        "bias": Array(parameter, row.wide),
    }
    if row.backward:
        arrays["dy"] = Array(shape, row.dtype)
        results = ("dscale", "dbias") if row.operation == "layer_norm_backward" else ("dscale",)
        arrays |= {name: Array(parameter, row.wide, empty=True) for name in results}
    else:
        moments = ("mean", "invstd") if row.operation == "layer_norm" else ("invrms",)
        arrays |= {name: Array((row.rows, 1), "float32", empty=True) for name in moments}
    return operands_or_reason(arrays, record)


def statistics(row: Row, operands: Operands) -> list[tuple[Any, ...]]:
    """Return the statistics of each set of operands, by our forward pass."""
    forward = getattr(ct, row.operation.removesuffix("_backward"))
    return [
        tuple(forward(x, scale)[1:])
        for x, scale in zip(operands.ours["x"], operands.ours["scale"], strict=True)
    ]


def our_call(row: Row, operands: Operands, moments: list[Any]) -> Callable[..., Any]:
    """Return a call on set i with an algorithm."""
    operation, ours = getattr(ct, row.operation), operands.ours
    names = [name for name in ("y", "mean", "invstd", "invrms", "dscale", "dbias") if name in ours]
    outs = [tuple(ours[name][i] for name in names) for i in range(operands.count)]

    def call(i: int, algo: str | None = None) -> Any:
        if row.backward:
            return operation(
                ours["dy"][i], ours["x"][i], ours["scale"][i], *moments[i], algo=algo, out=outs[i]
            )
        bias = ours["bias"][i] if row.operation == "layer_norm" else None
        return operation(ours["x"][i], ours["scale"][i], bias, algo=algo, out=outs[i])

    return call


def torch_call(row: Row, operands: Operands, moments: list[Any]) -> Callable[[int], Any]:
    import torch

    theirs, columns = operands.theirs, (row.columns,)
    same = row.wide == row.dtype
    scales, biases = (
        [one if same else one.to(getattr(torch, row.dtype)) for one in theirs[name]]
        for name in ("scale", "bias")
    )
    saved = [tuple(map(tensor_of, one)) for one in moments]
    kept: list[Any] = [None] * operands.count
    aten = torch.ops.aten

    def call(i: int) -> Any:
        x, scale = theirs["x"][i], scales[i]
        if row.operation == "layer_norm":
            kept[i] = aten.native_layer_norm(x, columns, scale, biases[i], 1e-5)
        elif row.operation == "rms_norm":
            kept[i] = (torch.nn.functional.rms_norm(x, columns, scale, 1e-5),)
        elif row.operation == "layer_norm_backward":
            kept[i] = aten.native_layer_norm_backward(
                theirs["dy"][i], x, columns, *saved[i], scale, biases[i], [True, True, True]
            )
        else:
            kept[i] = aten._fused_rms_norm_backward(
                theirs["dy"][i], x, columns, saved[i][0], scale, [True, True]
            )
        return kept[i]

    return call


# --- measurements ------------------------------------------------------------------------------------------


def row_record(row: Row, tries: int) -> Record:
    """Time all engines of a row, then the contenders alternately."""
    record = room_for("rows", row.id, **row._asdict())
    operands = operands_of(row, record)
    if operands is None:
        return record
    moments = statistics(row, operands) if row.backward else []
    ours, theirs = our_call(row, operands, moments), torch_call(row, operands, moments)
    wanted = theirs(0)
    engines = timed_engines(row, record, ours, wanted, operands.count, tries)
    record["engines"] = dict(sorted(engines.items(), key=lambda pair: pair[1]))
    record["floor"] = floor_of(row, operands)
    contenders = {
        "torch": Contender(theirs),
        "ct_heuristic": Contender(ours),
        "ct_autotune": Contender(functools.partial(ours, algo="autotune")),
    }
    if engines:
        record["best"] = next(iter(record["engines"]))
        contenders["ct_best"] = Contender(functools.partial(ours, algo=record["best"]))
    return race(record, contenders, operands.count, limit=LIMIT)


def timed_engines(
    row: Row, record: Record, call: Callable[..., Any], wanted: Any, count: int, tries: int
) -> dict[str, float]:
    """Return the microseconds of each engine: those of the heuristics, then neighbours of the fastest."""
    problem = problem_of(row)
    ctx, source = context.of_device(0), source_of(problem)
    rows_of = [one for find in source.heuristics(problem) for one in find(ctx) if not one.rejected]
    more = source.also(problem)
    times: dict[str, float] = {}
    for name in dict.fromkeys([*(one.algorithm for one in rows_of), *more]):
        time_engine(name, record, call, wanted, count, times)
    ranges: dict[int, dict[int, range]] = {}
    tried = set(times) | set(record["errors"])
    for _ in range(tries):
        found = fresh_neighbour(problem, ctx, times, tried, ranges)
        if found is None:
            break
        tried.add(found)
        time_engine(found, record, call, wanted, count, times)
    return times


def fresh_neighbour(
    problem: Any, ctx: Any, times: dict[str, float], tried: set[str], ranges: dict[int, dict[int, range]]
) -> str | None:
    """Return a setting next to the fastest one that has such settings left."""
    graph = parameters_last_graph(problem) if has_wide_parameters(problem) else row_norm_graph(problem)
    for name in sorted(times, key=times.__getitem__):
        engine = Engine.parse(name)
        if not engine.knobs:
            continue
        if engine.number not in ranges:
            ranges[engine.number] = knob_ranges(graph, engine.number, ctx)
        for one in neighbours(engine, ranges[engine.number]):
            if str(one) not in tried:
                return str(one)
    return None


def time_engine(
    name: str, record: Record, call: Callable[..., Any], wanted: Any, count: int, times: dict[str, float]
) -> None:
    """Time an engine; a wrong result is an error of the row, one that cuDNN rejects is left out."""
    import warnings

    import torch

    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("error", ct.CudnnWarning)  # another engine would run instead
            got = call(0, name)
            far = [
                (field, apart)
                for field, (a, b) in zip(("y", "b", "c"), zip(got, wanted, strict=False), strict=False)
                if a is not None and b is not None
                and (apart := distance(tensor_of(a), b)) > EPSILON[record["dtype"]]
            ]  # fmt: skip
            if far:
                record["errors"][name] = f"differs from PyTorch: {far}"
                return
            turn = itertools.cycle(range(count))
            with alone():
                times[name] = min(loop(functools.partial(call, algo=name), turn, CALLS) for _ in range(3))
    except (ct.CudnnError, ct.CudnnWarning) as error:
        record.setdefault("rejected", {})[name] = explain(error)[:120]


def problem_of(row: Row) -> Any:
    x, scale = (
        TensorSpec.packed((row.rows, row.columns), row.dtype),
        TensorSpec.packed((row.columns,), row.wide),
    )
    moment = TensorSpec.packed((row.rows, 1), "float32")
    mode: Any = row.operation.removesuffix("_backward")
    rms = mode == "rms_norm"
    moments = {"invrms": moment} if rms else {"mean": moment, "invstd": moment}
    if row.backward:
        outs = (None, None) if rms else (None, None, None)
        return row_norm_gradient(mode, {"dy": x, "x": x, "scale": scale, **moments}, outs)
    given = {"x": x, "scale": scale} | ({} if rms else {"bias": scale})
    return row_norm(mode, given, (None,) * (1 + len(moments)), 1e-5)


def floor_of(row: Row, operands: Operands) -> float:
    """Return the microseconds to read and write the large arrays once, at the speed of a copy."""
    xs, ys = operands.theirs["x"], operands.theirs["y"]
    turn = itertools.cycle(range(operands.count))
    with alone():
        copy = min(loop(lambda i: ys[i].copy_(xs[i]), turn, CALLS) for _ in range(3))
    return copy * (1.5 if row.backward else 1.0)


# --- report ------------------------------------------------------------------------------------------------


def line(record: Record) -> str:
    times = record["times"]
    text = ", ".join(f"{name} {time:.1f}" for name, time in times.items())
    count = f"{len(record.get('engines', ()))} engines, best {record.get('best')}"
    parts = [text, f"floor {record.get('floor', 0):.1f}", count]
    parts += [f"{name}: {why[:150]}" for name, why in record["errors"].items()]
    return f"{record['id']}: {'; '.join(parts)}"


def bars(records: list[Record]) -> list[Bar]:
    measured = of_section(records, "rows")
    found = []
    for name in ("ct_best", "ct_autotune", "ct_heuristic"):
        ratios = [row["times"][name] / row["times"]["torch"] for row in measured if name in row["times"]]
        found.append(Bar(f"{name} / torch, geometric mean", geomean(ratios), 1.0, len(ratios)))
        found.append(Bar(f"{name} / torch, worst row", max(ratios, default=None), 1.0, len(ratios)))
    return found


def render(records: list[Record]) -> str:
    head = f"{'row':62} {'torch':>8} {'heur.':>8} {'tuned':>8} {'best':>8} {'floor':>8}  engine"
    lines = [*about_lines(records), head]
    for row in of_section(records, "rows"):
        times = [row["times"].get(name) for name in ("torch", "ct_heuristic", "ct_autotune", "ct_best")]
        cells = " ".join(f"{time:8.1f}" if time else f"{'-':>8}" for time in [*times, row.get("floor")])
        lines.append(f"{row['id']:62} {cells}  {row.get('best', '-')}")
    return "\n".join([*lines, *map(str, bars(records)), failures(records)])


def warm_up() -> None:
    import torch

    x = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    ct.layer_norm(x, x[0])


def jobs(options: Any, results: Results) -> Iterator[Callable[[], None]]:
    part, of = options.shard
    for row in rows()[:: options.every][part - 1 :: of]:
        if not results.has("rows", row.id, ("torch", "ct_best")):
            yield functools.partial(keep, results, row_record, row, options.tries, line=line)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command.parser("time engines of normalisations")
    parser.add_argument("--tries", type=int, default=20, help="settings to time besides the heuristics'")
    options = parser.parse_args(argv)
    results = Results(options.rows)
    command.carry_out(list(jobs(options, results)), results, warm_up, options)
    print(render(results.merged()))
    if options.json:
        path: Path = options.json
        write_whole(path, "layer_norms", results.merged(), [bar.record for bar in bars(results.merged())])


if __name__ == "__main__":
    main()
