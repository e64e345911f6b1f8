"""Judges drawn convolutions once with each algorithm and engine that cuDNN has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.cuda import stream as streams
from cudnn_ct.ops.conv.candidates import SOURCE
from cudnn_ct.plans.base import Candidate

from .calls import CONVOLUTIONS, plan_of
from .devices import Device
from .draw import Call, Where
from .judge import Verdict, compared, operands_of
from .operands import lay_out, values_of

__all__ = ["judge_each"]

POLICY = ("algo", "deterministic", "workspace_limit")


def judge_each(
    call: Call,
    device: Device,
    answers: dict[str, Any],
    announce: Callable[[Call, str], None],
    wanted: Callable[[Any, Candidate], bool] = lambda problem, candidate: True,
) -> Verdict:
    """Make a convolution with each algorithm that cuDNN offers for it, and judge each result.

    ``announce`` gets each call and its algorithm before it is made: some end the process. Only candidates of
    the problem that are ``wanted`` are made.
    """
    if call.operation not in CONVOLUTIONS:
        return Verdict("no convolution")
    chosen = {name: value for name, value in call.arguments.items() if name not in POLICY}
    operands = {name: tensor._replace(still=(), flipped=()) for name, tensor in call.operands.items()}
    call = call._replace(operands=operands, plan="", alias="", where=Where(), arguments=chosen)
    findings = []
    for row in _rows(call, device, answers, wanted):
        one = call._replace(arguments=chosen | {"algo": row, "strict": True})
        announce(one, row.algorithm)
        try:
            verdict = compared(one, device, answers)
        except ct.NotSupportedError:
            continue
        except ct.CudnnError as error:
            verdict = Verdict("finding", f"{type(error).__name__}: {str(error)[:600]}")
        if verdict.outcome == "finding":
            copies = f", copies {row.relayout}" if row.relayout else ""
            findings.append(f"{row.backend} {row.algorithm} ({row.math}{copies}): {verdict.detail}")
    if findings:
        return Verdict("finding", "\n  ".join(findings))
    return Verdict("agrees")


def _rows(
    call: Call, device: Device, answers: dict[str, Any], wanted: Callable[[Any, Candidate], bool]
) -> list[Any]:
    """Return the candidates that are not rejected, each algorithm with each set of copies once."""
    arrays = {
        name: device.place(call.operands[name], laid).array
        for name, laid in operands_of(call, answers).laid.items()
    }
    keywords = {}
    if call.out is not None:
        keywords["out"] = device.place(call.out, lay_out(call.out, values_of(call.out))).array
    device.settle()
    try:
        plan, _ = plan_of(call, arrays, call.arguments | call.factors, keywords)
    except ct.NotSupportedError:
        return []
    current = context.current(streams.default_stream(0))
    rows = {}
    for row in SOURCE.all_candidates(plan.problem, current):
        if not row.rejected and wanted(plan.problem, row):
            rows[row.backend, row.algorithm, row.relayout] = row._replace(problem=None)
    return list(rows.values())
