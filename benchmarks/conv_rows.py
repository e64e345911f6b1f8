"""Measurement of a row: its operands, its contenders, and the algorithms that they chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import conv_layers
from conv_layers import DIRECTIONS, Row
from conv_report import ROW_LIMIT
from harness.operands import Array, Operands, operands_or_reason
from harness.results import Record, explain, room_for
from harness.text import line_of
from harness.timing import Call, Contender, lost_context, race

import cudnn_ct as ct

POLICIES = {"guess": None, "time": "autotune"}
CONTENDERS = ("torch_benchmark", "torch", "guess", "time")  # in the order in which they run
# The autotuned choice of a problem comes before the heuristic one, so that its first call is a cold one.
FIRST_CALLS = ("torch_benchmark", "torch", "time", "guess", "torch_eager", "torch_fused")

ROLES = {  # two inputs and the result, in the order of our arguments
    "forward": ("x", "w", "y"),
    "backward_data": ("y", "w", "x"),
    "backward_filter": ("y", "x", "w"),
}
FUNCTIONS = dict(zip(DIRECTIONS, ("conv", "conv_backward_data", "conv_backward_filter"), strict=True))
CANDIDATE = (
    "backend", "algorithm", "math", "workspace", "deterministic", "relayout", "notes", "rejected", "time_ms",
)  # fmt: skip


def row_record(row: Row, wanted: Sequence[str]) -> Record:
    """Measure a row."""
    record = facts(row)
    operands = operands_of(row, record)
    if operands is None:
        return record
    contenders = {
        "torch_benchmark": Contender(torch_call(row, operands), benchmark=True),
        "torch": Contender(torch_call(row, operands), benchmark=False),
        **{name: Contender(our_call(row, operands, policy)) for name, policy in POLICIES.items()},
    }
    contenders = {name: contenders[name] for name in wanted}
    race(record, contenders, operands.count, first=FIRST_CALLS, limit=ROW_LIMIT)
    record["choice"] = {
        name: chosen(row, operands, POLICIES[name]) for name in contenders if name in POLICIES
    }
    return record


def new_record(row: Row) -> Record:
    """Measure the first autotune call of a row without runtime compilation, and the time of its choice."""
    record = facts(row, "new")
    operands = operands_of(row, record)
    if operands is None:
        return record
    before, ct.config.allow_runtime_compilation = ct.config.allow_runtime_compilation, False
    try:
        contender = Contender(our_call(row, operands, POLICIES["time"]))
        return race(record, {"time": contender}, operands.count)
    finally:
        ct.config.allow_runtime_compilation = before


def candidates_record(row: Row) -> Record:
    """Measure all candidates of a row, in the order of `cudnn_ct.conv_algorithms`."""
    record = facts(row, "candidates")
    operands = operands_of(row, record)
    if operands is None:
        return record
    first, second, out = (operands.ours[role][0] for role in ROLES[row.direction])
    more = {"direction": row.direction, "precision": row.kind.precision, "measure": True, "out": out}
    try:
        table = list(ct.conv_algorithms(first, second, result_shape(row), **more, **row.layer.geometry))
    except Exception as error:
        record["errors"]["candidates"] = explain(error)
        record["lost"] = lost_context()
        return record
    rows = ({name: getattr(one, name, None) for name in CANDIDATE} for one in table)
    record["candidates"] = [{"order": order, **one} for order, one in enumerate(rows)]
    return record


def candidates_line(record: Record) -> str:
    """Return a line on a table of candidates."""
    found = [f"{len(record['candidates'])} candidates"] if "candidates" in record else []
    return line_of(record, *found)


def chosen(row: Row, operands: Operands, policy: str | None) -> str:
    """Return the candidate that a policy chose for a row, or the error."""
    first, second, out = (operands.ours[role][0] for role in ROLES[row.direction])
    more = {"direction": row.direction, "precision": row.kind.precision, "algo": policy, "out": out}
    try:
        plan = ct.conv_plan(first, second, result_shape(row), **more, **row.layer.geometry)
        return str(plan.candidate)
    except Exception as error:
        return explain(error)


def facts(row: Row, section: str = "rows") -> Record:
    """Return a new record with the facts of a row."""
    layer, key = row.layer, f"fused {row.id}" if section == "fused" else row.id
    which = {"networks": layer.networks, "direction": row.direction, "kind": row.kind.name, "half": row.half}
    return room_for(section, key, **which, x=layer.x, w=layer.w, **layer.geometry)


def warm_up() -> None:
    """Measure a small row, so that every contender creates its first plan before the measurements."""
    row = conv_layers.rows(networks=["resnet50-b1"], kinds=["fp16"], directions=["forward"])[0]
    small = row.layer._replace(x=(2, 16, 32, 32), w=(16, 16, *row.layer.w[2:]))
    row_record(row._replace(layer=small), CONTENDERS)


def operands_of(row: Row, record: Record) -> Operands | None:
    """Set PyTorch's TF32 flag, and allocate the operands of a row or store the reason in the record."""
    import torch

    torch.backends.cudnn.allow_tf32 = row.kind.tf32
    shapes = {"x": row.layer.x, "w": row.layer.w, "y": row.layer.y}
    result, kind = ROLES[row.direction][-1], row.kind
    arrays = {
        role: Array(shape, kind.dtype, kind.nhwc, empty=role == result) for role, shape in shapes.items()
    }
    return operands_or_reason(arrays, record)


def torch_call(row: Row, operands: Operands) -> Call:
    """Return PyTorch's convolution, which keeps each result until the next use of its operands."""
    import torch

    xs, ws, dys = (operands.theirs[role] for role in ("x", "w", "y"))
    outs: list[Any] = [None] * operands.count
    padding, stride, dilation, groups = geometry(row)
    convolve = getattr(torch.nn.functional, f"conv{len(stride)}d")
    differentiate = torch.ops.aten.convolution_backward.default
    zeros = (0,) * len(stride)
    mask = (row.direction == "backward_data", row.direction == "backward_filter", False)

    def forward(i: int) -> None:
        outs[i] = convolve(xs[i], ws[i], None, stride, padding, dilation, groups)

    def backward(i: int) -> None:
        outs[i] = differentiate(
            dys[i], xs[i], ws[i], None, stride, padding, dilation, False, zeros, groups, mask
        )

    return forward if row.direction == "forward" else backward


def our_call(row: Row, operands: Operands, policy: str | None) -> Call:
    """Return the convolution of cudnn_ct, which writes into rotating results."""
    a, b, out = (operands.ours[role] for role in ROLES[row.direction])
    run = getattr(ct, FUNCTIONS[row.direction])
    pad, step, spread, groups = geometry(row)
    exact, shape = row.kind.precision, result_shape(row)

    def forward(i: int) -> None:
        run(
            a[i], b[i], out=out[i],
            padding=pad, stride=step, dilation=spread, groups=groups, precision=exact, algo=policy,
        )  # fmt: skip

    def backward(i: int) -> None:
        run(
            a[i], b[i], shape, out=out[i],
            padding=pad, stride=step, dilation=spread, groups=groups, precision=exact, algo=policy,
        )  # fmt: skip

    return forward if shape is None else backward


def geometry(row: Row) -> tuple[Any, ...]:
    """Return the padding, stride, dilation and groups of a row."""
    return row.layer.padding, row.layer.stride, row.layer.dilation, row.layer.groups


def result_shape(row: Row) -> tuple[int, ...] | None:
    """Return the shape argument of a gradient, or None for a forward convolution."""
    return {"forward": None, "backward_data": row.layer.x, "backward_filter": row.layer.w}[row.direction]
