"""``cudnn-ct algorithms``: list the algorithms and engines of cuDNN for one convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

import cudnn_ct as ct

from .._config import config
from ..errors import Explanation
from ..graph.gpus import DERIVED_NOTE, is_derived
from ..plans.base import Candidate
from ..shapes.conv import ROLES
from .device import name_here
from .errors import need_gpu, plainly, usage
from .offline import GPU_HELP, naming, plan, read_gpu
from .options import Convolution, convolution_options
from .random_array import some
from .table import Column, say, say_json, say_lines, show

__all__ = ["command", "operands_of"]

SKIPPED = "legacy algorithms are skipped: they need a handle, which needs the GPU itself"

COLUMNS: tuple[Column, ...] = (
    ("us", True), ("workspace", True), ("algorithm", False), ("math", False), ("notes", False),
)  # fmt: skip


@click.command(name="algorithms")
@convolution_options
@click.option("--no-timing", is_flag=True, help="List the algorithms without timing them.")
@click.option("--device", metavar="GPU", help=f"Plan without a GPU, for one that is described. {GPU_HELP}")
@click.option("--explain", "explained", is_flag=True, help="Print why engines reject the convolution.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@plainly
def command(
    convolution: Convolution, no_timing: bool, device: str | None, explained: bool, as_json: bool
) -> None:
    """List all algorithms and engines for one convolution, timed on this GPU.

    With --device, cuDNN plans for a GPU that is only described, by a name or by a file that `cudnn-ct device
    --export` wrote. The list then has notes and workspace but no times, and needs no GPU. Needs cuDNN >= 9.8.

    With --explain, the reasons of the engines that reject the convolution follow, in plain words and in
    cuDNN's, and changes of the convolution that an engine supports.

    Example: cudnn-ct algorithms --x 32,64,56,56 --w 64,64,3,3 --padding 1 --dtype float16 --layout nhwc
    """
    if device is None:
        need_gpu("--device FILE plans for a described GPU")
        rows = _on_gpu(convolution, not no_timing)
        where = name_here()
    else:
        rows, where = _planned(convolution, device)
    explanation = _explained(convolution, device) if explained else None
    problem = str(convolution.problem(config.allow_tf32))
    if as_json:
        report = {
            "schema": 1,
            "problem": problem,
            "device": where,
            "planned": device is not None,
            "rows": [_plain(row) for row in rows],
            "skipped": [] if device is None else [SKIPPED],
        }
        if explanation is not None:
            report["explanation"] = {
                "supported": explanation.supported,
                "changes": explanation.changes,
                "reasons": [reason._asdict() for reason in explanation.reasons],
            }
        say_json(report)
        return
    say(problem)
    say(f"on {where}{'' if device is None else ', planned without a GPU'}")
    say()
    timed = any(row.time_ms is not None for row in rows)
    show(COLUMNS[not timed :], [_cells(row)[not timed :] for row in rows])
    if device is not None:
        say()
        say(SKIPPED)
    if explanation is not None:
        say()
        say_lines(explanation)


def operands_of(convolution: Convolution) -> tuple[Any, Any, tuple[int, ...] | None]:
    """Allocate the operands of a convolution, and return them with the shape of its gradient."""
    *inputs, result = ROLES[convolution.direction].operands
    shapes = convolution.shapes
    first, second = (
        some(shapes[name], convolution.dtype, convolution.layout, seed) for seed, name in enumerate(inputs)
    )
    return first, second, None if convolution.direction == "forward" else shapes[result]


def _on_gpu(convolution: Convolution, measure: bool) -> Sequence[Candidate]:
    return ct.conv_algorithms(
        *operands_of(convolution),
        direction=convolution.direction,
        measure=measure,
        precision=convolution.precision,
        **convolution.geometry,
    )


def _planned(convolution: Convolution, path: str) -> tuple[list[Candidate], str]:
    with usage(), naming(path):
        description = read_gpu(path)
        (rows,) = plan(description, [convolution])
    where = str(description.get("deviceName", "an unnamed device"))
    return rows, f"{where} ({DERIVED_NOTE})" if is_derived(path) else where


def _explained(convolution: Convolution, device: str | None) -> Explanation:
    problem = convolution.problem(config.allow_tf32)
    return ct.explain(problem, device=device)


def _cells(row: Candidate) -> list[str]:
    time = "-" if row.time_ms is None else f"{row.time_ms * 1000:.1f}"
    copies = [f"{operand} copied to {layout}" for operand, layout in row.relayout]
    varies = [] if row.deterministic or "nondeterministic" in row.notes else ["nondeterministic"]
    rejected = f"rejected: {row.rejected.splitlines()[0]}" if row.rejected else ""
    notes = "; ".join(filter(None, [", ".join([*copies, *varies, *row.notes]), rejected]))
    return [time, f"{row.workspace:,}", f"{row.backend} {row.algorithm}", row.math, notes]


def _plain(row: Candidate) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name != "problem"}
