"""Compare the host time of built graphs with nvidia-cudnn-frontend on one GPU.

    python benchmarks/graph_host.py [--rounds N] [--json OUT]

A row is a graph of `ct.Graph` on operands so small that the GPU waits for the host. Its contenders are a call
of the built graph with `out=` on our arrays, the same on torch tensors, and `execute` of
nvidia-cudnn-frontend for the same graph on the same torch tensors. A time is the median over rounds, each
with a loop of every contender. Before the measurement, the results are compared on new values. The exit
status is 1 if a row failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the translation of graphs is in tests/oracle

import host_report
from harness import command
from harness.command import keep
from harness.figures import Bar, geomean, quotient, ranked
from harness.results import Record, Results, explain, of_section, write_whole
from harness.shards import positive
from harness.text import about_lines, failures, line_of
from harness.timing import HostCall, host_times, lost_context

import cudnn_ct as ct

RESULTS = Path(__file__).parent / "results" / "graph_host.json"
ROUNDS = 40
CALLS = 50  # calls in a loop
WARM = 24  # loops before the measurement: replays begin after a few calls with the same pointers
LIMIT = 0.25
TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2}
OURS = {"ours": "our arrays", "tensors": "torch tensors"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=positive, default=ROUNDS, help="default: %(default)s")
    options.add_argument("--json", type=Path, default=RESULTS, help="write the result to this file")
    given = options.parse_args(argv)
    if reason := no_gpu():
        print(reason)
        return 1
    results = Results(None)
    command.prepare(lambda: graph_record("pointwise chain", 1))
    results.add(command.about())
    for name in GRAPHS:
        keep(results, graph_record, name, given.rounds, line=line_of)
    unit = "microseconds of host time per call, medians; ratios are ours / theirs"
    write_whole(
        given.json, "graph_host", results.records, [bar.record for bar in bars(results.records)], unit
    )
    print(f"\n{render(results.records)}")
    failed = len(results.records) < len(GRAPHS) + 1
    return int(failed or any(record.get("errors") for record in results.records))


def no_gpu() -> str:
    """Return the reason why nothing can be measured, or an empty string."""
    try:
        import cudnn  # noqa: F401
        import torch
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed: this benchmark compares with nvidia-cudnn-frontend and torch"
    return "" if torch.cuda.is_available() else "PyTorch does not have a GPU"


# --- graphs ------------------------------------------------------------------------------------------------


def conv_bias_relu(g: ct.Graph) -> Any:
    x, w = g.input((2, 16, 8, 8), "float16", layout="nhwc"), g.input((32, 16, 3, 3), "float16", layout="nhwc")
    return g.relu(g.conv(x, w, padding=1) + g.input((1, 32, 1, 1), "float16"))


def matmul_bias_gelu(g: ct.Graph) -> Any:
    x, w = g.input((64, 64), "bfloat16"), g.input((64, 128), "bfloat16")
    return g.gelu(x @ w + g.input((128,), "bfloat16"))


def attention(g: ct.Graph) -> Any:
    q, k, v = (g.input((1, 4, 64, 64), "float16") for _ in range(3))
    return g.sdpa_with_stats(q, k, v)


def attention_backward(g: ct.Graph) -> Any:
    q, k, v, o, do = (g.input((1, 4, 64, 64), "float16") for _ in range(5))
    gradients = g.sdpa_backward(do, q, k, v, o, g.input((1, 4, 64, 1), "float32"))
    return gradients.dq, gradients.dk, gradients.dv


def layer_norm(g: ct.Graph) -> Any:
    norm = g.norm(g.input((64, 128), "float16"), g.input((128,)), g.input((128,)), mode="layer_norm")
    return norm.y, norm.mean, norm.inv_variance


def rms_norm(g: ct.Graph) -> Any:
    return g.rms_norm(g.input((64, 128), "float16"), g.input((128,)))


def pointwise_chain(g: ct.Graph) -> Any:
    x, y = g.input((8, 16, 128), "float16"), g.input((8, 16, 128), "float16")
    return g.tanh(x * y - x)


def reduction(g: ct.Graph) -> Any:
    return g.reduce(g.input((8, 16, 128), "float32"), "add", 2)


GRAPHS: dict[str, Callable[[ct.Graph], Any]] = {
    "conv + bias + relu": conv_bias_relu,
    "matmul + bias + gelu": matmul_bias_gelu,
    "attention": attention,
    "attention backward": attention_backward,
    "layer norm": layer_norm,
    "rms norm": rms_norm,
    "pointwise chain": pointwise_chain,
    "reduction": reduction,
}


# --- one row -----------------------------------------------------------------------------------------------


def graph_record(name: str, rounds: int) -> Record:
    """Measure a graph by all contenders."""
    import torch

    record: Record = {"section": "graph", "id": name, "times": {}, "errors": {}}
    graph = ct.Graph()
    made = GRAPHS[name](graph)
    outputs = made if isinstance(made, tuple) else (made,)
    problem = graph.define(*outputs)
    tensors = inputs_of(name, [problem.values[place].spec for place in problem.inputs])
    outs, theirs = ([_empty(spec) for spec in problem.results] for _ in range(2))
    arrays, results = [ct.asarray(one) for one in tensors], [ct.asarray(one) for one in outs]
    try:
        ours: Any = graph.build(*outputs)
        record |= {"engine": ours.candidate.algorithm if ours.candidate else "", "workspace": ours.workspace}
    except ct.NotSupportedError as error:
        if name != "attention backward":
            raise
        ours = _operation
        record |= {"engine": "ct.attention_backward", "note": explain(error)}
    calls = {
        "ours": _call(ours, arrays, results[0] if len(results) == 1 else tuple(results)),
        "tensors": _call(ours, tensors, outs[0] if len(outs) == 1 else tuple(outs)),
    }
    try:
        calls["frontend"] = frontend_call(problem, [*tensors, *theirs], record)
    except Exception as error:
        record["errors"]["frontend"] = explain(error)
    loop = [()] * CALLS
    for contender, call in list(calls.items()):
        try:
            for _ in range(WARM * CALLS):
                call()
            torch.cuda.synchronize()
        except Exception as error:
            record["errors"][contender] = explain(error)
            record["lost"] = lost_context()
            del calls[contender]
    if "frontend" in calls:
        check(record, calls, tensors, outs, theirs)
    if calls:
        record["times"] = host_times(
            {one: HostCall(call, lambda: loop) for one, call in calls.items()}, rounds
        )
    return record


def inputs_of(name: str, specs: list[Any]) -> list[Any]:
    """Return torch tensors for the inputs. A gradient of attention gets results of its forward pass."""
    import torch

    torch.manual_seed(0)
    tensors = [_empty(spec).normal_() for spec in specs]
    if name == "attention backward":
        q, k, v, o, _, stats = tensors
        y, sums = ct.attention(q, k, v, return_stats=True)
        o.copy_(torch.from_dlpack(y))
        stats.copy_(torch.from_dlpack(sums)[..., None])
    return tensors


def _empty(spec: Any) -> Any:
    import torch

    return torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device="cuda")


def _call(ours: Any, operands: list[Any], out: Any) -> Callable[[], Any]:
    return lambda: ours(*operands, out=out)


def _operation(q: Any, k: Any, v: Any, o: Any, do: Any, stats: Any, out: Any) -> Any:
    """Compute the graph of the gradient of attention by the operation, where the graph has no engine."""
    return ct.attention_backward(do, q, k, v, o, stats[..., 0], out=(*out, None))


def frontend_call(problem: Any, tensors: list[Any], record: Record) -> Callable[[], Any]:
    """Return a call that executes the same graph with nvidia-cudnn-frontend."""
    import cudnn
    import torch

    from tests.oracle.frontend import FrontendGraph

    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    theirs = FrontendGraph(problem, handle)
    record["frontend plan"] = theirs.build()
    return theirs.caller(tensors, handle)


def check(record: Record, calls: dict[str, Callable[[], Any]], tensors: Any, outs: Any, theirs: Any) -> None:
    """Drop a contender whose results differ from those of nvidia-cudnn-frontend on new values."""
    import torch

    tensors[0].mul_(0.5)
    for name in [name for name in OURS if name in calls]:
        for one in (*outs, *theirs):
            one.fill_(float("nan"))
        calls[name]()
        calls["frontend"]()
        torch.cuda.synchronize()
        for mine, other in zip(outs, theirs, strict=True):
            distance = float((mine.double() - other.double()).norm() / other.double().norm().clamp(min=1e-20))
            limit = TOLERANCE.get(str(tensors[0].dtype).removeprefix("torch."), 2e-3)
            if not distance <= limit:
                record["errors"][name] = (
                    f"wrong result: distance from theirs is {distance:.2g}, limit {limit:.2g}"
                )
                calls.pop(name, None)


# --- report ------------------------------------------------------------------------------------------------


def bars(records: list[Record]) -> list[Bar]:
    """Return the geometric means of ours / theirs with their limit; torch tensors have none of their own."""
    found = []
    for name, title in OURS.items():
        rows = ranked(
            lambda row, name=name: quotient(row["times"], name, "frontend"), of_section(records, "graph")
        )
        worst = f"worst {rows[0][0]:.2f}: {rows[0][1]['id']}" if rows else ""
        mean = geomean([ratio for ratio, _ in rows])
        found.append(
            Bar(
                f"built graphs, {title}, out= / {host_report.THEIRS['frontend']}",
                mean,
                LIMIT,
                len(rows),
                worst,
            )
        )
    return found


def render(records: list[Record]) -> str:
    """Return the device and the versions, the errors, a table of all rows, and the targets."""
    lines = [
        f"{'graph':22} {'ours':>7} {'tensors':>8} {'frontend':>9} {'ratio':>6} {'tensors':>8}  us; engines"
    ]
    for row in of_section(records, "graph"):
        times = row["times"]
        cells = [f"{times[name]:.2f}" if name in times else "-" for name in (*OURS, "frontend")]
        ratios = [quotient(times, name, "frontend") for name in OURS]
        cells += ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        widths = (7, 8, 9, 6, 8)
        text = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{row['id']:22} {text}  {row.get('engine', '')} / {row.get('frontend plan', '')}")
    parts = [
        "\n".join(about_lines(records)),
        failures(records),
        "\n".join(lines),
        "\n".join(map(str, bars(records))),
    ]
    return "\n\n".join(filter(None, parts))


if __name__ == "__main__":
    raise SystemExit(main())
