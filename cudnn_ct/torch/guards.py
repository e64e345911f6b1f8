"""Checks whether tensors have the attributes of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..cuda.foreign import guard_of

__all__ = ["check_of"]


def check_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function of tensors: whether they have the shapes, strides, dtypes and states of these."""
    known = [*map(_attributes, tensors)]
    return guard_of(tensors) or (lambda *others: [*map(_attributes, others)] == known)


def _attributes(one: torch.Tensor) -> tuple[Any, ...]:
    if one.layout is not torch.strided:
        return (object(),)  # equal to no other
    states = one.is_neg(), one.requires_grad, one.is_inference()
    return type(one), one.shape, one.stride(), one.dtype, one.device, *states
