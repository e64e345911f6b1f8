"""Compare `cudnn-ct supports` with planning on a GPU, for a list of 500 graphs.

python tools/support_list.py --write                         # tests/support_graphs.json, from kinds and seeds
python tools/support_list.py --check                         # exit 1 if graphs of the file have changed
python tools/support_list.py --record OUT.json --jobs 14     # on a GPU: plan each graph, compile nothing
python tools/support_list.py --compare OUT.json              # anywhere, with the same cuDNN: the agreement

--record asks cuDNN's heuristics for the device of the machine, as `supports` does for a description. With
--build the first engine of each graph also becomes a plan, as long as --seconds lasts. Graphs are planned in
child processes: one that ends its process has the status "crash". --described GPU plans for a description in
place of a GPU, to test the tool. --compare exits with 1 if less than 98 % of the graphs agree.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "support_graphs.json"
COUNT = 500
RANDOM = "random "  # the names of random graphs begin with it
SEED = 22
CHUNK = 40  # graphs of a child process
LIMIT = 300.0  # seconds of a child process
SHARE = 0.98
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args()
    if options.child:
        return _child(options)
    if options.write:
        LIST.write_text(list_text(), encoding="utf-8")
        return 0
    if options.check:
        return check()
    if options.record:
        return record(options)
    return compare(json.loads(options.compare.read_text(encoding="utf-8")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    action.add_argument("--record", type=Path, metavar="OUT.json")
    action.add_argument("--compare", type=Path, metavar="OUT.json")
    action.add_argument("--child", nargs="+", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--build", action="store_true", help="also make a plan of the first engine")
    parser.add_argument("--seconds", type=float, default=70.0, help="start no --build after this time")
    parser.add_argument("--described", metavar="GPU", default="")
    parser.add_argument("--graphs", type=int, nargs="*", help="only the graphs of these numbers")
    return parser


# --- the list ----------------------------------------------------------------------------------------------


def list_text() -> str:
    """Return the list: each kind of graph, those that public reports say are rejected, and random ones."""
    rows, seen = [], set()
    for name, graph in chain(_kinds(), _random_graphs()):
        text = json.dumps(graph, separators=(",", ":"))
        if text not in seen:
            seen.add(text)
            rows.append(f'{{"name":{json.dumps(name)},"graph":{text}}}')
        if len(rows) == COUNT:
            break
    body = ",\n".join(rows)
    return f'{{"format":"cudnn_ct graphs 1","graphs":[\n{body}\n]}}\n'


def check() -> int:
    """Print the graphs of the file that the tests now make otherwise; return 1 if one exists.

    Kinds that were added since are no reason, and random graphs stay as they were drawn: a record of a GPU
    stays valid for the file.
    """
    rows = _rows(None).values()
    stored = {row["name"]: row["graph"] for row in rows if not row["name"].startswith(RANDOM)}
    for name, graph in _kinds():
        if name in stored and json.loads(json.dumps(graph)) != stored.pop(name):
            print(f"{name} has changed; run: python tools/support_list.py --write")
            return 1
    if not stored:
        return 0
    print(f"{', '.join(stored)} do not exist; run: python tools/support_list.py --write")
    return 1


def _kinds() -> Iterator[tuple[str, Any]]:
    from cudnn_ct.graph.attributes import graph_to_json
    from tests.graph_kinds import KINDS, UNSUPPORTED
    from tests.rejected_graphs import REJECTED

    for name, make in KINDS.items():
        yield name, graph_to_json(make())
    for name, (_, make) in UNSUPPORTED.items():
        yield f"unsupported: {name}", graph_to_json(make())
    for name, row in REJECTED.items():
        yield f"reported: {name}", graph_to_json(row.graph())


def _random_graphs() -> Iterator[tuple[str, Any]]:
    from cudnn_ct.errors import NotSupportedError
    from cudnn_ct.graph.attributes import graph_to_json
    from cudnn_ct.ops.graph.lower import lowered
    from tests.oracle.graph_draws import draw_graph

    for number in count():
        (graph, outputs), structure = draw_graph(SEED, number, 0)
        with suppress(NotSupportedError):
            yield f"{RANDOM}{number}: {structure}", graph_to_json(lowered(graph.define(*outputs)))


def _rows(numbers: list[int] | None) -> dict[int, Any]:
    rows = json.loads(LIST.read_text(encoding="utf-8"))["graphs"]
    return {number: rows[number] for number in (range(len(rows)) if numbers is None else numbers)}


# --- planning on a device ----------------------------------------------------------------------------------


def record(options: argparse.Namespace) -> int:
    """Plan each graph in child processes, and write what cuDNN offers."""
    begin = time.monotonic()
    numbers = list(_rows(options.graphs))
    jobs = max(min(options.jobs, len(numbers)), 1)
    shares = [numbers[job::jobs] for job in range(jobs)]
    chunks = [share[at : at + CHUNK] for share in shares for at in range(0, len(share), CHUNK)]
    facts: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(lambda chunk: list(_run(options, chunk, begin)), chunks):
            for row in found:
                facts |= row.pop("facts", {})
                rows.append(row)
    rows.sort(key=lambda row: row["number"])
    seconds = round(time.monotonic() - begin, 1)
    content = {**facts, "seconds": seconds, "jobs": jobs, "graphs": rows}
    options.record.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    counts = Counter(row["status"] for row in rows)
    print(f"{facts.get('device')}, cuDNN {facts.get('cudnn')}: {dict(counts)} of {len(rows)} in {seconds} s")
    failed = [row for row in rows if row["status"] in ("error", "crash")]
    print("\n".join(f"  {row['number']}: {row['status']}: {row['reason']}" for row in failed[:5]))
    built = Counter(row["built"] for row in rows if row.get("built"))
    if built:
        print(f"first engines: {sum(built.values())} tried, {built['yes']} became a plan")
    return 0 if facts and not counts["error"] else 1


def _run(options: argparse.Namespace, chunk: list[int], begin: float) -> Iterator[dict[str, Any]]:
    """Plan graphs in a child process; one that dies is restarted behind the graph that killed it."""
    todo = list(chunk)
    status: int | str
    while todo:
        command = [sys.executable, str(Path(__file__)), "--child", *map(str, todo)]
        command += ["--described", options.described] if options.described else []
        if options.build:
            command += ["--build", "--seconds", str(options.seconds - (time.monotonic() - begin))]
        try:
            done = subprocess.run(command, capture_output=True, timeout=LIMIT, check=False, cwd=ROOT)
            output, errors, status = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            output, errors, status = late.stdout or b"", late.stderr or b"", f"timeout of {LIMIT:.0f} s"
        for line in output.decode(errors="replace").splitlines():
            if line.startswith('{"number"'):
                row = json.loads(line)
                todo.remove(row["number"])
                yield row
        # An exception of Python concerns all graphs, such as a missing driver; a signal the next one.
        failed = todo if status == 1 else todo[:1]
        how = "error" if status == 1 else "crash"
        reason = f"exit status {status}: {errors.decode(errors='replace').strip()[-300:]}"
        for number in failed:
            yield {"number": number, "status": how, "engines": [], "reason": reason}
        todo = todo[len(failed) :]


def _child(options: argparse.Namespace) -> int:
    from cudnn_ct.graph.recording import read_requests

    begin = time.monotonic()
    rows = _rows(options.child)
    requests = read_requests({"format": "cudnn_ct graphs 1", "graphs": list(rows.values())})
    where, facts = _device(options.described)
    for number, request in zip(rows, requests, strict=True):
        row: dict[str, Any] = {"number": number, "facts": facts}
        row |= _offers(request, where)
        if options.build and row["engines"] and time.monotonic() - begin < options.seconds:
            row["built"] = _built(request, where)
        print(json.dumps(row), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the destructors of the libraries may fail with a stub for a driver


_entered = ExitStack()  # the device of the process, which ends without leaving it


def _device(described: str) -> tuple[Any, dict[str, Any]]:
    """Return the context of the GPU or of a description, and the facts of the record."""
    from cudnn_ct import _lib, context
    from cudnn_ct.cuda import stream as streams
    from cudnn_ct.errors import CudnnError, format_version
    from cudnn_ct.graph.gpus import description_of
    from cudnn_ct.graph.offline import Planner, describe_device, gpu_name

    if described:
        _load_stub()
        where: Any = Planner(description_of(described))
        description = where.description
    else:
        stream = streams.current_stream()
        _entered.enter_context(streams.on_device(stream.device))
        where = context.current(stream)
        try:
            description = json.loads(describe_device(where))
        except (CudnnError, ValueError) as error:  # the record is of use without it
            description = {"error": str(error)}
    facts = {"device": gpu_name(where), "cudnn": format_version(_lib.load().version)}
    return where, {**facts, "planned": "described" if described else "device", "description": description}


def _load_stub() -> None:
    """Load the doctor's stub of the driver, and NVRTC, as the commands do in their child processes."""
    from cudnn_ct import _lib
    from cudnn_ct._dlopen import find_cudnn, open_library
    from cudnn_doctor import libraryset, sandbox

    libraries = libraryset.read(str(Path(find_cudnn().path or "").resolve().parent))
    assert libraries is not None
    ctypes.CDLL(f"/proc/self/fd/{sandbox.in_memory(libraries.driver_functions, planning=True)}")
    compiler = _lib.load().find_nvrtc()
    if compiler:
        open_library(Path(compiler))


def _offers(request: Any, where: Any) -> dict[str, Any]:
    """Return the engines that the heuristics have for a graph, as `supports` counts them."""
    from cudnn_ct.cli.compile_child import usable_candidates
    from cudnn_ct.errors import CudnnError

    try:
        rows = usable_candidates(request, where)
    except CudnnError as error:
        return {"status": "no", "engines": [], "reason": str(error).splitlines()[0][:300]}
    return {"status": "yes" if rows else "no", "engines": [row.algorithm for row in rows], "reason": ""}


def _built(request: Any, where: Any) -> str:
    """Make a plan of the first engine that becomes one; return "yes", or why none did."""
    from cudnn_ct.cli.compile_child import usable_candidates
    from cudnn_ct.errors import CudnnError
    from cudnn_ct.graph.engines import Engine, execution_plan
    from cudnn_ct.graph.native import operation_graph

    reason = ""
    for row in usable_candidates(request, where):
        try:
            execution_plan(operation_graph(request.graph, where), Engine.parse(row.algorithm), where)
        except CudnnError as error:
            reason = str(error).splitlines()[0][:200]
        else:
            return "yes"
    return f"no: {reason}"


# --- the comparison ----------------------------------------------------------------------------------------


def compare(recorded: dict[str, Any]) -> int:
    """Plan the recorded graphs for the description, print the agreement, and return the exit code."""
    import cudnn_ct as ct
    from cudnn_ct.errors import format_version

    have = format_version(ct.version())
    if have != recorded["cudnn"]:
        print(f"the record is of cuDNN {recorded['cudnn']}, this is {have}: install that version")
        return 2
    rows = {row["number"]: row for row in recorded["graphs"]}
    names = {number: row["name"] for number, row in _rows(list(rows)).items()}
    planned = _planned(list(rows))
    agree, same, differing = 0, 0, []
    for number, row in rows.items():
        mine, there = planned[number], row["status"]
        agree += mine["status"] == there
        same += mine["status"] == there == "yes" and mine["engines"] == len(row["engines"])
        if mine["status"] != there:
            differing.append(f"  {number} {names[number]}: supports {mine['status']}, device {there}")
            differing.append(f"    {mine['reason'] or row['reason']}"[:200])
    counts = Counter(row["status"] for row in rows.values())
    share = agree / len(rows) if rows else 0.0
    print(
        f"{recorded['device']}, cuDNN {have}: supports for the recorded H200 agrees with the device for "
        f"{agree} of {len(rows)} graphs ({share:.1%}); on the device {dict(counts)}; "
        f"{same} of {counts['yes']} supported graphs have the same number of engines"
    )
    built = [row["built"] for row in rows.values() if row.get("built")]
    if built:
        print(f"{built.count('yes')} of {len(built)} graphs whose first engines were tried became a plan")
    print("\n".join(differing))
    return 0 if share >= SHARE else 1


def _planned(numbers: list[int]) -> dict[int, dict[str, Any]]:
    """Return what `cudnn-ct supports` reports for graphs."""
    from cudnn_ct.cli.program import supported

    rows = _rows(numbers)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graphs.json"
        file.write_text(json.dumps({"format": "cudnn_ct graphs 1", "graphs": list(rows.values())}))
        (report,) = supported(file, ("h200",))
    found = zip(rows, report["graphs"], strict=True)
    return {number: {**row, "status": "yes" if row["engines"] else "no"} for number, row in found}


if __name__ == "__main__":
    sys.exit(main())
