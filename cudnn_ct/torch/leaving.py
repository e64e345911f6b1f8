"""Calls that are left to torch, and why."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = [
    "FLOATS",
    "HALF",
    "PLAIN",
    "LeftToTorchError",
    "flags",
    "has_functions",
    "same_dtype",
    "sizes",
    "unless",
]


class LeftToTorchError(Exception):
    """A call that no operator serves; the message is the reason."""


HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32, torch.float64)


def unless(problem: Any, reason: str, *values: Any) -> None:
    """Leave a call if there is a problem."""
    if problem:
        raise LeftToTorchError(reason.format(*values))  # formatted only then: it takes as long as a check


def flags(*values: Any) -> None:
    """Leave flags that are not bools, for which torch raises."""
    unless(any(type(one) is not bool for one in values), "a flag is not a bool")


def sizes(*values: Any) -> None:
    """Leave sizes, numbers or sequences of them, that are bools or floats, for which torch raises."""
    numbers = [number for one in values for number in (one if isinstance(one, tuple | list) else (one,))]
    unless(any(isinstance(one, bool | float) for one in numbers), "a size is not an integer")


def same_dtype(x: Tensor, *others: Tensor | None) -> None:
    """Leave operands of several dtypes, which autocast would cast, and those that are not floating."""
    unless(x.dtype not in FLOATS, "{} is not supported", x.dtype)
    for one in others:
        if one is not None and one.dtype is not x.dtype:
            unless(not torch.is_autocast_enabled(), "operands have several dtypes")


PLAIN = (torch.Tensor, torch.nn.Parameter)  # torch.compile calls methods with tensors of other types


def has_functions(kind: type) -> bool:
    """Return whether a type has functions of its own in the place of torch's."""
    own = None if kind in PLAIN else getattr(kind, "__torch_function__", None)
    return own is not None and own is not torch._C._disabled_torch_function_impl
