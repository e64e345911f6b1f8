"""Calls that promise equal bits, repeated in two processes and compared by bits.

python -m tests.oracle.determinism --minutes 1 --jobs 8        # on a GPU
python -m tests.oracle.determinism --fakes --calls 200         # without a GPU, on the fakes
python -m tests.oracle.determinism --seed 7 --number 123       # one call again, as a finding prints it
python -m tests.oracle.determinism --only reduce --minutes 1   # one operation; --only "graph product", ...

Each call runs 20 times on the same operands, half of the runs while another stream is busy, and as often in
another process on operands of the same seed. A finding is a result with other bits, an error, or the end of a
process. The exit status is 1 if there is a finding. `determinism_draws` has the calls.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shlex
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

import cudnn_ct as ct

from .calls import made
from .children import Made, begin, finished, outcome_table, parser_of, serve
from .determinism_draws import GRAPHS, LARGE, Case, GraphCase, draw_case
from .devices import Device, Fakes
from .judge import operands_of
from .operands import lay_out, values_of
from .run import at_once, batches, share
from .without import take_out

__all__ = ["child", "main", "repeated", "run_of", "table"]

RUNS = 20
BATCH = {True: 50, False: 200}  # calls of a child, on the fakes and on a GPU
SECONDS = 120  # for one call
MODULE = "tests.oracle.determinism"
Run = Callable[[], dict[str, Any]]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    asked = begin(options, SECONDS) | {"only": options.only, "runs": options.runs}
    calls = 500 if options.calls is None and asked["end"] is None else options.calls
    pairs = max(1, options.jobs // 2)
    size = BATCH[options.fakes] if calls is None else min(BATCH[options.fakes], -(-calls // pairs))
    chosen = batches(calls, asked["end"], size)
    if options.number is not None:
        chosen = iter([(options.number, options.number + 1)])
    text, findings = table(asked["seed"], _in_pairs(asked, chosen, pairs), options.fakes, options.only)
    print(text)
    return int(findings > 0)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(MODULE, __doc__, "500", jobs=2)  # at least two processes run
    parser.add_argument("--fakes", action="store_true", help="on the fakes, without a GPU")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each call in each process")
    names = [*LARGE, *GRAPHS, "docstring"]
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="OPERATION")
    return parser


# --- the parent process ------------------------------------------------------------------------------------


def _in_pairs(asked: dict[str, Any], chosen: Iterator[tuple[int, int]], pairs: int) -> list[dict[str, Any]]:
    """Make each batch in two processes; return one row for each call, with the reports of both."""
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    lock = threading.Lock()

    def half(batch: tuple[int, int], process: int) -> None:
        for report in finished(MODULE, asked | {"process": process}, *batch):
            with lock:
                rows[report["number"]].append(report)

    def work(batch: tuple[int, int], pair: int) -> None:
        at_once([partial(half, batch, 2 * pair + side) for side in range(2)])

    share(chosen, work, pairs)
    return [joined(number, reports) for number, reports in sorted(rows.items())]


def joined(number: int, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a call: the first finding of two processes, or that their bits differ."""
    row = {"number": number, "call": reports[0]["call"], "outcome": "agrees"}
    outcomes = {one["outcome"] for one in reports}
    for outcome in ("finding", "out of memory", "not supported"):
        if outcome in outcomes:
            one = next(one for one in reports if one["outcome"] == outcome)
            return row | {"outcome": outcome, "detail": one.get("detail", "")}
    if len(reports) < 2:
        return row | {"outcome": "one process only"}
    first, second = (one["digests"] for one in reports)
    differing = [name for name in first if first[name] != second.get(name)]
    if differing:
        return row | {"outcome": "finding", "detail": f"two processes differ in {', '.join(differing)}"}
    return row


def table(
    seed: int, rows: list[dict[str, Any]], fakes: bool = False, only: Sequence[str] = ()
) -> tuple[str, int]:
    """Return the findings and a table of the outcomes by operation, and the number of findings."""
    flags = "".join(f" --only {shlex.quote(name)}" for name in only) + (" --fakes" if fakes else "")
    lines, counts = [], defaultdict(Counter)
    for row in rows:
        counts[row["call"].partition(":")[0]][row["outcome"]] += 1
        if row["outcome"] == "finding":
            command = f"python -m {MODULE} --seed {seed} --number {row['number']}{flags}"
            lines.append(f"FINDING {row['detail']}\n    {row['call']}\n    {command}")
    names = ("agrees", "finding", "not supported", "out of memory", "one process only")
    last = f"seed {seed}: {len(rows)} calls"
    lines += outcome_table("operation", counts, last, names, width=56, column=18)
    return "\n".join(lines), sum(found["finding"] for found in counts.values())


# --- a child process ---------------------------------------------------------------------------------------


def child() -> None:
    """Make the calls of a batch."""
    serve(_working)


@contextmanager
def _working(asked: dict[str, Any]) -> Iterator[Made]:
    take_out()
    with on_fakes() if asked["fakes"] else on_gpu() as (device, answers):

        def make(number: int) -> tuple[str, Callable[[], dict[str, Any]]]:
            case = draw_case(asked["seed"], number, device.kind, asked["only"])
            return str(case), lambda: judged(case, device, answers, asked["runs"])

        yield make


@contextmanager
def on_fakes() -> Iterator[tuple[Device, dict[str, Any]]]:
    """Yield the fakes and answers by loops."""
    from tests.fake.installed import cudnn_installed, host_installed

    from .by_loops import ANSWERS

    with host_installed() as host, cudnn_installed(host) as fake:
        fake.engines = True
        yield Fakes(host), ANSWERS


@contextmanager
def on_gpu() -> Iterator[tuple[Device, dict[str, Any]]]:
    """Yield the GPU and answers by PyTorch on the CPU."""
    import torch

    from . import by_torch

    torch.set_num_threads(1)
    by_torch.DEVICE = "cpu"
    yield Plain(), by_torch.ANSWERS


class Plain(Device):
    """A GPU with arrays of the package alone."""

    kind = "gpu"

    def __init__(self) -> None:
        import torch

        self._library, self._noise = torch, torch.ones(2**22, device="cuda")
        self._side = torch.cuda.Stream()

    def settle(self) -> None:
        """Wait for the work of this thread."""
        ct.synchronize()

    def disturb(self) -> None:
        """Keep part of the multiprocessors busy on another stream for a moment."""
        with self._library.cuda.stream(self._side):
            for _ in range(random.randrange(1, 8)):
                self._noise.mul_(1.0)


def judged(case: Case, device: Device, answers: dict[str, Any], runs: int) -> dict[str, Any]:
    """Run a case several times; report the digests of its results, or that they vary."""
    ct.config.deterministic = case.asked == "config"
    try:
        run = run_of(case, device, answers)
        digests, varying = repeated(run, device, runs)
    finally:
        ct.config.deterministic = False
    if varying:
        return {"outcome": "finding", "detail": "; ".join(varying)}
    return {"outcome": "agrees", "digests": digests}


def repeated(run: Run, device: Device, runs: int) -> tuple[dict[str, str], list[str]]:
    """Return the digests of the results of the first run, and a line for each result that varies."""
    disturb = getattr(device, "disturb", lambda: None)
    first: dict[str, np.ndarray] = {}
    seen: dict[str, set[bytes]] = defaultdict(set)
    apart: dict[str, float] = defaultdict(float)
    for at in range(runs):
        if at % 2:
            disturb()
        for name, array in run().items():
            host = np.ascontiguousarray(array.numpy())
            if not at:
                first[name] = host
            elif host.tobytes() != first[name].tobytes():
                seen[name].add(host.tobytes())
                with np.errstate(all="ignore"):
                    gap = np.abs(host.astype(np.float64) - first[name].astype(np.float64))
                apart[name] = max(apart[name], float(np.nanmax(gap, initial=0.0)))
    digests = {name: hashlib.sha256(array.tobytes()).hexdigest()[:32] for name, array in first.items()}
    return digests, [
        f"{name} has {1 + len(others)} different results in {runs} runs, up to {apart[name]:.3g} apart"
        for name, others in seen.items()
    ]


def run_of(case: Case, device: Device, answers: dict[str, Any]) -> Run:
    """Place the operands of a case, and return a function that makes the call in new memory."""
    if case.graph is not None:
        return _built(case.graph, device, deterministic=True if case.asked == "argument" else None)
    call = case.call
    assert call is not None
    laid = operands_of(call, answers).laid
    arrays = {name: device.place(call.operands[name], one).array for name, one in laid.items()}
    device.settle()
    return lambda: made(call, arrays, dict(call.arguments), {})


def _built(case: GraphCase, device: Device, deterministic: bool | None) -> Run:
    graph, tensors = ct.Graph(), {}
    for name, tensor in case.operands.items():
        layout = "nhwc" if tensor.order else None
        tensors[name] = graph.input(tensor.shape, tensor.dtype, name=name, layout=layout)
    outputs = KINDS[case.kind](graph, tensors, case.arguments)
    function = graph.build(*outputs, algo="heuristic", deterministic=deterministic)
    arrays = {
        name: device.place(tensor, lay_out(tensor, values_of(tensor))).array
        for name, tensor in case.operands.items()
    }
    device.settle()

    def run() -> dict[str, Any]:
        found = function(**arrays)
        found = found if isinstance(found, tuple) else (found,)
        return {f"output {place}": array for place, array in enumerate(found)}

    return run


def _reduced(graph: Any, x: Any, facts: dict[str, Any], *, both: Any) -> tuple[Any, ...]:
    """Reduce a tensor after an elementwise operation, and return the result of that too if ``both``."""
    steps = {"": lambda: x, "relu": lambda: graph.relu(x), "square": lambda: x * x, "scale": lambda: x * 0.5}
    y = steps[facts["after"]]()
    total = graph.reduce(y, facts["op"], facts["axes"])
    return (total, y) if both else (total,)


def _product(graph: Any, tensors: Any, facts: dict[str, Any]) -> tuple[Any, ...]:
    return _reduced(graph, graph.matmul(tensors["a"], tensors["b"]), facts, both=facts["both"])


def _rows(graph: Any, tensors: Any, facts: dict[str, Any]) -> tuple[Any, ...]:
    return _reduced(graph, tensors["x"], facts, both=facts["both"] and facts["after"])


def _convolution(graph: Any, tensors: Any, facts: dict[str, Any]) -> tuple[Any, ...]:
    x, w, padding = tensors["x"], tensors["w"], facts["padding"]
    if facts["kind"] == "filter":
        filters, channels = w.shape[1], x.shape[1]
        return (
            graph.conv_backward_filter(w, x, (filters, channels, *2 * (facts["window"],)), padding=padding),
        )
    y = graph.conv(x, w, padding=padding)
    if facts["kind"] == "stats":
        return (y, *graph.gen_stats(y))
    return (graph.reduce(y, "add", (0, 2, 3)),)


def _norm(graph: Any, tensors: Any, facts: dict[str, Any]) -> tuple[Any, ...]:
    names = ("dy", "x", "scale", "mean", "invstd")
    found = graph.norm_backward(*(tensors[name] for name in names), mode=facts["mode"])
    return tuple(one for one in found if one is not None)


KINDS = {"product": _product, "rows": _rows, "convolution": _convolution, "norm": _norm}

if __name__ == "__main__":
    sys.exit(main())
