"""How the fakes compute the calls of the golden files."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import cudnn_ct as ct
from cudnn_ct import algo_cache, testing
from cudnn_ct.errors import CudnnError
from cudnn_ct.graph.attributes import graph_to_json
from tests.attention_cases import on_device, operands_of, random_case
from tests.fake.cudnn import FakeCudnn
from tests.fake.host import ForeignArray, Host
from tests.fake.installed import cudnn_installed, host_installed
from tests.layers import LayerCase
from tests.oracle.graph_draws import draw_graph

from . import calls

FILE = Path(__file__).with_name("answers.txt")
GRAPHS, ATTENTIONS, SEED = 100, 40, 42
# The engine of the fakes, one after another: those that some fact is about, and others.
ENGINES = (0, 5, 1, 78, 2, 4, 70, 3, 6, 8, 7, 25, 17, 47, 61)


def answers() -> str:
    """Return one line for each call."""
    lines = []
    gc.collect()
    gc.freeze()  # the fakes collect garbage after each call
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(ct.config, "plan_cache", False))
        host = stack.enter_context(host_installed())
        fake = stack.enter_context(cudnn_installed(host))
        fake.engines = True
        stack.enter_context(mock.patch.object(FakeCudnn, "cudnnBackendExecute", _not_run))
        for number, case in enumerate(calls.read()):
            fake.engine_number, fake.second_engine = ENGINES[number % len(ENGINES)], 99
            lines.append(_answer(case.operation, lambda case=case: _call(case, host)))  # type: ignore[misc]
        for number in range(ATTENTIONS):
            fake.engine_number = ENGINES[number % len(ENGINES)]
            lines.append(_answer("attention", lambda number=number: _attention(number, host)))  # type: ignore[misc]
        for number in range(GRAPHS):
            fake.engine_number = ENGINES[number % len(ENGINES)]
            lines.append(_answer("graph", lambda number=number: _graph(number)))  # type: ignore[misc]
    return "".join(f"{json.dumps(line, indent=0)}\n" for line in lines)


def _not_run(self: FakeCudnn, handle: Any, plan: Any, pack: Any) -> int:
    """Replace the execution of plans, whose results are not compared."""
    return 0


def _call(case: LayerCase, host: Host) -> None:
    operands = [one and ForeignArray(host, one.array()) for one in case.operands]
    outs = {name: ForeignArray(host, one.array()) for name, one in case.outs.items()}
    getattr(ct, case.operation)(*operands, **case.keywords, **outs)


def _attention(number: int, host: Host) -> None:
    def place(array: Any) -> ForeignArray:
        return ForeignArray(host, array)

    given = random_case(number)
    arrays, keywords, dy = operands_of(given)
    q, k, v = map(place, arrays)
    keywords = on_device(keywords, place)
    y, stats = ct.attention(q, k, v, return_stats=True, **keywords)
    ct.attention_backward(place(dy), q, k, v, y, stats, **keywords)


def _graph(number: int) -> None:
    (graph, outputs), _ = draw_graph(SEED, number, 0, small=True)
    graph.build(*outputs).close()


def _answer(name: str, call: Any) -> dict[str, Any]:
    testing.reset()
    found: dict[str, Any] = {"call": name}
    with ct.record_plans(shapes_only=False) as recorded, _candidates() as candidates:
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                call()
        except CudnnError as error:
            found["error"] = f"{type(error).__name__}: {error}"
    found["graphs"] = [_lines(graph_to_json(one.graph)) for one in recorded.requests.values()]
    found["candidates"] = candidates
    found["warnings"] = [str(one.message) for one in warned]
    if "error" not in found and name != "graph":
        found["describe"] = ct.last_plan().describe().splitlines()
    return found


def _lines(graph: dict[str, Any]) -> list[str]:
    """Return a line for each tensor and each node of a graph.

    Tensors are numbered in the order in which the lines name them, operands first, and attributes have the
    order of their names, so that only what cuDNN computes with makes a difference.
    """
    numbers: dict[int, int] = {uid: number for number, uid in enumerate(graph["operands"], 1)}
    nodes = [f"{one['row']}({_attributes(one, numbers)})" for one in graph["nodes"]]
    lines = []
    for tensor in sorted(graph["tensors"], key=lambda tensor: _number(tensor["uid"], numbers)):
        uid, dtype, shape, strides = (tensor.pop(name) for name in ("uid", "dtype", "shape", "strides"))
        tensor |= {
            name: _number(tensor[name], numbers) for name in ("same_memory_as", "ragged") if name in tensor
        }
        lines.append(f"t{numbers[uid]}: {dtype} {list(shape)} {list(strides)} {tensor or ''}".rstrip())
    return [*lines, *nodes, f"{len(graph['operands'])} operands{' dynamic' if graph.get('dynamic') else ''}"]


def _number(uid: int, numbers: dict[int, int]) -> int:
    return numbers.setdefault(uid, len(numbers) + 1)


def _attributes(one: dict[str, Any], numbers: dict[int, int]) -> str:
    given = sorted((name, value) for name, value in one["attributes"].items() if value is not None)
    return ", ".join(f"{name}={_plain(value, numbers)}" for name, value in given)


def _plain(value: Any, numbers: dict[int, int]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_plain(one, numbers) for one in value)}]"
    if not isinstance(value, dict):
        return json.dumps(value)
    ((tag, content),) = value.items()
    if tag == "tensor":
        return f"t{_number(content, numbers)}"
    if tag == "node":
        return f"{content['row']}({_attributes(content, numbers)})"
    if tag == "graph":
        nodes = (f"{node['row']}({_attributes(node, numbers)})" for node in content["nodes"])
        operands = ", ".join(f"t{_number(uid, numbers)}" for uid in content["operands"])
        return f"[{'; '.join(nodes)}] of {operands}"
    return json.dumps(value)


@contextmanager
def _candidates() -> Iterator[list[str]]:
    """Collect the candidates of each first decision, in their order."""
    rows: list[str] = []
    real = algo_cache._first_decision

    def decided(problem: Any, source: Any, context: Any, request: Any) -> Any:
        for stage in source.heuristics(problem):
            rows.extend(map(_row, stage(context)))
        return real(problem, source, context, request)

    with mock.patch.object(algo_cache, "_first_decision", decided):
        yield rows


def _row(row: Any) -> str:
    text = f"{row.backend} {row.algorithm}, {row.workspace} bytes, {row.relayout or 'no copies'}"
    notes = f", {', '.join(row.notes)}" if row.notes else ""
    return f"{text}{notes}: rejected: {row.rejected}" if row.rejected else f"{text}{notes}"
