"""Calls that are left to torch, and why."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["FLOATS", "HALF", "LeftToTorchError", "same_dtype", "unless"]


class LeftToTorchError(Exception):
    """A call that no operator serves; the message is the reason."""


HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32, torch.float64)


def unless(problem: Any, reason: str, *values: Any) -> None:
    """Leave a call if there is a problem."""
    if problem:
        raise LeftToTorchError(reason.format(*values))  # formatted only then: it takes as long as a check


def same_dtype(x: Tensor, *others: Tensor | None) -> None:
    """Leave operands of several dtypes, which autocast would cast, and those that are not floating."""
    unless(x.dtype not in FLOATS, "{} is not supported", x.dtype)
    for one in others:
        if one is not None and one.dtype is not x.dtype:
            unless(not torch.is_autocast_enabled(), "operands have several dtypes")
