"""A row of the benchmark of recurrent networks: PyTorch and ours on the same operands and weights."""

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

CONTENDERS = ("torch", "time", "guess")  # in the order in which they take turns
NOT_THERE = "not there yet"  # why a class that `cudnn_ct` lacks has no time

SETS = 16  # of operands at most: the weights are the same in all, and stay where they are

# Roundings go from step to step, and gradients through all of them back: so many times what a dtype has.
TOLERANCE = {"forward": 2, "training": 4}


class Side(NamedTuple):
    """One contender's call, and how its results of the first operands are made tensors; our network."""

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
    compare(record, row, sides)
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
    """What a row is, and room for what it comes to."""
    sizes = {"hidden": row.hidden, "layers": row.layers, "directions": row.directions}
    batch = {"batch": row.batch, "steps": row.steps, "packed": row.packed}
    which = {"mode": row.mode, "kind": row.kind.name, "work": row.work}
    return room_for("rows", row.id, **which, **sizes, **batch)


def sides_of(
    row: Row, operands: Operands, record: Record, wanted: Sequence[str] = CONTENDERS
) -> dict[str, Side]:
    """The calls to time; why one is missing is in the record."""
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
        return Side(theirs, lambda: networks.torch_results(theirs(0)))
    ours = networks.our_network(row, network, networks.POLICIES[name])
    call = networks.our_call(row, ours, operands)
    return Side(call, lambda: networks.our_results(row, ours, network, call), ours.rnn)


def came_since(record: Record) -> bool:
    """Return whether the class exists now that did not exist when the record was made."""
    return NOT_THERE in record.get("errors", {}).values() and hasattr(ct, "RNN")


def compare(record: Record, row: Row, sides: dict[str, Side]) -> None:
    """Drop our times whose results are not PyTorch's: a wrong computation may be faster."""
    import torch

    timed = [name for name in record["times"] if name != "torch"]
    if "torch" not in record["times"] or not timed:
        return
    limit = TOLERANCE[row.work] * EPSILON[row.kind.dtype]
    apart = record["apart"] = {}
    for name in timed:
        reason = ""
        try:
            with torch.inference_mode():
                apart[name] = difference(sides[name].results(), sides["torch"].results())
        except Exception as error:
            reason = f"cannot be compared with PyTorch's result: {explain(error)}"
            record["lost"] = lost_context()
        else:
            if not apart[name] <= limit:
                reason = f"computes something else: relatively {apart[name]:.2g} from PyTorch's result"
                reason += f", not {limit:.2g}"
        if reason:
            record["errors"][name] = reason
            del record["times"][name]
            if name == ROW_LIMIT.ours:
                record.pop("remeasured", None)


def difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The largest relative distance of a result of ours from PyTorch's; NaN where one was not written."""
    apart = [distance(a, b) for a, b in zip(ours, theirs, strict=True)]
    return math.nan if any(map(math.isnan, apart)) else max(apart)


def line(record: Record) -> str:
    """One line on a row, while the benchmark runs."""
    ratio = ROW_LIMIT.ratio(record)
    return line_of(record, *([f"time / torch {ratio:.2f}"] if ratio else []))


def warm_up() -> None:
    """Measure a small row, so that every contender has made its first plan before times count."""
    row = rnn_workload.rows(sections=["padded"])[0]
    row_record(row._replace(hidden=32, batch=2, steps=3))
