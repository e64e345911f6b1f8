"""Tell which facts about wrong numbers still hold: compute problems that a fact is about without the fact.

python -m tests.facts.canary --jobs 8                       # on a GPU: all rows
python -m tests.facts.canary --rows conv-select --seed 3    # one row, other problems
python -m tests.facts.canary --fakes                        # on the fakes of the tests

Problems are drawn: calls of the oracle, and random graphs for facts about other nodes. Only the engines of a
fact about engines run. A child process makes the problems of one row. The verdict is ``still wrong``, ``right
now``, ``no example`` (the engines compute no drawn problem), ``died``, or ``not run``: cuDNN, its libraries
or the GPU are out of the range of the row, or its effect is the loss of the context or of the process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from math import prod
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDNN_CT_ALGO_CACHE", "off")

from cudnn_ct import context, facts
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnError, NotSupportedError, format_version
from cudnn_ct.facts import Target
from cudnn_ct.graph.engines import Engine
from cudnn_ct.graph.layouts import NATIVE
from cudnn_ct.graph.offline import target_of
from cudnn_ct.graph.rules import Rejection
from cudnn_ct.legal import rules
from cudnn_ct.legal.conditions import applying, rounds_to
from cudnn_ct.legal.rows import FAMILIES
from cudnn_ct.legal.subjects import OPERATIONS
from cudnn_ct.ops.graph.lower import lowered
from cudnn_ct.shapes.conv import ConvProblem
from cudnn_ct.shapes.graph.problem import GraphProblem
from cudnn_ct.shapes.specs import TensorSpec
from cudnn_doctor.read.versions import table, within
from tests.oracle.algorithms import judge_each
from tests.oracle.child import on_fakes, on_gpu
from tests.oracle.devices import Device
from tests.oracle.draw import RECIPES, Call, Where, draw
from tests.oracle.graph_draws import draw_graph
from tests.oracle.judge import Verdict, judge
from tests.oracle.operands import Tensor
from tests.oracle.random_graphs import compared

from .pool import pool

Place = tuple[Device, dict[str, Any]]  # and the answers of another implementation

ROOT = Path(__file__).resolve().parents[2]
RUNS = ("wrong", "inaccurate")
KINDS = ("engine", "reject", "rewrite")
CONVOLUTIONS = ("conv", "conv_backward_data", "conv_backward_filter")
PROBLEMS = 25  # that a fact is about, at most
LIMIT = 240  # seconds of a child
LARGEST = 2**28  # products of a convolution
OPERANDS = {
    "forward": (("x", "w"), "y"),
    "backward_data": (("dy", "w"), "dx"),
    "backward_filter": (("dy", "x"), "dw"),
}
ALTERED = {"attention-scale": {"scale": -0.5}}  # arguments that the oracle draws no longer


def main(arguments: list[str]) -> int:
    """Run the command line; the exit status is 1 if a process died."""
    parser = argparse.ArgumentParser(prog="python -m tests.facts.canary", description=__doc__)
    parser.add_argument("--rows", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30, help="for the problems of one row")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the verdicts to this file, but for those it has")
    parser.add_argument("--fakes", action="store_true", help="on the fakes of the tests")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        with on_fakes("full") if options.fakes else on_gpu() as place:
            print(json.dumps(_examined(_row(options.child), options, place)), flush=True)
            os._exit(0)
    verdicts = _earlier(options)
    known = {one["row"] for one in verdicts}
    wanted = [row for row in _rows() if not options.rows or row["name"] in options.rows]
    with ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(_verdict, row, options) for row in wanted if row["name"] not in known]
        for done in as_completed(running):
            verdicts.append(one := done.result())
            print(f"{one['verdict']:12} {one['row']:32} {one['text'][:160]}", flush=True)
            if options.json:  # a run that is cut off goes on later
                options.json.write_text(json.dumps({"seed": options.seed, "rows": verdicts}, indent=1) + "\n")
    counts = Counter(one["verdict"] for one in verdicts)
    print(f"seed {options.seed}:", ", ".join(f"{count} {name}" for name, count in counts.items()))
    return int("died" in counts)


def _earlier(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the verdicts of the same seed that the file has, without those of processes that died."""
    if options.json is None or not options.json.exists():
        return []
    found = json.loads(options.json.read_text())
    return [one for one in found["rows"] if found["seed"] == options.seed and one["verdict"] != "died"]


def _rows() -> list[dict[str, Any]]:
    return [row for row in table() if row["kind"] in KINDS and row["effect"] in (*RUNS, "crash", "hang")]


def _row(name: str) -> dict[str, Any]:
    return next(row for row in table() if row["name"] == name)


def _verdict(row: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Let a child examine a row, unless that would end the process."""
    if row["effect"] not in RUNS:
        return {"row": row["name"], "verdict": "not run", "text": f"effect: {row['effect']}"}
    command = [sys.executable, "-m", "tests.facts.canary", "--child", row["name"]]
    command += ["--seed", str(options.seed), "--seconds", str(options.seconds)]
    command += ["--fakes"] if options.fakes else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"row": row["name"], "verdict": "died", "text": f"no answer in {LIMIT} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    text = f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"
    return {"row": row["name"], "verdict": "died", "text": text}


# --- a child process ---------------------------------------------------------------------------------------


def _examined(row: dict[str, Any], options: argparse.Namespace, place: Place) -> dict[str, Any]:
    """Compute problems that a fact is about without it, and return the verdict."""
    found: dict[str, Any] = {"row": row["name"], "problems": 0, "wrong": 0, "verdict": "no example"}
    why = _why_out_of_range(row)
    if why:
        return found | {"verdict": "not run", "text": why}
    facts.ignore([row["name"]])
    end, example = time.monotonic() + options.seconds, ""
    for wrong in _outcomes(row, options.seed, end, place):
        found["problems"] += 1
        found["wrong"] += bool(wrong)
        example = example or wrong
        if found["problems"] == PROBLEMS or wrong:
            break
    if found["problems"]:
        found["verdict"] = "still wrong" if found["wrong"] else "right now"
    return found | {"text": f"{found['problems']} problems; {example}" if found["problems"] else ""}


def _why_out_of_range(row: dict[str, Any]) -> str:
    target = _target()
    if row.get("libraries", target.libraries) != target.libraries:
        return f"the row is about libraries {row['libraries']!r}"
    if not within(format_version(target.version), row.get("cudnn", {})):
        return f"the row is about cuDNN {row['cudnn']}"
    arch = row.get("arch")
    return f"the row is about GPUs {arch}" if arch and not _on_this_gpu(row["name"]) else ""


def _on_this_gpu(name: str) -> bool:
    row, target = _row(name), _target()
    found = (fact for op in row["operations"] for fact in facts.facts(row["kind"], op, target))
    return any(fact.name == name for fact in found)


def _target() -> Target:
    return target_of(context.current(streams.default_stream(0)))


def _outcomes(row: dict[str, Any], seed: int, end: float, place: Place) -> Iterator[str]:
    """Yield what is wrong with the result of each problem that a fact is about; empty for a right one."""
    families = {FAMILIES[name] for name in row["operations"]}
    if families <= {"convolutions"}:
        yield from _convolutions(row, seed, (time.monotonic() + end) / 2, place)
        yield from _graphs(row, seed, end, small=place[0].kind == "fakes")
    elif families & {"graphs", "native graphs", "products"}:
        yield from _graphs(row, seed, end, small=place[0].kind == "fakes")
    else:
        yield from _calls(row, seed, end, place)


def _convolutions(row: dict[str, Any], seed: int, end: float, place: Place) -> Iterator[str]:
    """Make convolutions of the pool with the engines and algorithms of a fact."""
    device, answers = place
    made: list[str] = []
    for problem in _problems(row, seed):
        if time.monotonic() > end:
            return
        call = _call(problem, seed)
        made.clear()
        verdict = judge_each(
            call,
            device,
            answers,
            lambda _, algorithm: made.append(algorithm),
            lambda problem, candidate: _chosen(row, problem, candidate),
        )
        if made:
            yield _wrong(call, verdict)


def _problems(row: dict[str, Any], seed: int) -> Iterator[ConvProblem]:
    """Yield convolutions of the pool that a fact is about, and that take milliseconds."""
    for operation in CONVOLUTIONS:
        for subject in pool(seed).get(operation, ()):
            core = subject.core
            work = core.y.size * prod(core.w.shape[1:])
            offered = operation == "conv" or core.y.dtype == core.x.dtype
            if offered and not subject.nodes and work <= LARGEST and _rejections(row, core):
                yield core


def _call(problem: ConvProblem, seed: int) -> Call:
    """Return a convolution as a call of the oracle, on contiguous operands in the layouts of the problem."""
    operation = OPERATIONS[problem.direction]
    inputs, result = OPERANDS[problem.direction]
    tensors = {name: _tensor(getattr(problem, name[-1]), seed + ord(name[-1])) for name in (*inputs, result)}
    names = ("padding", "stride", "dilation", "groups", "mode")
    arguments = {name: getattr(problem, name) for name in names}
    floating = problem.x.dtype != "int8"
    if floating and (problem.x.dtype == problem.compute or not problem.tensor_cores):
        arguments["precision"] = "tf32" if rounds_to(problem) == "tf32" else problem.compute
    if operation != "conv":
        arguments[f"{result[-1]}_shape"] = getattr(problem, result[-1]).shape
    operands = {name: tensors[name] for name in inputs}
    out = tensors[result]
    return Call(seed, 0, operation, operands, arguments, out, {}, "", (), {}, "", Where(), {})


def _tensor(spec: TensorSpec, seed: int) -> Tensor:
    order = tuple(sorted(range(len(spec.shape)), key=lambda axis: -spec.strides[axis]))
    return Tensor(spec.shape, spec.dtype, order=order, gaps=(1,) * len(order), seed=seed)


def _graphs(row: dict[str, Any], seed: int, end: float, *, small: bool) -> Iterator[str]:
    """Make random graphs that a fact is about, with the engines of the fact."""
    for number in range(10**6):
        if time.monotonic() > end:
            return
        with contextlib.suppress(CudnnError, ValueError):
            (graph, outputs), _ = draw_graph(seed, number, 0, small=small)
            problem = graph.define(*outputs)
            if not _rejections(row, problem):
                continue
            found = compared(graph, outputs, lambda problem, candidate: _chosen(row, problem, candidate))
            yield found["text"] if found["status"] == "wrong" else ""


def _calls(row: dict[str, Any], seed: int, end: float, place: Place) -> Iterator[str]:
    """Make calls of the oracle by the heuristic choice, of which a fact would have changed something."""
    names = [name for name in (*row["operations"], *map(str.upper, row["operations"])) if name in RECIPES]
    if "norm_of_parameters_last" in row["operations"]:
        names = ["layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"]
    if {"attention", "attention_backward"} & set(names) and "FP8" in row["when"]:
        names = ["scaled_attention"]
    device, answers = place
    for number in range(10**6):
        if time.monotonic() > end:
            return
        facts.ignored_that_held()
        rules.forget()
        call = draw(seed, number, device.kind, names)
        arguments = call.arguments | ALTERED.get(row["name"], {})
        call = call._replace(where=call.where._replace(captured=False), arguments=arguments)
        try:
            verdict = judge(call, device, answers)
        except NotSupportedError:
            continue
        if row["name"] in facts.ignored_that_held() and verdict.outcome in ("agrees", "finding"):
            yield _wrong(call, verdict)


def _wrong(call: Call, verdict: Verdict) -> str:
    """Return which elements of a result are wrong, and of which call; empty if none is.

    A call that fails is no evidence about results.
    """
    wrong = verdict.outcome == "finding" and "elements differ" in verdict.detail
    return f"{verdict.detail}; {call}"[:600] if wrong else ""


def _chosen(row: dict[str, Any], problem: Any, candidate: Any) -> bool:
    """Return whether a fact rejects this candidate of a problem."""
    capability = _target().capability or (0, 0)
    rejections = _rejections(row, problem)
    if candidate.backend != "graph":
        return any(candidate.algorithm in one.notes or one.of_all for one in rejections)
    if candidate.relayout:
        return False  # it computes a problem of other layouts
    engine = Engine.parse(candidate.algorithm)
    return any(one.rejects(engine, candidate.notes, capability) for one in rejections)


def _rejections(row: dict[str, Any], problem: Any) -> list[Rejection]:
    """Return the rejections by a fact of a problem; one of all engines if the fact is not about engines."""
    name, target = row["name"], _target()
    facts.ignore(())
    try:
        subjects = rules.subjects_of(problem)
        if row["kind"] == "engine":
            return [one for one in rules.rules_of_subjects(subjects, target).rejections if one.fact == name]
        if row["operations"] == [NATIVE] and isinstance(problem, GraphProblem):
            subjects = ((NATIVE, lowered(problem, target)),)
        held = {fact.name for one in subjects for fact in applying(row["kind"], one, target)}
        return [Rejection("", fact=name)] if name in held else []
    finally:
        facts.ignore([name])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
