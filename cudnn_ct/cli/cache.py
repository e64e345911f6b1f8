"""``cudnn-ct cache`` and ``report``: the folder of tuned algorithms, compiled plans and certificates."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from .. import __version__
from .._algorithm_names import with_knob_names
from .._cache_files import replace_file
from .._config import config
from ..autotune.store import Store, export_algo_cache, import_algo_cache, store
from ..certify.certificates import wrong_engines
from ..errors import caller_from, format_version
from ..graph.exchange import export_plans, import_to
from ..graph.plan_store import DESCRIPTION, DEVICE, UNIT, PlanStore, StoredPlan, folder_store
from .options import OUTPUT, json_option
from .output import FAILED, NOTHING, fail, in_bytes, note, say, say_json, show, usage

COLUMNS = (
    ("time", True), ("algorithm", False), ("operation", False), ("line", False), ("cuDNN", False),
    ("GPU", False), ("operands", False),
)  # fmt: skip
PLAN_COLUMNS = (
    ("size", True), ("engine", False), ("operation", False), ("line", False), ("cuDNN", False),
    ("GPU", False), ("made on", False),
)  # fmt: skip
REPORT_COLUMNS = (("engine", False), ("cuDNN", False), ("GPU", False), ("finding", False))
PLAN_KEYS = ("bytes", "engine", "operation", "line", "cudnn", "gpu", "origin", "unit")
FORMAT = "cudnn_ct report 1"
OPERAND = re.compile(r"(\w+)=TensorSpec\(shape=\(([\d, ]*)\), strides=\([\d, ]*\), dtype='(\w+)'")
OFF = "the algorithm cache is disabled: CUDNN_CT_ALGO_CACHE is off"


@click.group(name="cache")
def cache_command() -> None:
    """Show, clear, export or import the algorithms and plans that this machine has tuned and compiled."""


@cache_command.command()
def path() -> None:
    """Print the path of the folder."""
    here = store().path
    if here is None:
        fail(OFF, NOTHING)
    say(here)


@cache_command.command("show")
@json_option
def show_(as_json: bool) -> None:
    """List the fastest algorithm of each problem and GPU, and the compiled plans."""
    kept, plans = store(), folder_store()
    choices = kept.export()
    compiled = [] if kept.failed else [plan for plan in plans.entries() if plan.text]
    if as_json:
        found = [dict(zip(PLAN_KEYS, _facts(one), strict=True)) for one in compiled]
        report = {"schema": 2, "path": kept.path and str(kept.path), "choices": choices, "plans": found}
        say_json(report)
    elif kept.path is None:
        fail(OFF, NOTHING)
    elif choices or not kept.failed:
        say(f"{kept.path}: {len(choices)} tuned algorithms")
        if choices:
            show(COLUMNS, [_cells(key, choice) for key, choice in choices.items()])
        if compiled:
            total = sum(len(plan.text) for plan in compiled)
            say(f"{plans.path}: {len(compiled)} compiled plans, {in_bytes(total)}")
            show(PLAN_COLUMNS, [_plan_cells(*facts) for facts in map(_facts, compiled)])
    _end(kept, plans)


@cache_command.command()
def clear() -> None:
    """Delete all tuned algorithms and compiled plans."""
    kept, plans = store(), folder_store()
    if kept.path is None:
        fail(OFF, NOTHING)
    had = len(kept.export())
    kept.clear()
    left = len(kept.export())
    _end(kept)
    compiled = sum(bool(plan.text) for plan in plans.entries())
    plans.failed = False  # a damaged plan can be deleted
    plans.clear()
    if plans.failed or plans.entries():
        fail(f"compiled plans remain in {plans.path}")
    if left:
        fail(f"{left} tuned algorithms remain in {kept.path}")
    more = f" and {compiled} compiled plans" if compiled else ""
    say(f"deleted {had} tuned algorithms{more}")


@cache_command.command("export")
@click.argument("file", type=OUTPUT)
def export_(file: str) -> None:
    """Write the tuned algorithms to FILE, for other machines with this GPU and cuDNN."""
    say(f"wrote {export_algo_cache(file)} tuned algorithms to {file}")


@cache_command.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def import_(file: str) -> None:
    """Read tuned algorithms from FILE of `cudnn-ct cache export`, replacing those of the same problems."""
    with usage():
        count = import_algo_cache(file)
    if store().path is None:
        fail(OFF)
    _end(store())
    say(f"imported {count} tuned algorithms from {file}")


@cache_command.command("export-plans")
@click.argument("file", type=OUTPUT)
def export_plans_(file: str) -> None:
    """Write the compiled plans to FILE, for other machines with this GPU and cuDNN."""
    count = export_plans(file)
    say(f"wrote {count} compiled plans to {file}")
    if not count:
        note(f"{file} has no plans to import: {f'{store().path} has none' if store().path else OFF}")
    _end(folder_store())


@cache_command.command("import-plans")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def import_plans_(file: str) -> None:
    """Read compiled plans from FILE. They are machine code: import only files that you trust."""
    if folder_store().path is None:
        fail(OFF)
    if os.path.isfile(file) and not os.path.getsize(file):  # `export-plans` writes it if there are no plans
        fail(f"{file} is empty: it has no compiled plans")
    with usage():
        kept = import_to(folder_store(), file)
    _end(folder_store())
    if not kept:
        fail(f"nothing was imported: {file} has no compiled plans for this cuDNN and these GPUs")
    count = sum(bool(entry.text) for entry in kept)
    unused = "" if config.plan_cache or not count else "; calls do not use them, because plan_cache is off"
    say(f"imported {count} compiled plans from {file}{unused}")


def _plan_cells(size: int, *facts: str) -> list[str]:
    """Return the cells of a plan; one for a GPU alone has the first digits of its UUID."""
    *rest, origin, unit = facts
    return [in_bytes(size), *rest, f"{origin} {unit[:8]}".strip()]


def _facts(plan: StoredPlan) -> tuple[int, str, str, str, str, str, str, str]:
    """Return the values of `PLAN_KEYS` for a plan, as far as it can be read."""
    _, cudnn, gpu, *_ = [*plan.key.split(" | "), "", "", ""]
    row = plan.facts.get("candidate")
    engine = str(row.get("algorithm", "")) if isinstance(row, dict) else ""
    origin = DEVICE if plan.from_device else DESCRIPTION
    call = caller_from(str(plan.facts.get("call", "")))
    unit = str(plan.facts.get(UNIT, ""))  # the only GPU that uses the plan
    return len(plan.text), with_knob_names(engine), *call, cudnn.removeprefix("cuDNN "), gpu, origin, unit


def _end(*stores: Store | PlanStore) -> None:
    """Exit with an error if a warning has reported that the folder or a file in it is not usable."""
    if any(one.failed for one in stores):
        sys.exit(FAILED)


def _cells(key: str, choice: dict[str, Any]) -> list[str]:
    """Return the cells of a record, as far as it can be read: its file may be malformed."""
    version, device, problem, *_ = [*key.split(" | "), "", ""]
    rows = choice.get("rows")
    best = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
    name = with_knob_names(" ".join(str(best.get(part, "")) for part in ("backend", "algorithm")))
    rejected = f" ({best['rejected']})" if best.get("rejected") else ""
    time = _microseconds(best.get("time_ms"))
    call, version = caller_from(str(choice.get("call", ""))), version.removeprefix("cuDNN ")
    found = [f"{name} {dtype}[{shape.rstrip(',')}]" for name, shape, dtype in OPERAND.findall(problem)]
    kind = problem.partition("(")[0].removesuffix("Problem").lower() if found else ""
    if version.isdecimal() and len(version) < 9:
        version = format_version(int(version))
    return [
        time, f"{name}{rejected}".strip(), call.operation or kind, call.line, version, device,
        ", ".join(found) or problem,
    ]  # fmt: skip


def _microseconds(milliseconds: object) -> str:
    try:
        return f"{float(milliseconds) * 1000:.1f} us" if isinstance(milliseconds, int | float) else "-"
    except OverflowError:  # JSON has integers that no float holds
        return "-"


# --- report ------------------------------------------------------------------------------------------------


@click.command(name="report")
@click.argument("path", default="cudnn-ct-report.json", type=OUTPUT)
def report_command(path: str) -> None:
    """Write the engines whose results differed from a second opinion to PATH, for a bug report.

    The file has the graph, the engine, the difference, the versions and the GPU, and nothing else of this
    machine.
    """
    if folder_store().path is None:
        fail("certificates are not kept: CUDNN_CT_ALGO_CACHE is off", NOTHING)
    rows = wrong_engines()
    if not rows:
        say("no engine has computed a wrong result on this machine: nothing is written")
        return
    report = {"format": FORMAT, "cudnn_ct": __version__, "engines": rows}
    replace_file(Path(path), (json.dumps(report, indent=1) + "\n").encode())
    show(REPORT_COLUMNS, [[row["engine"], row["cudnn"], row["gpu"], row["finding"]] for row in rows])
    say(f"{len(rows)} written to {path}")
