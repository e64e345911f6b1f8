"""Write the part of docs/support.md that lists which operations compute with a JIT wheel.

python tools/jit_operations.py --plan     # plan the selftest with the JIT wheel that is found, and store it
python tools/jit_operations.py --plan lrn # the same for some operations, such as new ones
python tools/jit_operations.py            # write the page from benchmarks/results/jit.json
python tools/jit_operations.py --check    # exit 1 if the page is out of date

--plan needs no GPU: each call of `cudnn-ct selftest` is planned for a described one, as its first run would
be, and its engines are compiled. It takes some minutes. CUDNN_CT_LIBRARY names the wheel's libcudnn.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "support.md"
RESULTS = ROOT / "benchmarks" / "results" / "jit.json"
GPU = "h200"
SECONDS = 7200.0
# Operations that make no calls on shapes, and a function that each needs.
NOT_ON_SHAPES = {"RNN": "cudnnRNNForward", "ctc_loss": "cudnnCTCLoss_v8", "dropout": "cudnnDropoutForward"}
NEWEST = "libcudnn_ext"  # has the operations that need a newer cuDNN than the wheel's
COPIED = ("conv", "conv_backward_data", "conv_backward_filter", "conv_transpose")  # in NHWC where that helps
STUB = "CUDA driver is a stub library"  # the error of an engine that loads its kernels while it is planned
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from performance_docs import put  # noqa: E402
from support_matrix import _placed  # noqa: E402

Row = tuple[str, str, str]
"""An operation, a dtype, and why a call is not computed; empty if it is."""


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", nargs="*", metavar="OPERATION")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    if options.plan is not None:
        found = _with(found, planned(tuple(options.plan))) if options.plan else planned()
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    written = put(page, "jit", block(found), str(PAGE))
    if options.check:
        return 0 if written == page else 1
    PAGE.write_text(written, encoding="utf-8")
    return 0


def _with(stored: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return stored results with those of some operations in their place, if all are of one cuDNN."""
    if stored["cudnn"] != new["cudnn"]:
        raise SystemExit(f"the stored results are of cuDNN {stored['cudnn']}, these of {new['cudnn']}")
    needs = {name: library for name, library in stored["needs"].items() if name not in new["operations"]}
    operations = stored["operations"] | new["operations"]
    return stored | {"operations": operations, "needs": needs | new["needs"]}


# --- planning ----------------------------------------------------------------------------------------------


def planned(operations: tuple[str, ...] = (), dtypes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return how many calls have a plan, and the libraries that the others need; without names, of all."""
    from cudnn_ct.cli.offline import read_gpu, run_child

    request = {"device": read_gpu(GPU), "operations": operations, "dtypes": dtypes}
    answer = run_child("jit_operations", request, SECONDS)
    counts: dict[str, dict[str, list[int]]] = {}
    needs: dict[str, str] = {}
    for operation, dtype, reason in answer["rows"]:
        cell = counts.setdefault(operation, {}).setdefault(dtype, [0, 0, 0])
        cell[0] += not reason
        cell[1] += 1
        cell[2] += STUB in reason
        named = re.search(r"needs (libcudnn_\w+)", reason.replace("needs cuDNN >=", f"needs {NEWEST}"))
        if reason:
            needs.setdefault(operation, named.group(1) if named else reason.partition("\n")[0])
    needs = {name: library for name, library in needs.items() if not computes(counts[name])}
    return {"cudnn": answer["cudnn"], "gpu": GPU, "operations": counts, "needs": needs}


def computes(cells: dict[str, list[int]]) -> bool:
    """Return whether an operation has a plan for some call."""
    return any(cell[0] for cell in cells.values())


def answer() -> None:
    """Run as the child process."""
    from cudnn_ct.cli.offline import answer_with

    answer_with(_child)


def _child(request: dict[str, Any]) -> dict[str, Any]:
    from cudnn_ct.cli.selftest_cases import cases
    from cudnn_ct.graph.offline import Planner

    planner = Planner(request["device"])
    reasons: list[str] = []
    plan_first_runs(planner, reasons)
    rows: list[Row] = []
    for case in cases():
        if case.operation not in (request["operations"] or [case.operation]):
            continue
        if case.dtype not in (request["dtypes"] or [case.dtype]):
            continue
        del reasons[:]
        if function := NOT_ON_SHAPES.get(case.operation):
            reasons.append(f"{function} {planner.library.why_missing(function)}")
        else:
            for layout in dict.fromkeys((case.layout, "nhwc" if case.operation in COPIED else case.layout)):
                del reasons[:]
                _call(case, layout, reasons)
                if not any(reasons):
                    break
        rows.append((case.operation, case.dtype, "; ".join(filter(None, reasons))))
    return {"rows": rows, "cudnn": planner.library.version_text}


def _call(case: Any, layout: str, reasons: list[str]) -> None:
    """Make a call on arrays without memory in a layout; append the reason of cuDNN if it is rejected."""
    import cudnn_ct as ct

    inputs = case.inputs()
    try:
        with ct.record_plans(shapes_only=True):
            operands = [_placed(value, layout) for value in inputs.operands]
            keywords = {name: _placed(value, layout) for name, value in inputs.keywords.items()}
            getattr(ct, case.operation)(*operands, **keywords, **inputs.device_keywords)
    except ct.CudnnError as error:
        reasons.append(str(error))


def plan_first_runs(planner: Any, reasons: list[str]) -> None:
    """Replace the recording of calls on shapes: append why the first run of a call would be rejected."""
    from cudnn_ct import algo_cache, facts
    from cudnn_ct.graph.stored import NoPlan
    from cudnn_ct.ops import _implementations, _operation
    from cudnn_ct.ops._implementations import pieces_of
    from cudnn_ct.plans.base import SelectedPlan

    facts.ignore(["stored-blocks"])  # the GPU that computes a call compiles its kernels itself
    # Without a GPU, no capture can be disturbed.
    select = algo_cache.select

    def selected(problem: Any, source: Any, context: Any, wanted: Any) -> Any:
        if context is not planner:
            return select(problem, source, context, wanted)
        _compile(lambda shapes: select(problem, source, shapes, wanted), planner)
        no_plan: Any = NoPlan()
        return SelectedPlan(no_plan)

    setattr(algo_cache, "select", selected)  # noqa: B010 - mypy compares the types
    next_plan: Any = _implementations.FirstSupported._next
    _implementations.FirstSupported._next = next_plan.__wrapped__  # type: ignore[method-assign]
    _remember_engines()

    @cache
    def reason(op: Any, problem: Any, params: tuple[Any, ...], scaled: bool) -> str:
        for part in dict.fromkeys(part for part, _ in pieces_of(problem, op.independent)):
            try:
                _plan(op, part, params, scaled, planner)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        return ""

    def record(op: Any, problem: Any, params: tuple[Any, ...], scaled: tuple[bool, bool]) -> None:
        reasons.append(reason(op, problem, params, any(scaled)))

    _operation._record = record


def _plan(op: Any, problem: Any, params: tuple[Any, ...], scaled: bool, planner: Any) -> None:
    """Plan a problem as its first run would; raise the error of cuDNN if nothing computes it."""
    from cudnn_ct.errors import NotSupportedError
    from cudnn_ct.ops._implementations import FirstSupported, usable

    if op.compose and not scaled:
        _compile(lambda shapes: op.compose(problem, True, shapes), planner)
        return
    if op.select:
        try:
            _compile(op.select(problem, params), planner)
            return
        except NotSupportedError as error:
            if not usable(op.implementations, scaled=scaled):
                lacks = planner.library.lacks("engines_precompiled")
                raise NotSupportedError(f"{error}; an engine that only the full wheel has {lacks}") from None
    FirstSupported(problem, op.implementations, planner, scaled=scaled, relayout=op.relayout)


def _compile(select: Callable[[Any], Any], planner: Any) -> None:
    """Compile the graphs that are selected for a problem."""
    from cudnn_ct.cli.compile_child import compile_first
    from cudnn_ct.graph.offline import ShapesOnly
    from cudnn_ct.graph.recording import RecordedPlans, into

    recorded = RecordedPlans()
    with into(recorded):
        select(ShapesOnly())
    for request in recorded.requests.values():
        compile_first(request, planner)


def _remember_engines() -> None:
    """Compile each graph once: both layouts of a call have the same graphs."""
    from cudnn_ct.errors import NotSupportedError
    from cudnn_ct.graph import candidates

    known: dict[str, Any] = {}
    first_engine = candidates.first_engine

    def remembered(graph: Any, context: Any, *rest: Any) -> Any:
        text = repr((graph, rest[:1]))
        if text not in known:
            try:
                known[text] = first_engine(graph, context, *rest)
            except NotSupportedError as error:
                known[text] = error
        if isinstance(known[text], NotSupportedError):
            raise known[text]
        return known[text]

    setattr(candidates, "first_engine", remembered)  # noqa: B010


# --- the page ----------------------------------------------------------------------------------------------


def block(found: dict[str, Any]) -> str:
    """Return the generated part of the page."""
    operations = found["operations"]
    able = [name for name, cells in operations.items() if computes(cells)]
    lines = [
        f"With cuDNN {found['cudnn']} on `{found['gpu']}`:",
        f"{len(able)} of {len(operations)} operations compute.",
        "",
        "| operation | calls with a plan |",
        "|---|---|",
    ]
    for name in able:
        cells = [f"{dtype} {_word(*cell)}" for dtype, cell in operations[name].items()]
        lines.append(f"| `{name}` | {', '.join(cells)} |")
    lines += ["", "The others need a library that only the full wheel has:", ""]
    lines += ["| library | operations |", "|---|---|"]
    for library in sorted(set(found["needs"].values())):
        names = ", ".join(f"`{name}`" for name, one in found["needs"].items() if one == library)
        lines.append(f"| `{library}` | {names} |")
    return "\n".join(lines)


def _word(count: int, total: int, unknown: int) -> str:
    if unknown:
        return "unknown" if unknown == total else f"{count} of {total}, {unknown} unknown"
    return "all" if count == total else "none" if not count else f"{count} of {total}"


if __name__ == "__main__":
    sys.exit(main())
