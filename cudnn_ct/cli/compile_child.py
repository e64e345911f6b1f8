"""The child process of ``cudnn-ct compile``: it runs a file on shapes, and compiles the recorded graphs."""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from difflib import get_close_matches
from importlib import import_module
from inspect import isfunction
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from cudnn_doctor.read.versions import defects

from .. import errors
from .._algorithm_names import is_engine
from .._config import config
from ..array_shapes import ShapeArray
from ..context import Context
from ..errors import AllocationError, CudnnError, Explanation, NotSupportedError
from ..facts import on_gpu
from ..graph.candidates import engine_by_name, engine_candidates, first_engine
from ..graph.engines import Engine, execution_plan, heuristic_modes
from ..graph.exchange import record_plans
from ..graph.explain import explain_graph
from ..graph.native import operation_graph
from ..graph.offline import Planner, compute_capability
from ..graph.plan_store import StoredPlan, encode
from ..graph.recording import PlanRequest, RecordedPlans, read_requests
from ..graph.stored import CompiledPlan, to_store
from ..plans.base import Candidate
from ..shapes.checks import as_ints
from ..shapes.specs import TensorSpec, check_shape
from .offline import answer_with, user_file
from .output import first_line, words_of

OUTPUTS = (1, 2)  # the descriptors of stdout and stderr


def answer() -> None:
    """Run as the child process: write the plans to the file of the request, and a report to stdout."""
    answer_with(_compiled)


def _compiled(request: dict[str, Any]) -> dict[str, Any]:
    for name, value in request["settings"].items():
        setattr(config, name, value)
    planner = Planner(request["device"])
    try:
        with _output_to(request["terminal"]):
            requests, skipped = _requests(Path(request["file"]))
    except (Exception, SystemExit) as error:  # the file may raise anything
        return {"wrong_file": words_of(error, request["file"]), "is_program": request["file"].endswith(".py")}
    rest, progress = requests[request["start"] :], request["progress"]
    if request["output"]:
        with open(request["output"], "ab") as output:
            _each(rest, lambda one: _compile(one, planner, output), progress)
    else:
        _each(rest, lambda one: _support(one, planner), progress)
    return {"skipped": skipped}


@contextmanager
def _output_to(terminal: int | None) -> Iterator[None]:
    """Send the output of a block to the terminal of the user, not to the pipes that the parent reads."""
    pipes = [os.dup(number) for number in OUTPUTS]
    for number in OUTPUTS:
        os.dup2(OUTPUTS[-1] if terminal is None else terminal, number)
    try:
        with ExitStack() as streams:  # a program may close them
            out, err = (
                streams.enter_context(open(number, "w", 1, errors="backslashreplace", closefd=False))
                for number in OUTPUTS
            )
            with redirect_stdout(out), redirect_stderr(err):
                yield
    finally:
        for pipe, number in zip(pipes, OUTPUTS, strict=True):
            os.dup2(pipe, number)
            os.close(pipe)


def _each(requests: list[PlanRequest], work: Callable[[PlanRequest], dict[str, Any]], progress: str) -> None:
    """Write the label of each graph before it is planned, as cuDNN may end the process; then the outcome."""
    with open(progress, "w", encoding="utf-8") as file:
        for one in requests:
            print(json.dumps(_label(one)), file=file, flush=True)
            print(json.dumps(work(one)), file=file, flush=True)


def _compile(request: PlanRequest, planner: Planner, output: BinaryIO) -> dict[str, Any]:
    """Compile a graph, append its plan to a file, and return the time, the size, and why it was rejected."""
    start, reason = time.perf_counter(), ""
    try:
        _check_gpu(planner)
        entries = compile_first(request, planner)
    except CudnnError as error:
        # In plain words if no engine supports the graph.
        reason = _support(request, planner)["reason"] or first_line(error)
    else:
        output.write(b"".join(map(encode, entries)))
        output.flush()
    seconds = time.perf_counter() - start
    return {**_label(request), "seconds": seconds, "size": output.tell(), "reason": reason}


def _support(request: PlanRequest, planner: Planner) -> dict[str, Any]:
    """Return how many engines cuDNN's heuristics have for a graph, the first one, or why it has none.

    If other graphs compute the call instead, their first engine is returned. It is unknown whether cuDNN
    computes it if an engine could not be asked without a GPU, or if the call may be computed without a graph.
    The reason is also that of an engine which a call names and which is replaced.
    """
    row = _support_alone(request, planner)
    for way in () if row["engines"] else request.instead:
        rows = [_support(one, planner) for one in way]
        if rows and all(one["engines"] for one in rows):
            return rows[0] | _label(request)
        row["unknown"] |= all(one["engines"] or one["unknown"] for one in rows)
    return row


def _support_alone(request: PlanRequest, planner: Planner) -> dict[str, Any]:
    unknown = False
    try:
        _check_gpu(planner)
        rows = usable_candidates(request, planner)
        reason = why_not_named(request, planner)
        if reason and rows:
            reason += "; another algorithm takes its place, because the call is not strict"
        elif not rows and (request.replaceable or not reason):
            faults = known_faults(request, planner)
            found = Explanation("") if faults else explain_graph(request.graph, planner)
            reason = "; ".join(filter(None, [reason, faults or _reasons(found)]))
            unknown = not faults and found.unknown
    except CudnnError as error:
        rows, reason = [], first_line(error)
    first = rows[0] if rows else None
    return {
        **_label(request),
        "engines": len(rows),
        "first": first and first.algorithm,
        "compiled": first and first.compiled,
        "reason": reason if rows or reason else "cuDNN has no engine",
        "unknown": unknown,
    }


def _reasons(found: Explanation) -> str:
    """Return why engines reject a graph, and changes of one property with which cuDNN has an engine."""
    reasons = "; ".join(dict.fromkeys(row.words for row in found.reasons))
    if not found.changes:
        return reasons
    enough = "One of these changes is enough" if len(found.changes) > 1 else "This change is enough"
    return f"{reasons}. {enough}: {'; '.join(found.changes)}"


def _check_gpu(planner: Planner) -> None:
    """Raise NotSupportedError if this version does not run on the GPU at all, though it has engines."""
    arch = "{}.{}".format(*compute_capability(planner))
    for row in defects(errors.format_version(planner.library.version), "all", arch):
        if row["effect"] == "unsupported":
            raise NotSupportedError(f"{row['message']}; {row['advice']} ({row['source']})")


def _requests(file: Path) -> tuple[list[PlanRequest], dict[str, str]]:
    """Return the graphs of a file, and its calls without one."""
    text = user_file(file)
    if file.suffix == ".py":
        sys.path.insert(0, str(file.parent))  # as Python does
        with record_plans(shapes_only=True) as recorded:
            try:
                runpy.run_path(str(file), run_name="__main__")
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    raise
    else:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"neither a Python program, with a name that ends in .py, nor JSON: {error}"
            ) from None
        if not isinstance(content, dict) or not {"calls", "graphs"} & set(content):
            raise ValueError('expected a JSON object with "calls", or the "graphs" that a recording saved')
        if "calls" not in content:
            return read_requests(content), dict(content.get("skipped", {}))
        recorded = _of_calls(content["calls"])
    return list(recorded.requests.values()), recorded.skipped


def _of_calls(calls: Any) -> RecordedPlans:
    """Make calls on shapes: ``{"function": "conv", "arguments": {"x": {"shape": [...], ...}, ...}}``."""
    rows = calls if isinstance(calls, list) else [calls]
    made = 0
    try:
        with record_plans(shapes_only=True) as recorded:
            for row in rows:
                name, arguments = _call(row)
                _operation(name)(**{key: _argument(value, key) for key, value in arguments.items()})
                call = str(errors.Caller(name, f"calls[{made}]"))
                for key, request in recorded.requests.items():
                    recorded.requests[key] = request if request.call else request._replace(call=call)
                made += 1
    except (TypeError, ValueError, CudnnError) as error:
        raise ValueError(f"calls[{made}]: {first_line(error)}") from error
    return recorded


def _operation(name: str) -> Callable[..., Any]:
    """Return the operation of a name. Other functions would run, too, and some of them write files."""
    package = import_module("..", __package__)

    def operation(name: str) -> Callable[..., Any] | None:
        function = getattr(package, name)
        made_here = isfunction(function) and function.__module__.startswith(f"{package.__name__}.ops.")
        return function if made_here else None

    if name in package.__all__ and (function := operation(name)):
        return function
    near = get_close_matches(name, filter(operation, package.__all__), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown operation: got {name!r}{hint}")


def _call(row: Any) -> tuple[str, dict[str, Any]]:
    name, arguments = (row.get("function"), row.get("arguments", {})) if isinstance(row, dict) else ("", 0)
    if not (isinstance(name, str) and isinstance(arguments, dict)):
        raise ValueError(f'expected an object with "function" and "arguments": got {str(row)[:99]}')
    return name, arguments


def _argument(value: Any, name: str) -> Any:
    """Return an argument: an array for an object with a shape, and tuples for lists."""
    if isinstance(value, dict) and "shape" in value:
        known = {"shape", "dtype", "layout", "strides"}
        if set(value) - known:
            raise ValueError(f"unknown key of {name}: got {sorted(set(value) - known)}")
        shape = check_shape(value["shape"], f"shape of {name}")
        spec = TensorSpec.packed(shape, value.get("dtype", "float32"), value.get("layout", "nchw"))
        if "strides" in value:
            spec = spec._replace(strides=as_ints(value["strides"], f"strides of {name}"))
            if len(spec.strides) != len(shape):
                raise ValueError(f"strides of {name} must be {len(shape)} integers: got {spec.strides}")
        return ShapeArray.of(spec)
    return tuple(_argument(each, name) for each in value) if isinstance(value, list) else value


def _label(request: PlanRequest) -> dict[str, Any]:
    """Return what names a graph: its nodes, its operands, and the operation and the line that made it."""
    made_by = errors.caller_from(request.call)
    nodes = ", ".join(one.row for one in request.graph.nodes)
    operands = [str(tensor.spec) for tensor in request.graph.operands]
    return {
        "graph": f"{nodes} on {', '.join(operands)}",
        "operation": made_by.operation or nodes,
        "line": made_by.line,
        "operands": operands,
    }


# --- plans of graphs ---------------------------------------------------------------------------------------


def compile_first(request: PlanRequest, planner: Planner) -> list[StoredPlan]:
    """Return the plan of a graph, or the plans of the first graphs that compute its call instead.

    Raise the error of the graph itself if none of them can be compiled.
    """
    try:
        return [compile_request(request, planner)]
    except NotSupportedError as error:
        for way in filter(None, request.instead):
            with suppress(NotSupportedError):
                return [plan for one in way for plan in compile_first(one, planner)]
        raise error


def compile_request(request: PlanRequest, planner: Planner) -> StoredPlan:
    """Return the compiled plan of a graph; raise NotSupportedError if it has none, or cuDNN cannot write it.

    The choice of its engine is not stored: the heuristics of the device may name another one.
    """
    if request.order is not None:
        native, row = first_engine(request, planner)
    else:
        native, row = _first_candidate(request, planner)
        request = request._replace(engine=row.algorithm)
    plan = to_store(request, native, row, planner)
    if isinstance(plan, str):
        raise NotSupportedError(plan)
    return plan


def _first_candidate(request: PlanRequest, planner: Planner) -> CompiledPlan:
    """Build the engine that was named, or the first engine that keeps the limits."""
    reasons = []
    for row in chain.from_iterable(_stages(request, planner)):
        wrong = row.rejected or _exceeded(request, row)
        if not wrong:
            try:
                engine, native = Engine.parse(row.algorithm), operation_graph(request.graph, planner)
                return execution_plan(native, engine, planner, request.rules.excluded), row
            except AllocationError:
                raise
            except CudnnError as error:
                wrong = str(error)
        reasons.append(f"{row.algorithm}: {wrong}")
    raise NotSupportedError(f"no engine could be built into an execution plan: {'; '.join(reasons)}")


def _names_engine(request: PlanRequest) -> bool:
    """Whether a call names its engine. A legacy algorithm has no plan; its graph is planned by heuristics."""
    return is_engine(request.engine) and not request.choice


def _stages(request: PlanRequest, planner: Context | Planner) -> Iterator[list[Candidate]]:
    """Yield the engine that a call names, unless it names none, then those of each heuristic mode."""
    if _names_engine(request):
        yield [engine_by_name(request.graph, request.rules, request.engine, planner)]
        if not request.replaceable:
            return
    for mode in heuristic_modes(request.graph, planner):
        yield engine_candidates(request.graph, request.rules, planner, [mode])


def usable_candidates(request: PlanRequest, planner: Context | Planner) -> list[Candidate]:
    """Return the engine that a call names, or the engines of the first heuristic mode that has one.

    Only those within the limits are usable. Nothing is compiled. Requests with an order have no limits.
    """
    for rows in _stages(request, planner):
        rows = [row for row in rows if not (row.rejected or _exceeded(request, row))]
        if rows:
            return rows
    return []


def why_not_named(request: PlanRequest, planner: Context | Planner) -> str:
    """Return why the engine that a call names is not usable; empty if it is, or if the call names none."""
    if not _names_engine(request):
        return ""
    (row,) = next(_stages(request, planner))
    reason = row.rejected or _exceeded(request, row)
    return f"{request.engine}: {reason}" if reason else ""


def known_faults(request: PlanRequest, planner: Context | Planner) -> str:
    """Return the facts that reject what cuDNN offers, with the names of their rows; empty without any."""
    rules, capability = request.rules, compute_capability(planner)
    offered = [row for rows in _stages(request, planner) for row in rows if is_engine(row.algorithm)]
    found = dict.fromkeys(
        one.reason
        for one in rules.rejections
        if (one.of_all and on_gpu(capability, one.arch))
        or any(one.rejects(Engine.parse(row.algorithm), row.notes, capability) for row in offered)
    )
    return "; ".join(found)


def _exceeded(request: PlanRequest, row: Candidate) -> str:
    """Return which limit of the request an engine exceeds; empty if none."""
    limit = request.limits.get("workspace_limit")
    if request.limits.get("deterministic") and not row.deterministic:
        return "not deterministic"
    if limit is not None and row.workspace > limit:
        return f"needs {row.workspace:,} bytes of workspace; the limit is {limit:,}"
    if row.compiled and not request.limits.get("compiled", True):
        return "is compiled at run time"
    return ""
