"""Graphs by ct.Graph and by nvidia-cudnn-frontend, on the same data, against float64.

python -m tests.oracle.frontend_graphs --json graphs.json      # all of frontend_kinds, on a GPU
python -m tests.oracle.frontend_graphs --only attention        # kinds whose names contain a word
python -m tests.oracle.frontend_graphs --random 60 --seed 3    # random graphs, too
python -m tests.oracle.frontend_graphs --describe              # without a GPU: describe them in both

Graphs run in child processes, so that one that ends its process hides nothing. The expected values are those
of the reference in float64, the bounds from `graph_bounds`. The exit status is 1 if a result of ct.Graph
is wrong, or if it ends a process.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.shapes.graph.problem import GraphProblem

from .frontend import FrontendGraph, UntranslatableError
from .frontend_kinds import KINDS
from .graph_bounds import bounds, drawn, wrong_elements
from .graph_draws import draw_graph
from .run import rows_of

CHUNK = 8  # graphs of a child process
SECONDS = 60  # for one graph
RESTART = 77  # exit status of a child whose CUDA context is lost
TORCH = {"float8_e4m3": "float8_e4m3fn"}


def main(arguments: list[str]) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    names = _names(options)
    if options.child is not None:
        return _child(options, names[options.child : options.child + options.count])
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(lambda at: list(_run(options, names, at)), range(0, len(names), CHUNK)):
            rows += found
            for row in found:
                if row["status"] != "agree":
                    text = " | ".join(str(row.get(f"{side} error", "")) for side in ("our", "their"))
                    print(f"{row['status']:16} {row['kind']}: {row.get('text', '')} {text}"[:600], flush=True)
    facts = next((row["facts"] for row in rows if "facts" in row), {})
    if options.json:
        options.json.write_text(json.dumps({"about": facts, "rows": rows}, indent=1) + "\n")
    print(_table(rows, facts))
    return int(any(row["status"] in ("ours wrong", "both wrong", "ours crash") for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.frontend_graphs", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="kinds whose names contain one of these")
    parser.add_argument("--random", type=int, default=0, help="number of random graphs")
    parser.add_argument("--seed", type=int, default=0, help="of random graphs")
    parser.add_argument("--describe", action="store_true", help="describe all graphs; needs no GPU")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=CHUNK, help=argparse.SUPPRESS)
    return parser


def _names(options: argparse.Namespace) -> list[str]:
    names = [*KINDS, *(f"random {number}" for number in range(options.random))]
    return [name for name in names if not options.only or any(word in name for word in options.only)]


# --- the parent process ------------------------------------------------------------------------------------


def _run(options: argparse.Namespace, names: list[str], at: int) -> Iterator[dict[str, Any]]:
    """Run graphs in child processes; after one that dies, another continues with the next graph."""
    end = min(at + CHUNK, len(names))
    while at < end:
        command = [sys.executable, "-m", "tests.oracle.frontend_graphs", "--child", str(at)]
        command += ["--count", str(end - at), "--random", str(options.random), "--seed", str(options.seed)]
        command += ["--describe"] * options.describe + (["--only", *options.only] if options.only else [])
        rows, errors, status = rows_of(command, SECONDS * (end - at))
        stage = "ours"
        for row in rows:
            if "stage" in row:
                stage = row["stage"]
                continue
            yield row
            at, stage = at + 1, "ours"
        if at < end and status != f"exit status {RESTART}":
            yield {"kind": names[at], "status": f"{stage} crash", "text": f"{status}: {errors}"}
            at += 1


def _table(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    """Return a line for each graph with both engines and errors, and the counts."""
    lines = [", ".join(f"{name} {value}" for name, value in facts.items())]
    lines.append(f"{'kind':38} {'our engine':28} {'their plan':28} {'ours':>9} {'theirs':>9}  verdict")
    for row in rows:
        sides = [row.get(side, {}) for side in ("ours", "theirs")]
        errors = [f"{one['error']:9.2g}" if "error" in one else f"{'-':>9}" for one in sides]
        engines = [f"{str(one.get('engine', '-'))[:28]:28}" for one in sides]
        lines.append(f"{row['kind'][:38]:38} {' '.join(engines)} {' '.join(errors)}  {row['status']}")
    counts = Counter(row["status"] for row in rows)
    lines.append(f"{len(rows)} graphs: " + ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    lines.append("errors are the largest difference from float64, divided by the largest expected value")
    return "\n".join(lines)


# --- a child process ---------------------------------------------------------------------------------------


def _child(options: argparse.Namespace, names: list[str]) -> int:
    for name in names:
        if name.startswith("random "):
            (graph, outputs), structure = draw_graph(options.seed, int(name.split()[1]), 0)
            name = f"{name}: {structure}"
        else:
            graph = ct.Graph()
            made = KINDS[name](graph)
            outputs = made if isinstance(made, tuple) else (made,)
        row: dict[str, Any] = {"kind": name, "status": "error"}
        try:
            row |= _described(graph, outputs) if options.describe else _compared(graph, outputs)
        except Exception as error:
            row["text"] = _text(error)
        print(json.dumps(row), flush=True)
        if not options.describe and _lost():
            return RESTART
    return 0


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:600]


def _lost() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _described(graph: ct.Graph, outputs: Any) -> dict[str, Any]:
    problem = graph.define(*outputs)
    arrays = drawn(problem)
    finite = all(np.isfinite(value).all() for value, _ in bounds(problem, arrays))
    from cudnn import _pygraph

    _pygraph._default_backend_handle = lambda: 1  # descriptions are validated without a context
    try:
        FrontendGraph(problem).graph.validate()
    except UntranslatableError as error:
        return {"status": "only ours", "text": str(error)}
    return {"status": "agree" if finite else "not finite"}


def _compared(graph: ct.Graph, outputs: Any) -> dict[str, Any]:
    """Compute a graph by both libraries, and compare the results with their bounds."""
    import torch

    problem = graph.define(*outputs)
    arrays = drawn(problem)
    expected = bounds(problem, arrays)
    row: dict[str, Any] = {"facts": _facts()}
    sides: tuple[tuple[str, Callable[..., str]], ...] = (("ours", _by_us), ("theirs", _by_them))
    for side, run in sides:
        print(json.dumps({"stage": side}), flush=True)
        tensors = [
            _tensor(array, problem.values[place]) for array, place in zip(arrays, problem.inputs, strict=True)
        ]
        outs = [_tensor(None, problem.values[place]) for place in problem.outputs]
        try:
            engine = run(graph, outputs, problem, tensors, outs)
            torch.cuda.synchronize()
        except Exception as error:
            row[side] = {"failed": _text(error)}
            if _lost():
                return row | {"status": f"{side} crash", "text": _failures(row)}
            continue
        row[side] = {"engine": engine, **_errors(problem, outs, expected)}
    return row | {"status": _status(row), "text": _failures(row)}


def _status(row: dict[str, Any]) -> str:
    ours, theirs = row.get("ours", {}), row.get("theirs", {})
    failed = [name for name, one in (("ours", ours), ("theirs", theirs)) if "error" not in one]
    if failed:
        wrong = [name for name, one in (("ours", ours), ("theirs", theirs)) if one.get("wrong")]
        if wrong:
            return f"{wrong[0]} wrong"
        return "both rejected" if len(failed) == 2 else f"{failed[0]} rejected"
    wrong = [name for name, one in (("ours", ours), ("theirs", theirs)) if one["wrong"]]
    return "agree" if not wrong else "both wrong" if len(wrong) == 2 else f"{wrong[0]} wrong"


def _failures(row: dict[str, Any]) -> str:
    parts = []
    for side in ("ours", "theirs"):
        one = row.get(side, {})
        parts += [f"{side}: {one[key]}" for key in ("failed", "wrong") if one.get(key)]
    return "; ".join(parts)


def _errors(problem: GraphProblem, outs: list[Any], expected: Any) -> dict[str, Any]:
    """Return the largest relative error of the outputs, and which elements exceed their bounds."""
    largest, wrong = 0.0, []
    for place, out, (value, bound) in zip(problem.outputs, outs, expected, strict=True):
        got, dtype = out.double().cpu().numpy(), problem.values[place].spec.dtype
        bad = wrong_elements(got, value, bound, dtype)
        finite = np.isfinite(value)
        apart = np.abs(np.where(finite, got, 0) - np.where(finite, value, 0)).max(initial=0)
        largest = max(
            largest, float(np.nan_to_num(apart, nan=np.inf) / max(np.abs(value[finite]).max(), 1e-9))
        )
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            name = problem.values[place].name
            wrong.append(f"{name}{list(at)} is {got[at]:.6g}, expected {value[at]:.6g} +- {bound[at]:.2g}; "
                         f"{bad.sum()} of {bad.size}")  # fmt: skip
    return {"error": largest, "wrong": "; ".join(wrong)}


def _by_us(graph: ct.Graph, outputs: Any, problem: GraphProblem, tensors: Any, outs: Any) -> str:
    with graph.build(*outputs) as built:
        built(*tensors, out=outs[0] if len(outs) == 1 else tuple(outs))
        ct.synchronize()
        return "" if built.candidate is None else built.candidate.algorithm


def _by_them(graph: ct.Graph, outputs: Any, problem: GraphProblem, tensors: Any, outs: Any) -> str:
    import cudnn
    import torch

    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    theirs = FrontendGraph(problem, handle)
    plan = theirs.build()
    theirs.caller([*tensors, *outs], handle)()
    return plan


def _facts() -> dict[str, Any]:
    import cudnn
    import torch

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "nvidia-cudnn-frontend": getattr(cudnn, "__version__", "unknown"),
        "its cuDNN": cudnn.backend_version(),
        "cuDNN": ct.version(),
    }


# --- operands ----------------------------------------------------------------------------------------------


def _tensor(array: np.ndarray | None, value: Any) -> Any:
    """Return a torch tensor with the strides of a value; full of NaN without an array."""
    import torch

    spec = value.spec
    dtype = getattr(torch, TORCH.get(spec.dtype, spec.dtype))
    tensor = torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device="cuda")
    if array is None:
        return tensor.fill_(float("nan") if dtype.is_floating_point else 1)
    wide = np.ascontiguousarray(array.astype(np.float64 if array.dtype.kind not in "iub" else np.int64))
    return tensor.copy_(torch.from_numpy(wide.reshape(spec.shape)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
