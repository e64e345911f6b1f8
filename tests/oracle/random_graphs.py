"""Random graphs of ct.Graph against their evaluation in float64.

python -m tests.oracle.random_graphs --seed 0 --graphs 300 --jobs 8     # on a GPU
python -m tests.oracle.random_graphs --seed 0 --graph 17 --all-engines  # one graph, each engine
python -m tests.oracle.random_graphs --graphs 300 --plan                # without a GPU: plans for an H200
python -m tests.oracle.random_graphs --graphs 50 --fakes                # on the fakes of the tests
python -m tests.oracle.random_graphs --graphs 300 --unguarded           # finds what is known to be wrong

A graph has a structure and several variants of its shapes. Graphs run in child processes: one that kills its
process is a finding. Each finding is printed with the command that repeats it; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.errors import CudnnError, NotSupportedError
from cudnn_doctor.read.versions import table

from .graph_bounds import bounds, drawn, wrong_elements
from .graph_draws import FAMILIES, draw_graph
from .run import rows_of
from .without import take_out

ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "tests" / "devices" / "h200-cudnn-9.19.json"
CHUNK = 10  # graphs of a child process
SECONDS = 120  # for one variant of one graph
RESTART = 77  # exit status of a child that stops because a failure may have destroyed the CUDA context
WRONG = ("wrong", "inaccurate")
FINDINGS = ("wrong", "error", "crash")
FLAGS = ("plan", "fakes", "all_engines", "unguarded")  # options that child processes get


def main(arguments: list[str]) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.child:
        return _child(options)
    numbers = [options.graph] if options.graph is not None else list(range(options.graphs))
    chunks = [numbers[at : at + CHUNK] for at in range(0, len(numbers), CHUNK)]
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(lambda chunk: list(_run(options, chunk)), chunks):
            rows += found
            for row in found:
                if row["status"] in FINDINGS or options.verbose:
                    _report(options, row)
    return _summary(options, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.random_graphs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graphs", type=int, default=300, help="number of structures")
    parser.add_argument("--graph", type=int, help="only this structure")
    parser.add_argument("--family", choices=sorted(FAMILIES), help="only structures of this family")
    parser.add_argument("--variants", type=int, default=3, help="shapes of each structure")
    parser.add_argument("--variant", type=int, help="only this variant")
    parser.add_argument("--all-engines", action="store_true", help="run every engine that cuDNN has")
    parser.add_argument("--plan", action="store_true", help="plan for an H200, without a GPU")
    parser.add_argument("--fakes", action="store_true", help="run on the fakes of the tests")
    parser.add_argument(
        "--unguarded", action="store_true", help="neither copy inputs nor reject what is known to be wrong"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--verbose", action="store_true", help="print every row")
    parser.add_argument("--child", nargs=2, type=int, metavar=("GRAPH", "COUNT"), help=argparse.SUPPRESS)
    return parser


# --- the parent process ------------------------------------------------------------------------------------


def _run(options: argparse.Namespace, chunk: list[int]) -> Iterator[dict[str, Any]]:
    """Run graphs in child processes; one that dies is restarted behind the variant that killed it."""
    todo = [(number, variant) for number in chunk for variant in _variants(options)]
    while todo:
        first, count = todo[0][0], chunk[-1] - todo[0][0] + 1
        flags = [name for name in FLAGS if getattr(options, name)]
        command = [sys.executable, "-m", "tests.oracle.random_graphs", "--seed", str(options.seed)]
        command += ["--child", str(first), str(count), "--variants", str(options.variants)]
        command += [f"--{name.replace('_', '-')}" for name in flags]
        command += _chosen(options)
        environment = {**os.environ, "RANDOM_GRAPHS_SKIP": str(todo[0][1])}
        rows, errors, status = rows_of(command, SECONDS * len(todo), env=environment)
        for row in rows:
            yield row
            todo = [one for one in todo if one != (row["graph"], row["variant"])]
        if todo and status != f"exit status {RESTART}":  # the child died in the first one that has no row
            number, variant = todo.pop(0)
            facts = {"graph": number, "variant": variant, "status": "crash", "structure": ""}
            yield facts | {"text": f"{status}: {errors}"}


def _chosen(options: argparse.Namespace) -> list[str]:
    """Return the options that restrict the draws, as arguments."""
    chosen = {"--family": options.family, "--variant": options.variant}
    return [word for name, value in chosen.items() if value is not None for word in (name, str(value))]


def _variants(options: argparse.Namespace) -> list[int]:
    return [options.variant] if options.variant is not None else list(range(options.variants))


def _report(options: argparse.Namespace, row: dict[str, Any]) -> None:
    flags = [f"--{name.replace('_', '-')}" for name in FLAGS if vars(options)[name]]
    command = f"python -m tests.oracle.random_graphs --seed {options.seed} --graph {row['graph']}"
    family = [f"--family {options.family}"] if options.family else []
    command = " ".join([command, f"--variant {row['variant']}", *family, *flags])
    print(f"{row['status']:8} {row['structure']}\n  {row['text']}\n  {command}", flush=True)


def _summary(options: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    counts = Counter(row["status"] for row in rows)
    structures = {row["graph"] for row in rows if row["status"] == "ok"}
    engines = sum(row.get("engines", 0) for row in rows)
    print(
        f"seed {options.seed}: {len({row['graph'] for row in rows})} structures, {len(rows)} graphs, "
        f"{len(structures)} structures supported; {counts['ok']} right, {counts['rejected']} rejected, "
        f"{counts['wrong']} wrong, {counts['error']} errors, {counts['crash']} crashes; {engines} engines run"
    )
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "rows": rows}, indent=1) + "\n")
    return int(any(counts[status] for status in FINDINGS))


# --- a child process ---------------------------------------------------------------------------------------


def _child(options: argparse.Namespace) -> int:
    first, count = options.child
    take_out(_guards() if options.unguarded else ())
    skip = int(os.environ.get("RANDOM_GRAPHS_SKIP", "0"))
    with ExitStack() as stack:
        judge = _judge_of(options, stack)
        for number in range(first, first + count):
            for variant in _variants(options):
                if number == first and variant < skip:
                    continue
                drawn = options.seed, number, variant
                made, structure = draw_graph(*drawn, small=options.fakes, family=options.family)
                row: dict[str, Any] = {"graph": number, "variant": variant, "structure": structure}
                row |= _judged(judge, *made)
                print(json.dumps(row), flush=True)
                if row["text"].startswith("ExecutionFailedError"):
                    return RESTART
    return 0


def _guards() -> list[str]:
    """Return the facts that keep operands from engines that read them wrong, and wrong engines from graphs.

    The other checks stay: they are about the CUDA context, the process, and results that are not written.
    """
    kinds = ("engine", "reject", "rewrite")
    return [row["name"] for row in table() if row["kind"] in kinds and row["effect"] in WRONG]


def _judged(judge: Callable[..., dict[str, Any]], graph: Any, outputs: Any) -> dict[str, Any]:
    try:
        return judge(graph, outputs)
    except NotSupportedError as rejected:
        return {"status": "rejected", "text": str(rejected)[:300]}
    except (CudnnError, ValueError, TypeError, ArithmeticError, LookupError, AssertionError) as error:
        notes = "; ".join(getattr(error, "__notes__", []))
        return {"status": "error", "text": f"{type(error).__name__}: {error}; {notes}"[:600]}


def _judge_of(options: argparse.Namespace, stack: ExitStack) -> Callable[..., dict[str, Any]]:
    if options.plan:
        return _planning()
    if options.fakes:
        from tests.fake.installed import cudnn_installed, host_installed

        fake = stack.enter_context(cudnn_installed(stack.enter_context(host_installed())))
        fake.engines = True
    wanted = _all if options.all_engines else None
    return lambda graph, outputs: compared(graph, outputs, wanted)


def _all(problem: Any, candidate: Any) -> bool:
    return True


def _planning() -> Callable[..., dict[str, Any]]:
    """Return a judge that plans for a described device, with a stub of the driver."""
    from cudnn_ct._dlopen import find_cudnn
    from cudnn_ct.graph.offline import Planner
    from cudnn_ct.ops.graph.built import source_of
    from cudnn_doctor import libraryset, sandbox

    libraries = libraryset.read(str(Path(find_cudnn().path or "").resolve().parent))
    assert libraries is not None
    ctypes.CDLL(f"/proc/self/fd/{sandbox.in_memory(libraries.driver_functions, planning=True)}")
    planner: Any = Planner(DEVICE)

    def planned(graph: Any, outputs: Any) -> dict[str, Any]:
        problem = graph.define(*outputs)
        source, reasons = source_of(problem), []
        for row in source.heuristics(problem)[0](planner):
            try:
                source.plan(problem, row, planner)
            except NotSupportedError as error:
                reasons.append(str(error))
            else:
                return {"status": "ok", "text": row.algorithm, "engines": 1}
        return {"status": "rejected", "text": "; ".join(reasons)[:300]}

    return planned


def compared(graph: Any, outputs: Any, wanted: Callable[[Any, Any], bool] | None = None) -> dict[str, Any]:
    """Run a graph and compare its outputs with their bounds; with ``wanted``, each candidate it accepts."""
    problem = graph.define(*outputs)
    arrays = drawn(problem)
    expected = bounds(problem, arrays)
    names: list[str] = ["heuristic"]
    if wanted is not None:
        names = _engines(problem, wanted)
    given = [
        _on_device(array, problem.values[place].spec)
        for array, place in zip(arrays, problem.inputs, strict=True)
    ]
    wrong, ran = [], 0
    for name in names:
        try:
            built = graph.build(*outputs, algo=name, strict=True)
            results = _results(built, given)
        except NotSupportedError:
            if wanted is None:
                raise
            continue
        ran += 1
        for place, got, (value, bound) in zip(problem.outputs, results, expected, strict=True):
            bad = wrong_elements(got, value, bound, problem.values[place].spec.dtype)
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                wrong.append(
                    f"{built.candidate}: {problem.values[place].name}{list(at)} is {got[at]}, expected "
                    f"{value[at]:.9g} within {bound[at]:.3g}; {bad.sum()} of {bad.size} are wrong"
                )
        built.close()
    if not ran:
        raise NotSupportedError("no engine runs this graph")
    status = "wrong" if wrong else "ok"
    return {"status": status, "text": "; ".join(wrong)[:900] or f"{problem}", "engines": ran}


def _engines(problem: Any, wanted: Callable[[Any, Any], bool]) -> list[str]:
    """Return the names of the engines that cuDNN has for a graph, of those that are wanted."""
    from cudnn_ct import context
    from cudnn_ct.cuda import stream as streams
    from cudnn_ct.ops.graph.built import source_of

    ctx = context.current(streams.current_stream())
    rows = [row for stage in source_of(problem).heuristics(problem) for row in stage(ctx)]
    return list(dict.fromkeys(row.algorithm for row in rows if not row.rejected and wanted(problem, row)))


def _on_device(array: np.ndarray, spec: Any) -> Any:
    """Return a device array with the strides of a spec, whose axes are in any order and may have gaps."""
    order = sorted(range(array.ndim), key=lambda axis: (-spec.strides[axis], axis))
    back = tuple(order.index(axis) for axis in range(array.ndim))
    inner = array.transpose(order)
    strides = [spec.strides[axis] for axis in order]
    long = [axis for axis, length in enumerate(inner.shape) if length > 1]
    room = list(inner.shape)
    for outer, axis in pairwise(long):  # the elements between neighbours along the outer axis
        room[axis] = strides[outer] // strides[axis]
    memory = np.zeros(room, array.dtype)
    held = tuple(slice(0, length) for length in inner.shape)
    memory[held] = inner
    return ct.asarray(memory)[held].transpose(back)


def _results(built: Any, given: list[Any]) -> list[np.ndarray]:
    """Run a graph into memory full of NaN, and return its outputs."""
    outs = tuple(
        _on_device(
            np.full(spec.shape, np.nan if "float" in spec.dtype else 1).astype(DTYPES[spec.dtype].numpy), spec
        )
        for spec in built.outputs.values()
    )
    built(*given, out=outs)
    return [out.numpy() for out in outs]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
