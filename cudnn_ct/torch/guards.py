"""Checks whether tensors have the attributes of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..cuda.foreign import first_places, guard_of

__all__ = ["check_of"]


def check_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function of tensors: whether they have the shapes, strides, dtypes and states of these.

    Tensors that are given more than once must be so in both.
    """
    if (fits := guard_of(tensors)) is not None:
        return fits
    known = _attributes(tensors)
    return lambda *others: _attributes(others) == known


def _attributes(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    return [(place, *_of_one(one)) for place, one in zip(first_places(tensors), tensors, strict=True)]


def _of_one(one: torch.Tensor) -> tuple[Any, ...]:
    if one.layout is not torch.strided:
        return (object(),)  # equal to no other
    states = one.is_neg(), one.requires_grad, one.is_inference()
    return type(one), one.shape, one.stride(), one.dtype, one.device, *states
