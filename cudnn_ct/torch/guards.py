"""Checks whether tensors have the attributes of others, by the guards of torch's compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["check_of"]


def check_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function of tensors: whether they have the shapes, strides, dtypes and states of these.

    The check of torch's compiler takes a quarter of the time of the attributes in Python. It may be missing,
    and does not take a tensor twice.
    """
    try:
        shapes, strides = [list(one.shape) for one in tensors], [list(one.stride()) for one in tensors]
        guards = _TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
        fits: Callable[..., bool] = guards.check
        if fits(*tensors):
            return fits
    except Exception:  # of any kind: another version of torch
        pass
    known = [*map(_attributes, tensors)]
    return lambda *others: [*map(_attributes, others)] == known


def _attributes(one: torch.Tensor) -> tuple[Any, ...]:
    return one.shape, one.stride(), one.dtype, one.device, one.is_neg(), one.requires_grad, one.is_inference()


_TensorGuards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
