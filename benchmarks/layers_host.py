"""Host time of each operation, ours and PyTorch's, with operands so small that the GPU waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import layers_workload
from harness.operands import Operands, rotating
from harness.results import Record, explain, room_for
from harness.timing import host_times, lost_context
from layers_rows import CONTENDERS, PAIRS, calls_of
from layers_workload import Row

from cudnn_ct import context
from cudnn_ct.cuda import stream

Call0 = Callable[[], Any]

SMALL = 8  # maximum length of an axis


def key_of(operation: str) -> str:
    """Return the key of an operation's record in files of results."""
    return f"host {operation}"


def host_record(operation: str) -> Record:
    """Measure the median host time per call in microseconds.

    "ours" allocates its result, and "ours_out" writes into ``out=``. "c_calls" repeats only the cuDNN calls
    of "ours_out", through ctypes with prepared arguments.
    """
    import torch

    row = small(layers_workload.operations()[operation])
    record, pair = (
        room_for("host", key_of(operation), family=row.family, operation=operation),
        PAIRS[operation](row),
    )
    operands = rotating(pair.arrays, 1)
    calls = calls_of(row, pair, without_out(operands), record)
    if "out" in operands.ours and "ours" in calls:
        calls["ours_out"] = pair.ours(operands)
    ready = {}
    for name, call in calls.items():
        try:
            with torch.inference_mode():
                call(0)
            ready[name] = partial(call, 0)
        except Exception as error:
            record["errors"][name] = explain(error)
            record["lost"] = lost_context()
    if "ours_out" in ready and (alone := c_calls(ready["ours_out"])):
        ready["c_calls"] = alone
    if set(CONTENDERS) <= set(ready):
        record["times"] = host_times(ready)
    return record


def c_calls(call: Call0) -> Call0 | None:
    """Return a function that repeats the cuDNN calls of ``call``, or None if it makes no cuDNN calls."""
    ctx = context.current(stream.current_stream())
    library, noted = ctx.library, []

    class Noting:
        def __getattr__(self, name: str) -> Any:
            function = getattr(library, name)

            def noting(*arguments: Any) -> Any:
                noted.append(partial(function, *arguments))
                return function(*arguments)

            return noting

    ctx.library = Noting()
    try:
        call()
    finally:
        ctx.library = library
    return (lambda: [again() for again in noted]) if noted else None


def small(row: Row) -> Row:
    """Return the row with axes of length `SMALL` at most."""
    layer = row.layer._replace(x=tuple(min(n, SMALL) for n in row.layer.x))
    if "b" in row.parameters:
        shape = tuple(min(n, SMALL) for n in row.parameters["b"])
        layer = layer._replace(parameters=tuple((row.parameters | {"b": shape}).items()))
    return row._replace(layer=layer)


def without_out(operands: Operands) -> Operands:
    """Return the operands without ``out``, so that our call allocates its result as PyTorch's does."""
    ours = {role: [None] if role == "out" else arrays for role, arrays in operands.ours.items()}
    return operands._replace(ours=ours)
