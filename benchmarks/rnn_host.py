"""Host time of a forward pass, ours and PyTorch's, for each mode of a network so small that the GPU waits."""

from __future__ import annotations

from functools import partial

from harness.operands import rotating
from harness.results import Record, explain, room_for
from harness.timing import host_times, lost_context
from rnn_rows import sides_of
from rnn_workload import KINDS, Row

import cudnn_ct as ct

CONTENDERS = ("torch", "guess")


def key_of(mode: str) -> str:
    """Return the key of a mode's record in files of results."""
    return f"host {mode}"


def small(mode: str) -> Row:
    """Return a row with a network of eight cells and one time step."""
    return Row(mode, 8, 1, 1, 2, 1, KINDS["fp16"], "forward")


def host_record(mode: str) -> Record:
    """Measure the median host time per call in microseconds. "ours_out" has ``out=``, "ours" allocates."""
    import torch

    row, record = small(mode), room_for("host", key_of(mode), mode=mode)
    operands = rotating(row.arrays, 1)
    sides = sides_of(row, operands, record, CONTENDERS)
    calls = {"ours" if name == "guess" else name: partial(side.call, 0) for name, side in sides.items()}
    if "ours" in calls:
        y = ct.empty((row.steps, row.batch, row.hidden), row.kind.dtype)
        calls["ours_out"] = partial(sides["guess"].call, 0, y=y)
    for name, call in list(calls.items()):
        try:
            with torch.inference_mode():
                call()
        except Exception as error:
            record["errors"][name] = explain(error)
            record["lost"] = lost_context()
            del calls[name]
    if {"torch", "ours"} <= set(calls):
        record["times"] = host_times(calls)
    return record
