"""Symbolic sizes of traced programs: results are computed for stand-ins, and their sizes translated back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

__all__ = ["Meta", "results_of_sizes"]

# Sizes that stand for symbols: two sets of primes, so that a size of the program is not mistaken for one.
_STAND_INS = ((131, 137, 139, 149, 151, 157, 163, 167), (211, 223, 227, 229, 233, 239, 241, 251))


class Meta(NamedTuple):
    """Shape, strides and dtype of a tensor."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype


class _UnknownSizeError(Exception):
    """A size of a result is another function of symbols than the sizes of operands are."""


Metas = tuple[Meta | None, ...]
Rule = Callable[[Metas, tuple[Any, ...]], Sequence[Meta]]


def results_of_sizes(rule: Rule, metas: Metas, params: tuple[Any, ...]) -> list[Meta]:
    """Return the results of a rule of concrete sizes for operands and parameters with symbolic ones.

    If sizes of results depend on symbols in another way than sizes of operands, the program is traced for the
    present sizes: of all axes but the first of the first operand, the batch, or of all axes.
    """
    for kept in (None, _first_size(metas)):
        try:
            return _symbolic_results(rule, *_specialised(metas, params, kept))
        except _UnknownSizeError:
            pass
    return list(rule(*_specialised(metas, params, ())))


def _first_size(metas: Metas) -> tuple[Any, ...]:
    first = metas[0]
    return first.shape[:1] if first is not None else ()


def _specialised(
    metas: Metas, params: tuple[Any, ...], kept: tuple[Any, ...] | None
) -> tuple[Metas, tuple[Any, ...]]:
    """Return sizes as numbers, which guards a traced program, except for those in ``kept``; None for all."""
    expressions = [size.node.expr for size in kept or () if isinstance(size, torch.SymInt)]
    free = {symbol for expression in expressions for symbol in expression.free_symbols}

    def number(size: Any) -> Any:
        if not isinstance(size, torch.SymInt):
            return size
        symbols = size.node.expr.free_symbols
        return size if symbols and (kept is None or symbols <= free) else int(size)

    return _mapped(number, metas, params)


def _symbolic_results(rule: Rule, metas: Metas, params: tuple[Any, ...]) -> list[Meta]:
    """Return the results of a rule for stand-ins, with the symbols that these stand for."""
    sizes = _symbolic_sizes(metas, params)
    symbols = sorted({symbol for size in sizes for symbol in size.node.expr.free_symbols}, key=str)
    if not symbols:
        return list(rule(metas, params))
    if len(symbols) > len(_STAND_INS[0]):
        raise _UnknownSizeError
    first, second = (dict(zip(symbols, stand_ins, strict=False)) for stand_ins in _STAND_INS)
    known = {(_at(size, first), _at(size, second)): size for size in sizes}
    try:
        found = [rule(*_mapped(partial(_at, values=values), metas, params)) for values in (first, second)]
    except (ValueError, TypeError) as error:  # a stand-in may not fit where the real size does
        raise _UnknownSizeError from error
    return [_translated(one, two, known) for one, two in zip(*found, strict=True)]


def _symbolic_sizes(metas: Metas, params: tuple[Any, ...]) -> list[torch.SymInt]:
    shapes = [meta.shape for meta in metas if meta is not None]
    shapes += [param for param in params if isinstance(param, tuple)]
    return [size for shape in shapes for size in shape if isinstance(size, torch.SymInt)]


def _at(size: Any, values: dict[Any, int]) -> int:
    """Return a size for values of its symbols."""
    return int(size.node.expr.subs(values)) if isinstance(size, torch.SymInt) else int(size)


def _mapped(
    number: Callable[[Any], Any], metas: Metas, params: tuple[Any, ...]
) -> tuple[Metas, tuple[Any, ...]]:
    """Apply a function to all sizes, strides and parameters that are sequences."""

    def sizes(numbers: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(number, numbers))

    tensors = tuple(
        None if meta is None else Meta(sizes(meta.shape), sizes(meta.strides), meta.dtype) for meta in metas
    )
    return tensors, tuple(sizes(one) if isinstance(one, tuple) else one for one in params)


def _translated(one: Meta, two: Meta, known: dict[tuple[int, int], Any]) -> Meta:
    """Return the shape with symbols, and the strides of a contiguous tensor in the same order of axes."""
    pairs = zip(one.shape, two.shape, strict=True)
    try:
        shape = tuple(n if n == m else known[n, m] for n, m in pairs)
    except KeyError:
        raise _UnknownSizeError from None
    if one.strides == two.strides:
        return Meta(shape, one.strides, one.dtype)
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for axis in sorted(range(len(shape)), key=lambda axis: (one.strides[axis], one.shape[axis] > 1)):
        strides[axis] = step
        step = step * shape[axis]
    return Meta(shape, tuple(strides), one.dtype)
