"""Gradients of the operators, by the formulas of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..gradients.row import Backward, Row, needs_of, saved_names
from .kernels import filled

__all__ = ["register_gradient"]


class _Operators:
    """The namespace of operators that formulas call."""

    broadcast_to = staticmethod(torch.broadcast_to)
    gelu_backward = staticmethod(torch.ops.aten.gelu_backward)

    def __getattr__(self, name: str) -> Any:
        operator = getattr(torch.ops.cudnn_ct, name).default
        setattr(self, name, operator)
        return operator


_OPERATORS = _Operators()


def register_gradient(library: torch.library.Library, name: str, row: Row, operator: Any) -> None:
    """Register the gradient of an operator, or an error for one that has none."""

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _keep(row, ctx, inputs, output)

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        if row.gradient is None:
            raise NotImplementedError(f"cudnn_ct::{name} has no gradient; detach its operands")
        return _backward(row, ctx, gradients)

    if row.updated:
        library.impl(name, _recorded(keep, backward, operator), "Autograd", with_keyset=True)
    else:
        torch.library.register_autograd(f"cudnn_ct::{name}", backward, setup_context=keep, lib=library)


def _keep(row: Row, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save what the gradients of the wanted operands read."""
    tensors, params = filled(row, inputs)
    values = dict(zip(row.params, params, strict=True))
    operands = dict(zip(row.operands, tensors, strict=True))
    results = (output,) if isinstance(output, torch.Tensor) else tuple(output)
    possible = needs_of(row, values)
    wanted = frozenset(
        one
        for one, needed in zip(row.operands, ctx.needs_input_grad, strict=False)
        if needed and one in possible
    )
    known = operands | dict(zip(row.results, results, strict=True))
    saved = saved_names(row, values, wanted)
    ctx.save_for_backward(*[known[one] for one in saved])
    if row.gradient is not None and len(results) > row.differentiable:
        ctx.mark_non_differentiable(*results[row.differentiable :])
    ctx.set_materialize_grads(False)
    shapes = {one: tensor.shape for one, tensor in operands.items() if tensor is not None}
    dtypes = {one: operands[one].dtype for one in wanted}
    ctx.facts = (saved, shapes, dtypes, values, wanted)


def _backward(row: Row, ctx: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the gradient of each operand and parameter; None for those that are not wanted."""
    nothing = (None,) * (len(row.operands) + len(row.params))
    saved, shapes, dtypes, values, wanted = ctx.facts
    given = given[: row.differentiable]
    if all(one is None for one in given) or not wanted or row.gradient is None:
        return nothing
    arrays = dict(zip(saved, ctx.saved_tensors, strict=True))
    arrays |= {f"d{one}": gradient for one, gradient in zip(row.results, given, strict=False)}
    found = row.gradient(_OPERATORS, Backward(arrays, shapes, values, wanted))
    gradients = [found[one] if one in wanted else None for one in row.operands]
    cast = [
        None if one is None else one.to(dtypes[operand])
        for operand, one in zip(row.operands, gradients, strict=True)
    ]
    return (*cast, *nothing[len(cast) :])


def _recorded(
    keep: Callable[..., None], backward: Callable[..., tuple[Any, ...]], operator: Any
) -> Callable[..., Any]:
    """Return the Autograd kernel of an operator that updates operands, which torch.library does not make."""

    class Recorded(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, keyset: Any, *given: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                output = operator.redispatch(keyset, *given)
            needed, ctx.needs_input_grad = ctx.needs_input_grad, ctx.needs_input_grad[1:]
            keep(ctx, given, output)
            ctx.needs_input_grad = needed
            ctx.given = len(given)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            return (None, *backward(ctx, *gradients)[: ctx.given])

    def run(keyset: Any, *given: Any) -> Any:
        below = keyset & torch._C._after_autograd_keyset
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*given):
            return Recorded.apply(below, *given)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(below, *given)

    return run
