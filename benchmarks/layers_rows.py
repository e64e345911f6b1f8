"""Measurement of a row of the layer benchmark, and comparison of our results with PyTorch's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import layers_images
import layers_sampling
import layers_tensors
import layers_workload
from harness.comparison import EPSILON
from harness.operands import Operands, operands_or_reason
from harness.results import Record, explain, room_for
from harness.text import line_of
from harness.timing import Call, Contender, keeping, loop, lost_context, race
from layers_pair import Pair, difference
from layers_report import ROW_LIMIT, floor_ratio
from layers_workload import Row

import cudnn_ct as ct

CONTENDERS = ("torch", "ours")  # in the order in which they run
COPIED, COPIES = 2**30, 20  # size in bytes and number of the copies that measure the bandwidth
NOT_THERE = "not there yet"  # the error of an operation that `cudnn_ct` lacks

PAIRS: dict[str, Callable[[Row], Pair]] = {
    function.__name__: function
    for function in (
        *(layers_images.pool, layers_images.pool_backward),
        *(layers_tensors.softmax, layers_tensors.softmax_backward),
        layers_images.batch_norm_training,
        layers_images.batch_norm_inference,
        layers_images.batch_norm_backward,
        *(layers_tensors.activation, layers_tensors.activation_backward),
        layers_tensors.reduce,
        *(layers_sampling.grid_sample, layers_sampling.grid_sample_backward),
        *(layers_sampling.affine_grid, layers_sampling.affine_grid_backward),
        *(layers_tensors.dropout, layers_tensors.dropout_backward),
        *(layers_sampling.lrn, layers_sampling.lrn_backward),
        *(layers_tensors.add, layers_tensors.op_tensor),
    )
}


def row_record(row: Row, wanted: Sequence[str] = CONTENDERS) -> Record:
    """Measure a row."""
    record, pair = facts(row), PAIRS[row.operation](row)
    record |= {"bytes": pair.bytes, "floor_us": pair.bytes / bandwidth()}
    operands = operands_or_reason(pair.arrays, record)
    if operands is None:
        return record
    calls = calls_of(row, pair, operands, record, wanted)
    contenders = {name: Contender(keeping(call, operands.count)) for name, call in calls.items()}
    race(record, contenders, operands.count, limit=ROW_LIMIT)
    if set(CONTENDERS) <= set(record["times"]):
        compare(record, row, pair, operands, calls)
    return record


def facts(row: Row) -> Record:
    """Return a new record with the facts of a row."""
    which = {"family": row.family, "operation": row.operation, "direction": row.direction}
    layer = {"kind": row.kind.name, "network": row.layer.network, "x": row.layer.x}
    return room_for("rows", row.id, **which, **layer)


def calls_of(
    row: Row, pair: Pair, operands: Operands, record: Record, wanted: Sequence[str] = CONTENDERS
) -> dict[str, Call]:
    """Set the values of the operands and return the calls to time. Store errors in the record."""
    calls: dict[str, Call] = {}
    try:
        if pair.prepare is not None:
            pair.prepare(operands.theirs)
    except Exception as error:
        record |= {"skipped": f"no operands: {explain(error)}", "lost": lost_context()}
        return calls
    for name in wanted:
        if name == "ours" and not hasattr(ct, row.operation):
            record["errors"][name] = NOT_THERE
            continue
        try:
            calls[name] = (pair.ours if name == "ours" else pair.theirs)(operands)
        except Exception as error:
            record["errors"][name] = explain(error)
            record["lost"] = lost_context()
    return calls


def came_since(record: Record) -> bool:
    """Return whether `cudnn_ct` has the operation of a record now, but lacked it at that time."""
    return record.get("errors", {}).get("ours") == NOT_THERE and hasattr(ct, record["operation"])


def compare(record: Record, row: Row, pair: Pair, operands: Operands, calls: dict[str, Call]) -> None:
    """Drop our time if our result differs from PyTorch's, because a wrong computation may be faster."""
    import torch

    try:
        with torch.inference_mode():
            apart = difference(pair, operands, calls["ours"], calls["torch"])
    except Exception as error:
        reason = f"the result cannot be compared with PyTorch's: {explain(error)}"
        record["lost"] = lost_context()
    else:
        record["apart"] = apart
        limit = pair.tolerance * EPSILON[row.kind.dtype]
        if apart <= limit:
            return
        reason = f"wrong result: relative distance from PyTorch's is {apart:.2g}, limit is {limit:.2g}"
    record["errors"]["ours"] = reason
    del record["times"]["ours"]
    record.pop("remeasured", None)


def line(record: Record) -> str:
    """Return a line on a row."""
    ratio, floor = ROW_LIMIT.ratio(record), floor_ratio(record)
    parts = [f"ours / torch {ratio:.2f}"] if ratio else []
    parts += [f"floor {record['floor_us']:.1f}"] if "floor_us" in record else []
    return line_of(record, *parts, *([f"ours / floor {floor:.2f}"] if floor else []))


@functools.cache
def bandwidth() -> float:
    """Measure the bytes per microsecond that a copy in device memory reads and writes, once per run."""
    import torch

    source, target = (torch.empty(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
    turns = itertools.count()
    times = [loop(lambda _: target.copy_(source), turns, COPIES) for _ in range(3)]
    return 2 * COPIED / min(times)


def warm_up() -> None:
    """Measure a small row, so that every contender creates its first plan before the measurements."""
    row = layers_workload.operations()["pool"]
    row_record(row._replace(layer=row.layer._replace(x=(2, 16, 32, 32))))
