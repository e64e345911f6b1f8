"""Fused convolution, bias and relu in one call, compared with PyTorch."""

from __future__ import annotations

import functools
from typing import Any

from conv_layers import Row
from conv_rows import FIRST_CALLS, POLICIES, facts, geometry, operands_of
from harness.operands import Operands
from harness.results import Record
from harness.timing import Contender, race

import cudnn_ct as ct


def fused_record(row: Row) -> Record:
    """Measure a convolution with bias and relu: our fused call and PyTorch's calls."""
    record = facts(row, "fused")
    operands = operands_of(row, record)
    if operands is None:
        return record
    return race(record, fused_contenders(row, operands), operands.count, first=FIRST_CALLS)


def fused_contenders(row: Row, operands: Operands) -> dict[str, Contender]:
    """Return PyTorch's convolution with relu, its fused operation, and our fused call with both policies."""
    import torch

    xs, ws = operands.theirs["x"], operands.theirs["w"]
    a, b, out = (operands.ours[role] for role in ("x", "w", "y"))
    bias = torch.randn(row.layer.w[0], dtype=xs[0].dtype, device="cuda")
    our_bias = ct.asarray(bias)
    outs: list[Any] = [None] * operands.count
    pad, step, spread, groups = geometry(row)
    convolve, relu, both = torch.nn.functional.conv2d, torch.relu, torch.cudnn_convolution_relu

    def eager(i: int) -> None:
        outs[i] = relu(convolve(xs[i], ws[i], bias, step, pad, spread, groups))

    def fused(i: int) -> None:
        outs[i] = both(xs[i], ws[i], bias, step, pad, spread, groups)

    def ours(i: int, policy: str | None) -> None:
        ct.conv_bias_activation(
            a[i], b[i], our_bias, activation="relu", out=out[i],
            padding=pad, stride=step, dilation=spread, groups=groups, algo=policy,
        )  # fmt: skip

    return {
        "torch_eager": Contender(eager, benchmark=True),
        "torch_fused": Contender(fused, benchmark=True),
        **{name: Contender(functools.partial(ours, policy=policy)) for name, policy in POLICIES.items()},
    }
