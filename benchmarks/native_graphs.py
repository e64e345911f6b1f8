"""Compare CUDA graphs that cuDNN fills itself with captured ones, on one GPU.

    python benchmarks/native_graphs.py [--rounds N] [--json OUT]

Since 9.5, `cudnnBackendPopulateCudaGraph` adds the nodes of an execution plan to a CUDA graph, and
`cudnnBackendUpdateCudaGraph` gives them other pointers. Engines with the note
`supports_cuda_graph_native_api` can do it. A row is a graph of `ct.Graph` with its first engine that has the
note. Columns are microseconds of host time: to make an executable graph, to launch it, and to launch it with
other pointers. All are medians over rounds, in turns. Launches are compared with `cudnnBackendExecute`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from graph_host import GRAPHS
from harness import command
from harness.results import Record, explain, write_whole
from harness.shards import positive

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import driver as cuda
from cudnn_ct.cuda import event as events
from cudnn_ct.cuda import graph as graphs
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnError
from cudnn_ct.graph.candidates import engine_candidates, engine_plan
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.ops.attention.core import core_of
from cudnn_ct.ops.attention.graph import named_graph
from cudnn_ct.ops.graph.attention import attention_of
from cudnn_ct.ops.graph.lower import lowered

RESULTS = Path(__file__).parent / "results" / "native_graphs.json"
NOTE = "supports_cuda_graph_native_api"
ROUNDS = 20
LAUNCHES = 100  # in a loop
WAYS = ("captured", "populated", "updated")
TOLERANCE = 2e-2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=positive, default=ROUNDS, help="default: %(default)s")
    options.add_argument("--json", type=Path, default=RESULTS, help="write the result to this file")
    given = options.parse_args(argv)
    records = [command.about()]
    for name in GRAPHS:
        try:
            records.append(record_of(name, given.rounds))
        except CudnnError as error:
            records.append({"section": "graph", "id": name, "error": explain(error)})
    write_whole(given.json, "native_graphs", records, [], "microseconds of host time, medians")
    print(render(records))
    return int(any(max(record.get("errors", {}).values(), default=0.0) > TOLERANCE for record in records))


def record_of(name: str, rounds: int) -> Record:
    """Measure one graph."""
    graph = ct.Graph()
    made = GRAPHS[name](graph)
    problem = graph.define(*(made if isinstance(made, tuple) else (made,)))
    stream = streams.new_stream(0)
    with streams.on_device(0), ExitStack() as stack:
        here = context.current(stream)
        stack.enter_context(here.working(stream))
        low = lowered(problem, here.library.version)
        order = order_of(problem, here.library.version)
        if order is None:
            return {"section": "graph", "id": name, "error": "its plan needs buffers besides the operands"}
        rows = [row for row in engine_candidates(low, EngineRules(), here) if not row.rejected]
        able = [row for row in rows if NOTE in row.notes]
        record: Record = {"section": "graph", "id": name, "engines": len(rows), "with the note": len(able)}
        if not able:
            return record
        row = able[0]
        plan: Any = engine_plan(low, EngineRules(), row, here, problem)
        arrays = [operands(problem, seed) for seed in (0, 1)]
        work = here.workspace(plan.workspace) if plan.workspace else 0
        packs = [plan._pack(work, *(one[place].pointer for place in order)) for one in arrays]
        ways = Ways(here, plan, packs, stream)
        record |= {"engine": row.algorithm, "first choice": rows[0] is row, "nodes": ways.nodes()}
        record["errors"] = {way: error_of(ways, way, arrays, problem) for way in WAYS}
        record["times"] = in_turns(ways.timed(), rounds)
    return record


def order_of(problem: Any, version: int) -> list[int] | None:
    """Return the places of the native graph's operands among those of a problem; None if it has more."""
    attention = attention_of(problem)
    if attention is None:
        return list(range(len(problem.memory)))
    core = core_of(attention.problem, version)
    places = {part.name: place for part, place in zip(core.parts, attention.places, strict=True)}
    _, names = named_graph(core.problem)
    return [places[name] for name in names] if set(names) <= set(places) else None


def operands(problem: Any, seed: int) -> list[ct.DeviceArray]:
    """Return arrays for the inputs and the outputs of a graph."""
    rng = np.random.default_rng(seed)
    found = []
    for value in problem.memory:
        array = ct.empty(value.spec.shape, value.spec.dtype)
        found.append(array.view_as(value.spec) if array.spec != value.spec else array)
        if value.name not in [problem.values[place].name for place in problem.outputs]:
            numbers = rng.standard_normal(value.spec.shape, np.float32)
            ct.transform(ct.asarray(numbers, value.spec.dtype), out=found[-1])
    ct.synchronize()
    return found


class Ways:
    """The ways to make and launch the work of a plan."""

    def __init__(self, here: Any, plan: Any, packs: list[Any], stream: Any) -> None:
        self.here, self.plan, self.packs, self.stream = here, plan, packs, stream
        self.template = self.populated(0)
        self.launches = {
            "captured": self.executable(self.captured(0)),
            "populated": self.executable(self.template),
        }
        self.turn = 0

    def execute(self, which: int) -> None:
        self.here.library.cudnnBackendExecute(self.here.handle, self.plan.native, self.packs[which])

    def captured(self, which: int) -> Any:
        mode = cuda.driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        cuda.call("capturing", "cuStreamBeginCapture", self.stream.handle, mode)
        self.execute(which)
        return cuda.call("capturing", "cuStreamEndCapture", self.stream.handle)

    def populated(self, which: int) -> Any:
        graph = cuda.call("creating a graph", "cuGraphCreate", 0)
        self.here.library.cudnnBackendPopulateCudaGraph(
            self.here.handle, self.plan.native, self.packs[which], int(graph)
        )
        return graph

    def update(self, which: int) -> None:
        """Give the nodes of the populated graph other pointers."""
        self.here.library.cudnnBackendUpdateCudaGraph(
            self.here.handle, self.plan.native, self.packs[which], int(self.template)
        )

    def executable(self, template: Any) -> Any:
        graph = graphs.Graph(self.stream.device)
        graph.instantiate(template)
        return graph

    def launch(self, graph: Any) -> Callable[[], int]:
        return graphs.launcher(graph, self.stream)

    def nodes(self) -> dict[str, int]:
        return {name: graph.nodes for name, graph in self.launches.items()}

    def run(self, way: str, which: int) -> None:
        """Compute once, for the comparison of results."""
        if way == "updated":
            self.update(which)
            self.exec_update("populated", self.template)
            graph = self.launches["populated"]
        else:
            graph = self.executable(getattr(self, way)(which))
        status = self.launch(graph)()
        graphs.check(status, f"launching a graph that was {way}", self.stream)
        events.synchronize(self.stream)

    def exec_update(self, name: str, template: Any) -> None:
        cuda.call("updating a graph", "cuGraphExecUpdate", self.launches[name].handle, template)

    def made_by_capture(self) -> None:
        template = self.captured(0)
        self.executable(template)
        cuda.driver().cuGraphDestroy(template)

    def made_by_cudnn(self) -> None:
        template = self.populated(0)
        self.executable(template)
        cuda.driver().cuGraphDestroy(template)

    def other_by_capture(self) -> None:
        """Launch with other pointers than the last time, by a new capture."""
        self.turn ^= 1
        template = self.captured(self.turn)
        self.exec_update("captured", template)
        cuda.driver().cuGraphDestroy(template)
        self.launch(self.launches["captured"])()

    def other_by_cudnn(self) -> None:
        self.turn ^= 1
        self.update(self.turn)
        self.exec_update("populated", self.template)
        self.launch(self.launches["populated"])()

    def other_by_execution(self) -> None:
        self.turn ^= 1
        self.execute(self.turn)

    def timed(self) -> dict[str, Callable[[], object]]:
        """Return what is timed, by the name of its column."""
        return {
            "make: capture": self.made_by_capture,
            "make: populate": self.made_by_cudnn,
            "launch: captured": self.launch(self.launches["captured"]),
            "launch: populated": self.launch(self.launches["populated"]),
            "execute": lambda: self.execute(0),
            "other pointers: capture": self.other_by_capture,
            "other pointers: update": self.other_by_cudnn,
            "other pointers: execute": self.other_by_execution,
        }


def error_of(ways: Ways, way: str, arrays: Any, problem: Any) -> float:
    """Return the largest difference from the results of an execution, relative to their largest element.

    Both sets of pointers are compared. Sums by atomic additions differ from run to run.
    """
    worst = 0.0
    for which in (1, 0):
        outputs = arrays[which][-len(problem.outputs) :]
        ways.execute(which)
        events.synchronize(ways.stream)
        wanted = [one.numpy().astype(np.float64) for one in outputs]
        for one in outputs:
            ct.fill(one, 0)
        ct.synchronize()
        ways.run(way, which)
        for expected, one in zip(wanted, outputs, strict=True):
            error = np.max(np.abs(one.numpy().astype(np.float64) - expected))
            worst = max(worst, float(error / np.max(np.abs(expected))))
    return worst


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the medians of microseconds per call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            count = LAUNCHES if "make" not in name else LAUNCHES // 10
            ct.synchronize()
            events.synchronize_device(0)
            start = time.perf_counter()
            for _ in range(count):
                call()
            times[name].append(1e6 * (time.perf_counter() - start) / count)
    events.synchronize_device(0)
    return {name: statistics.median(values) for name, values in times.items()}


def render(records: list[Record]) -> str:
    """Return a table of all rows."""
    lines = [
        f"{'graph':20} engines  nodes   make: capture populate  launch: captured populated execute"
        "  other pointers: capture update execute"
    ]
    for record in records:
        if record["section"] != "graph":
            continue
        if "times" not in record:
            lines.append(f"{record['id']:20} {record.get('error') or 'no engine has the note'}")
            continue
        cells = [f"{value:9.1f}" for value in record["times"].values()]
        nodes = "/".join(map(str, record["nodes"].values()))
        share = f"{record['with the note']}/{record['engines']}"
        first = "first choice" if record["first choice"] else record["engine"]
        worst = max(record["errors"].values())
        row = f"{record['id']:20} {share:>7}  {nodes:>5} {' '.join(cells)}"
        lines.append(f"{row}  {first}, error {worst:.1g}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
