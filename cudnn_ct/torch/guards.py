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
    if fits := guard_of(tensors):
        return fits
    first = {id(one): place for place, one in reversed([*enumerate(tensors)])}
    places = [first[id(one)] for one in tensors]
    if len(first) < len(tensors) and (fits := guard_of([tensors[place] for place in sorted({*places})])):
        own, repeated = sorted({*places}), [pair for pair in enumerate(places) if pair[0] != pair[1]]

        def check(*others: torch.Tensor) -> bool:
            for place, original in repeated:
                if others[place] is not others[original]:
                    return False
            return fits(*[others[place] for place in own])

        return check
    known = [*map(_attributes, tensors)]
    return lambda *others: [*map(_attributes, others)] == known


def _attributes(one: torch.Tensor) -> tuple[Any, ...]:
    if one.layout is not torch.strided:
        return (object(),)  # equal to no other
    states = one.is_neg(), one.requires_grad, one.is_inference()
    return type(one), one.shape, one.stride(), one.dtype, one.device, *states
