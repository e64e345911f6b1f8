"""``cudnn-ct algorithms`` and ``device``: the algorithms for one convolution, and the GPU that has them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

import cudnn_ct as ct
from cudnn_doctor.read.gpus import one_described

from .. import context
from .._algorithm_names import with_knob_names
from .._config import config
from ..array import DeviceArray
from ..array_creation import asarray
from ..cuda import stream as streams
from ..dtypes import as_dtype
from ..errors import AllocationError
from ..graph import offline
from ..graph.gpus import DERIVED_NOTE, is_derived
from ..plans.base import Candidate
from ..shapes.conv import ROLES
from ..typing import Layout
from .offline import gpu_option, naming, plan, read_gpu
from .options import OUTPUT, Convolution, convolution_options, json_option
from .output import WIDTH, Column, counted, in_bytes, need_gpu, say, say_json, say_lines, show, usage

# --- random array ------------------------------------------------------------------------------------------

BLOCK = 1 << 20  # numbers that are drawn, and then repeated


def some(shape: Sequence[int], dtype: str, layout: Layout = "nchw", seed: int = 0) -> DeviceArray:
    """Allocate random numbers, because constants use less power; AllocationError if they do not fit."""
    rng = np.random.default_rng(seed)
    block = rng.integers(-128, 128, BLOCK) if dtype == "int8" else rng.standard_normal(BLOCK, np.float32)
    block = block.astype(as_dtype(dtype).numpy)
    own = layout if 3 <= len(shape) <= 5 else None
    try:
        host = np.resize(block, tuple(shape))  # repeats the block
    except (MemoryError, ValueError, OverflowError) as error:  # the latter two for sizes beyond any memory
        raise AllocationError(f"an array of shape {tuple(shape)} in {dtype}: {error}") from None
    return asarray(host, layout=own)


# --- command -----------------------------------------------------------------------------------------------

SKIPPED = "legacy algorithms are skipped: they need a handle, which needs the GPU itself"

COLUMNS: tuple[Column, ...] = (
    ("#", True), ("time", True), ("ratio", True), ("workspace", True), ("algorithm", False),
    ("math, knobs and notes", False),
)  # fmt: skip


@click.command(name="algorithms")
@convolution_options
@click.option("--no-timing", is_flag=True, help="List the algorithms without timing them.")
@click.option("--top", metavar="N", type=click.IntRange(min=1), help="List only the first N.")
@gpu_option
@click.option("--explain", "explained", is_flag=True, help="Print why engines reject the convolution.")
@json_option
def algorithms_command(
    convolution: Convolution,
    no_timing: bool,
    top: int | None,
    gpu: str | None,
    explained: bool,
    as_json: bool,
) -> None:
    """List all algorithms and engines for one convolution, timed on this GPU.

    The ratio is the time relative to the fastest. `algo=` takes an engine by its name and its knobs:
    "engine 62 knobs tile_size=5, tilek=1".

    With --gpu, cuDNN plans for a GPU that is only described, by a name or by a file that `cudnn-ct device
    --export` wrote. The list then has notes and workspace but no times, and needs no GPU. Needs cuDNN >= 9.8.

    With --explain, the reasons of the engines that reject the convolution follow, in plain words and in
    cuDNN's, and changes of the convolution that an engine supports.

    Example: cudnn-ct algorithms --x 32,64,56,56 --w 64,64,3,3 --padding 1 --dtype float16 --layout nhwc
    """
    rows: Sequence[Candidate]
    if gpu is None:
        need_gpu("--gpu plans for a described GPU")
        settings = {"direction": convolution.direction, "precision": convolution.precision}
        timed = {"measure": not no_timing, **settings, **convolution.geometry}
        rows, where = ct.conv_algorithms(*operands_of(convolution), **timed), name_here()
    else:
        rows, where = _planned(convolution, gpu)
    problem = convolution.problem(config.allow_tf32)
    explanation = ct.explain(problem, device=gpu) if explained else None
    if as_json:
        plain = [row._asdict() for row in rows[:top]]
        report = {
            "schema": 1,
            "problem": str(problem),
            "device": where,
            "planned": gpu is not None,
            "rows": [{name: value for name, value in row.items() if name != "problem"} for row in plain],
            "skipped": [] if gpu is None else [SKIPPED],
        }
        if explanation is not None:
            report["explanation"] = {
                "supported": explanation.supported,
                "changes": explanation.changes,
                "reasons": [reason._asdict() for reason in explanation.reasons],
            }
        say_json(report)
        return
    _say_folded(problem)
    say(f"on {where}{'' if gpu is None else ', planned without a GPU'}")
    say()
    fastest = min((row.time_ms for row in rows if row.time_ms is not None), default=None)
    cells = [[str(rank), *_cells(row, fastest)] for rank, row in enumerate(rows[:top], 1)]
    show(COLUMNS, cells, WIDTH)
    if len(rows) > len(cells):
        say(f"and {counted(len(rows) - len(cells), 'other')}, which are not listed because of --top")
    if gpu is not None:
        say()
        say(SKIPPED)
    if explanation is not None:
        say()
        _say_folded(explanation)


def operands_of(convolution: Convolution) -> tuple[Any, Any, tuple[int, ...] | None]:
    """Allocate the operands of a convolution, and return them with the shape of its gradient."""
    *inputs, result = ROLES[convolution.direction].operands
    shapes = convolution.shapes
    first, second = (
        some(shapes[name], convolution.dtype, convolution.layout, seed) for seed, name in enumerate(inputs)
    )
    return first, second, None if convolution.direction == "forward" else shapes[result]


def _say_folded(text: object) -> None:
    """Print each line of a text, folded at the width of a narrow terminal."""
    for line in str(text).splitlines():
        for part in textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False):
            say(part)


def _planned(convolution: Convolution, path: str) -> tuple[list[Candidate], str]:
    with usage(), naming(path):
        path = one_described(path)
        description = read_gpu(path)
        (rows,) = plan(description, [convolution])
    where = str(description.get("deviceName", "an unnamed device"))
    return rows, f"{where} ({DERIVED_NOTE})" if is_derived(path) else where


def _cells(row: Candidate, fastest: float | None) -> list[str]:
    """Return the cells after the rank: long texts are in the last one, which is folded."""
    time = f"{row.time_ms * 1000:.1f} us" if row.time_ms is not None else "-"
    ratio = f"{row.time_ms / fastest:.2f}" if row.time_ms is not None and fastest else "-"
    name, _, knobs = with_knob_names(row.algorithm).partition(" knobs ")
    copies = [f"{operand} copied to {layout}" for operand, layout in row.relayout]
    varies = [] if row.deterministic or "nondeterministic" in row.notes else ["nondeterministic"]
    rejected = f"rejected: {row.rejected.splitlines()[0]}" if row.rejected else ""
    notes = [row.math, knobs.replace(",", ", "), ", ".join([*copies, *varies, *row.notes]), rejected]
    cells = [time, ratio, in_bytes(row.workspace), f"{row.backend} {name}"]
    return [*cells, "; ".join(filter(None, notes))]


# --- device -------------------------------------------------------------------------------------------------


STDOUT = "-"


@click.command(name="device")
@click.option(
    "--export",
    is_flag=False,
    flag_value=STDOUT,
    type=OUTPUT,
    metavar="[FILE]",
    help="Write cuDNN's description of the GPU to FILE, or to stdout.",
)
def device_command(export: str | None) -> None:
    """Name this GPU, or export its description to plan for it on other machines.

    `compile`, `supports` and `algorithms` read the description with --gpu. cuDNN writes
    it; needs cuDNN >= 9.8.
    """
    need_gpu()
    stream = streams.current_stream()
    if export is None:
        say(f"{name_here()}, device {stream.device}")
        return
    with streams.on_device(stream.device):
        text = offline.describe_device(context.current(stream))
    if export == STDOUT:
        say_lines(text)
        return
    with open(export, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
    say(f"wrote {export}", err=True)


def name_here() -> str:
    """Return the name of the current device."""
    return streams.device_name(streams.current_stream().device)
