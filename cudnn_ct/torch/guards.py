"""Checks whether tensors have the attributes of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..cuda.foreign import guard_of

__all__ = ["check_of"]


def check_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function of tensors: whether they have the shapes, strides, dtypes and states of these.

    Tensors that are given more than once must be so in both.
    """
    first: dict[int, int] = {}  # the place of each tensor
    places = [first.setdefault(id(one), place) for place, one in enumerate(tensors)]
    own, repeated = [*first.values()], [pair for pair in enumerate(places) if pair[0] != pair[1]]
    fits = guard_of([tensors[place] for place in own])
    if fits is None:
        known = [*map(_attributes, tensors)]
        return lambda *others: [*map(_attributes, others)] == known
    if not repeated:
        return fits

    def check(*others: torch.Tensor) -> bool:
        for place, original in repeated:
            if others[place] is not others[original]:
                return False
        return fits(*[others[place] for place in own])

    return check


def _attributes(one: torch.Tensor) -> tuple[Any, ...]:
    if one.layout is not torch.strided:
        return (object(),)  # equal to no other
    states = one.is_neg(), one.requires_grad, one.is_inference()
    return type(one), one.shape, one.stride(), one.dtype, one.device, *states
