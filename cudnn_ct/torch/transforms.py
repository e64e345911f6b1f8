"""Autocast and vmap of the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..gradients.formulas import Row

__all__ = ["autocast", "batched", "cast_of"]

# As torch's own operators: these run in the dtype of autocast, and those in float32.
_LOWER = (
    "conv", "conv_transpose", "conv_bias_activation", "matmul", "attention", "attention_inference",
    "lstm", "rnn",
)  # fmt: skip
_FLOAT32 = ("softmax", "layer_norm", "layer_norm_inference", "ctc_loss")
_HALF_OR_FLOAT = (torch.float16, torch.bfloat16, torch.float32)

_without_autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def autocast(name: str, operator: Any) -> Callable[..., Any] | None:
    """Return the kernel that casts the operands of an operator under autocast; None if it leaves them."""
    cast = cast_of(name)
    if cast is None:
        return None

    def kernel(*given: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_without_autocast):
            return operator(*cast(given))

    return kernel


def cast_of(name: str) -> Callable[[tuple[Any, ...]], list[Any]] | None:
    """Return a function that casts the arguments of an operator as autocast does; None if it leaves them."""
    if name in _LOWER:
        return lambda given: _cast(given, torch.get_autocast_dtype("cuda"))
    if name in _FLOAT32:
        return lambda given: _cast(given, torch.float32)
    return None


def _cast(given: tuple[Any, ...], dtype: torch.dtype) -> list[Any]:
    return [
        one.to(dtype)
        if isinstance(one, torch.Tensor) and one.is_cuda and one.dtype in _HALF_OR_FLOAT
        else one
        for one in given
    ]


def batched(row: Row, operator: Any) -> Callable[..., Any]:
    """Return the rule of vmap: samples of a batch join those of the operands, or are computed one by one."""
    count = len(row.operands)

    def rule(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, Any]:
        mapped = {
            one: axis for one, axis in zip(row.operands, in_dims[:count], strict=False) if axis is not None
        }
        present = {
            one for one, tensor in zip(row.operands, given, strict=False) if isinstance(tensor, torch.Tensor)
        }
        foldable = {one for one in row.batch if one in present}
        size = info.batch_size
        for one in {*row.updated} & present - {*mapped}:
            raise ValueError(
                f"torch.vmap maps {min(mapped)}, but not {one}, which is updated in place; map it, "
                "or pass None"
            )
        arrays = dict(zip(row.operands, given, strict=False))
        scalars = any(arrays[one].dim() - 1 <= row.batch.get(one, 0) for one in mapped)
        # A bias of attention has its own samples, or one for all of them.
        own = any(one == "bias" and "q" in mapped and arrays[one].shape[0] > 1 for one in present)
        if not (set(row.results) <= set(row.batch) and set(mapped) == foldable and size) or scalars or own:
            return _one_by_one(operator, size, in_dims, given)
        folded = [
            _fold(tensor, mapped[one], row.batch[one]) if one in mapped else tensor
            for one, tensor in zip(row.operands, given, strict=False)
        ]
        params = [
            (value[0] * size, *value[1:]) if param.kind == "shape" else value
            for param, value in zip(row.params.values(), given[count:], strict=False)
        ]
        results = operator(*folded, *params)
        if isinstance(results, torch.Tensor):
            return _unfold(results, size, row.batch[row.results[0]]), 0
        unfolded = tuple(
            _unfold(result, size, row.batch[one]) for one, result in zip(row.results, results, strict=True)
        )
        return unfolded, (0,) * len(unfolded)

    return rule


def _fold(tensor: torch.Tensor, mapped: int, axis: int) -> torch.Tensor:
    """Return a tensor whose axis of samples has those of the mapped axis too."""
    return tensor.movedim(mapped, axis).flatten(axis, axis + 1)


def _unfold(result: torch.Tensor, size: int, axis: int) -> torch.Tensor:
    return result.unflatten(axis, (size, -1)).movedim(axis, 0)


def _one_by_one(
    operator: Any, size: int, in_dims: tuple[Any, ...], given: tuple[Any, ...]
) -> tuple[Any, Any]:
    dims = (*in_dims, *(None,) * (len(given) - len(in_dims)))  # a parameter that is a list has a list
    calls = [
        operator(
            *[
                one.select(axis, place) if isinstance(axis, int) else one
                for one, axis in zip(given, dims, strict=True)
            ]
        )
        for place in range(size)
    ]
    if isinstance(calls[0], torch.Tensor):
        return torch.stack(calls), 0
    stacked = tuple(map(torch.stack, zip(*calls, strict=True)))
    return stacked, (0,) * len(stacked)
