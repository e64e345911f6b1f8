"""Gradients of the operators, by the formulas of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from .._caches import BoundedDict
from ..gradients.formulas import Backward, Row, needs_of, saved_names
from .guards import check_of
from .kernels import ROWS, filled, refuse_tangents
from .prepared import Call
from .tracing import has_tangents

__all__ = ["Gradient", "Known", "register_gradient"]

MAX_SAVED = 1024  # combinations of parameters and operands that need gradients, of an operator


class _Saved(NamedTuple):
    """What the gradient of a call with some parameters reads, if some operands need one.

    ``places`` are those of the saved arrays ``names`` among operands and results, ``others`` those of the
    operands that are not saved. ``unread`` are the places of operands of which the gradient needs attributes
    only. ``again`` is whether it needs the result, and computes it again if it has changed.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    others: tuple[int, ...]
    unread: tuple[int, ...]
    again: bool
    changeable: bool
    params: dict[str, Any]
    wanted: frozenset[str]


def _fact(tensor: Any) -> tuple[Any, Any] | None:
    """Return the shape and the dtype of an operand, None for one that is not given."""
    return None if tensor is None else (tensor.shape, tensor.dtype)


def _changeable(name: str, params: Mapping[str, Any]) -> frozenset[str]:
    """Return what may change in place before a gradient, although it needs the array.

    Torch keeps the indices of a maximum instead of the result, and of an average only sizes.
    """
    if name != "pool":
        return frozenset()
    return frozenset(("y",) if params["mode"].startswith("max") else ("x",))


class Known:
    """A call of an operator that was made before.

    ``fits`` tells whether it is that of tensors, and ``records`` whether one of them requires a gradient.
    ``facts`` are those of its gradient, once it was recorded.
    """

    __slots__ = ("call", "facts", "fits", "params", "records")

    def __init__(self, call: Call, tensors: Sequence[torch.Tensor], params: tuple[Any, ...]) -> None:
        self.call, self.fits, self.params = call, check_of(tensors), params
        self.records = any(one.requires_grad for one in tensors)
        self.facts: tuple[Any, ...] | None = None


_Kept = tuple[torch.Tensor, int] | None


def _with_version(result: torch.Tensor) -> _Kept:
    """Return a result with the number of its changes in place.

    It is None if a mode, a transformation of functions or hooks of saved tensors must know of each tensor
    that is kept. Torch raises for a saved tensor that has changed.
    """
    if _modes() or _transformations() is not None or _saving_hooks(False) is not None:
        return None
    return result.detach(), result._version


_modes = torch._C._len_torch_dispatch_stack
_transformations = torch._C._functorch.peek_interpreter_stack
_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def _unless_changed(kept: _Kept) -> torch.Tensor | None:
    """Return a result if it has not changed in place."""
    return None if kept is None or kept[0]._version != kept[1] else kept[0]


class Gradient:
    """The gradient of an operator, by the formula of its row of the table, which calls ``operators``."""

    def __init__(self, name: str, row: Row, operators: Any) -> None:
        self._name, self._row, self._operators = name, row, operators
        self._saved = BoundedDict(MAX_SAVED)
        self._count, self._single = len(row.operands), len(row.results) == 1

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what the gradients of the wanted operands read."""
        row, count, needed = self._row, self._count, ctx.needs_input_grad
        tensors = inputs[:count]
        try:
            saved = self._saved.get((inputs[count:], needed))
        except TypeError:  # lists, or symbolic numbers
            saved = None
        if saved is None or len(tensors) < count:
            tensors, params = filled(row, inputs)
            saved = self._saved_of(params, needed[:count])
            if not torch.compiler.is_compiling() and len(inputs) >= count:
                with suppress(TypeError):
                    self._saved[inputs[count:], needed] = saved
        facts = [_fact(tensors[place]) for place in saved.others]
        results = (output,) if self._single else tuple(output)
        self._keep(ctx, (saved, facts, len(inputs)), tensors, results)

    def facts_of(self, known: Known, tensors: tuple[Any, ...], needed: tuple[bool, ...]) -> tuple[Any, ...]:
        """Return what the gradients of a known call depend on, for the operands that need one."""
        _, params = filled(self._row, (*tensors, *known.params))
        saved = self._saved_of(params, needed)
        return saved, [_fact(tensors[place]) for place in saved.others], len(tensors)

    def _keep(self, ctx: Any, facts: tuple[Any, ...], tensors: Sequence[Any], results: Sequence[Any]) -> None:
        saved, row = facts[0], self._row
        arrays = (*tensors, *results)
        ctx.save_for_backward(*[arrays[place] for place in saved.places])
        if saved.changeable:
            ctx.kept = _with_version(results[0]) if saved.again else None
            ctx.strides = [tensors[place].stride() for place in saved.unread]
        if row.gradient is not None and len(results) > row.differentiable:
            ctx.mark_non_differentiable(*results[row.differentiable :])
        ctx.set_materialize_grads(False)
        ctx.facts = facts

    def _saved_of(self, params: tuple[Any, ...], needed: tuple[bool, ...]) -> _Saved:
        row, values = self._row, dict(zip(self._row.params, params, strict=True))
        possible = needs_of(row, values)
        needing = zip(row.operands, needed, strict=False)
        wanted = frozenset(one for one, needs in needing if needs and one in possible)
        read, changeable = saved_names(row, values, wanted), _changeable(self._name, values)
        names = tuple(one for one in read if one not in changeable)
        places = tuple((*row.operands, *row.results).index(one) for one in names)
        others = tuple(place for place in range(self._count) if place not in places)
        unread = tuple(row.operands.index(one) for one in read if one in changeable and one in row.operands)
        again = not changeable.isdisjoint(read) and not unread
        return _Saved(names, places, others, unread, again, again or bool(unread), values, wanted)

    def backward(self, ctx: Any, *given: Any) -> tuple[Any, ...]:
        """Return the gradient of each operand and parameter; None for those that are not wanted."""
        row = self._row
        if row.gradient is None:
            raise NotImplementedError(f"cudnn_ct::{self._name} has no gradient; detach its operands")
        nothing = (None,) * (len(row.operands) + len(row.params))
        saved, others, _ = ctx.facts
        given = given[: row.differentiable]
        if all(one is None for one in given) or not saved.wanted:
            return nothing
        arrays = dict(zip(saved.names, ctx.saved_tensors, strict=True))
        facts = {row.operands[place]: fact for place, fact in zip(saved.others, others, strict=True)}
        facts |= {one: _fact(array) for one, array in arrays.items() if one in row.operands}
        arrays |= {f"d{one}": gradient for one, gradient in zip(row.results, given, strict=False)}
        if saved.again:
            result, ctx.kept = _unless_changed(ctx.kept), None  # another backward pass computes it again
            if result is None:
                operands = [arrays[one] for one in row.operands]
                result = getattr(self._operators, self._name)(*operands, **saved.params)
            arrays[row.results[0]] = result
        for place, strides in zip(saved.unread, ctx.strides if saved.changeable else (), strict=True):
            shape, dtype = facts[row.operands[place]]
            arrays[row.operands[place]] = given[0].new_empty_strided(shape, strides, dtype=dtype)
        shapes = {one: fact[0] for one, fact in facts.items() if fact is not None}
        found = row.gradient(self._operators, Backward(arrays, shapes, saved.params, saved.wanted))
        gradients = [found[one] if one in saved.wanted else None for one in row.operands]
        cast = [
            None if one is None else one.to(facts[operand][1])
            for operand, one in zip(row.operands, gradients, strict=True)
        ]
        return (*cast, *nothing[len(cast) :])

    def recorded(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls a kernel and records the gradient, without torch's dispatcher.

        Nothing but recording may be left to do: no transformation of functions, no mode, no autocast.
        """
        gradient = self

        class Recorded(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, *given: Any) -> Any:
                output = kernel(*given)
                gradient.keep(ctx, given, output)
                return output

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
                return gradient.backward(ctx, *gradients)[: ctx.facts[2]]

        return _apply_of(Recorded)

    def recorded_known(self) -> Callable[..., Any]:
        """Return a function of a known call and of its operands, that makes it and records the gradient."""
        gradient, single = self, self._single

        class Recorded(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, known: Known, *tensors: Any) -> Any:
                outs = known.call.run(tensors)
                if known.facts is None:
                    known.facts = gradient.facts_of(known, tensors, ctx.needs_input_grad[1:])
                gradient._keep(ctx, known.facts, tensors, outs)
                return outs[0] if single else tuple(outs)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
                return None, *gradient.backward(ctx, *gradients)[: ctx.facts[2]]

        return _apply_of(Recorded)


def _apply_of(function: Any) -> Callable[..., Any]:
    """Return what applies a function; its own method looks for transformations, for a quarter of its time."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return apply


def register_gradient(library: torch.library.Library, name: str, gradient: Gradient, operator: Any) -> None:
    """Register the gradient of an operator, or an error for one that has none."""
    if ROWS[name].updated:
        library.impl(name, _updating(gradient, operator), "Autograd", with_keyset=True)
    else:
        torch.library.register_autograd(
            f"cudnn_ct::{name}", gradient.backward, setup_context=gradient.keep, lib=_Refusing(library)
        )


class _Refusing(NamedTuple):
    """A library for gradients that refuse operands with tangents, which torch's would drop silently."""

    library: torch.library.Library

    def impl(self, name: str, kernel: Callable[..., Any], key: str, **options: Any) -> None:
        count = len(ROWS[name].operands)

        def refusing(keyset: Any, *given: Any, **named: Any) -> Any:
            if has_tangents():
                refuse_tangents(name, given[:count])
            return kernel(keyset, *given, **named)

        self.library.impl(name, refusing, key, **options)


def _updating(gradient: Gradient, operator: Any) -> Callable[..., Any]:
    """Return the Autograd kernel of an operator that updates operands, which torch.library does not make."""
    made: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}

    def kernels(keyset: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the operator below autograd, without and with a record, for a set of dispatch keys."""

        def below(*given: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return operator.redispatch(keyset & torch._C._after_autograd_keyset, *given)

        return below, gradient.recorded(below)

    def run(keyset: Any, *given: Any) -> Any:
        keys = keyset.raw_repr()
        below, recording = made.get(keys) or made.setdefault(keys, kernels(keyset))
        recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*given)
        return recording(*given) if recorded else below(*given)

    return run
