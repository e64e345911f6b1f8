"""Measurement of a row of the RNN benchmark, and comparison of results with PyTorch's in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import rnn_networks as networks
import rnn_workload
from harness.comparison import EPSILON, distance
from harness.operands import Operands, operands_or_reason
from harness.results import Record, explain, room_for
from harness.text import line_of
from harness.timing import Call, Contender, keeping, lost_context, race
from rnn_report import ROW_LIMIT
from rnn_workload import Row

import cudnn_ct as ct

CONTENDERS = ("torch", "time", "guess")  # in the order in which they run
NOT_THERE = "not there yet"  # the error of a class that `cudnn_ct` lacks

SETS = 16  # maximum number of sets of operands, which share the weights

# Factors of the tolerance of a dtype. Rounding errors accumulate over time steps, twice with gradients.
TOLERANCE = {"forward": 2, "training": 4}


class Side(NamedTuple):
    """Call of a contender, a function that returns its first results as tensors, and its network."""

    call: Call
    results: Callable[[], list[Any]]
    network: Any = None


def row_record(row: Row, wanted: Sequence[str] = CONTENDERS) -> Record:
    """Measure a row."""
    record = facts(row)
    operands = operands_or_reason(row.arrays, record, SETS)
    if operands is None:
        return record
    sides = sides_of(row, operands, record, wanted)
    contenders = {name: Contender(keeping(side.call, operands.count)) for name, side in sides.items()}
    race(record, contenders, operands.count, limit=ROW_LIMIT)
    compare(record, row, sides, operands)
    if "time" in sides:
        record["algorithms"] = algorithms(row, sides["time"].network)
    return record


def algorithms(row: Row, rnn: Any) -> dict[str, Any]:
    """Return the microseconds of a forward pass for each algorithm, or the reason for its failure."""
    try:
        given: dict[str, Any] = {"lengths": row.lengths, "layout": "packed"} if row.packed else {}
        table = rnn.algorithms(row.arrays["x"].shape, training=row.work == "training", **given)
    except Exception as error:
        return {"": explain(error)}
    return {one.algorithm: one.rejected or round(1000 * one.time_ms) for one in table}


def facts(row: Row) -> Record:
    """Return a new record with the facts of a row."""
    sizes = {"hidden": row.hidden, "layers": row.layers, "directions": row.directions}
    batch = {"batch": row.batch, "steps": row.steps, "packed": row.packed}
    which = {"mode": row.mode, "kind": row.kind.name, "work": row.work}
    return room_for("rows", row.id, **which, **sizes, **batch)


def sides_of(
    row: Row, operands: Operands, record: Record, wanted: Sequence[str] = CONTENDERS
) -> dict[str, Side]:
    """Return the calls to time, and store errors in the record."""
    sides: dict[str, Side] = {}
    try:
        network = networks.torch_network(row)
    except Exception as error:
        record |= {"skipped": f"no network: {explain(error)}", "lost": lost_context()}
        return sides
    for name in wanted:
        if name != "torch" and not hasattr(ct, "RNN"):
            record["errors"][name] = NOT_THERE
            continue
        try:
            sides[name] = _side(name, row, network, operands)
        except Exception as error:
            record["errors"][name] = explain(error)
            record["lost"] = lost_context()
    return sides


def _side(name: str, row: Row, network: Any, operands: Operands) -> Side:
    if name == "torch":
        theirs = networks.torch_call(row, network, operands)
        return Side(theirs, lambda: networks.torch_results(theirs(0)), network)
    ours = networks.our_network(row, network, networks.POLICIES[name])
    call = networks.our_call(row, ours, operands)
    return Side(call, lambda: networks.our_results(row, ours, network, call), ours.rnn)


def came_since(record: Record) -> bool:
    """Return whether `cudnn_ct` has the class of a record now, but lacked it at that time."""
    return NOT_THERE in record.get("errors", {}).values() and hasattr(ct, "RNN")


def compare(record: Record, row: Row, sides: dict[str, Side], operands: Operands) -> None:
    """Drop our times if results are wrong, because a wrong computation may be faster.

    The record has the relative distances of all results from PyTorch's in float64.
    """
    import torch

    if "torch" not in record["times"] or len(record["times"]) < 2:
        return
    limit = limit_of(row)
    apart = record["apart"] = {}
    exact = networks.exact_results(row, sides["torch"].network, operands)
    for name in list(record["times"]):
        reason = ""
        try:
            with torch.inference_mode():
                apart[name] = difference(sides[name].results(), exact)
        except Exception as error:
            reason = f"the results cannot be compared with float64: {explain(error)}"
            record["lost"] = lost_context()
        else:
            if not apart[name] <= limit:
                reason = f"wrong results: relative distance from float64 is {apart[name]:.2g}"
                reason += f", limit is {limit:.2g}"
        if reason and name != "torch":
            record["errors"][name] = reason
            del record["times"][name]
            if name == ROW_LIMIT.ours:
                record.pop("remeasured", None)


def limit_of(row: Row) -> float:
    """Return the largest relative distance of results that differ by rounding."""
    # Some sums near 0 have another sign, and a gradient does or does not pass the relu there. In float64 with
    # operands rounded as TF32, 320 units and 120 steps, gradients differed by 0.02 to 0.03.
    through_relu = 0.045 if row.mode == "rnn_relu" and row.work == "training" else 0
    return max(TOLERANCE[row.work] * EPSILON[row.kind.dtype], through_relu)


def difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Return the largest relative distance of results from others, or NaN if one was not written."""
    apart = [distance(a, b) for a, b in zip(ours, theirs, strict=True)]
    return math.nan if any(map(math.isnan, apart)) else max(apart)


def line(record: Record) -> str:
    """Return a line on a row."""
    ratio = ROW_LIMIT.ratio(record)
    return line_of(record, *([f"time / torch {ratio:.2f}"] if ratio else []))


def warm_up() -> None:
    """Measure a small row, so that every contender creates its first plan before the measurements."""
    row = rnn_workload.rows(sections=["padded"])[0]
    row_record(row._replace(hidden=32, batch=2, steps=3))
