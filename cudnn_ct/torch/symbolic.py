"""Symbolic sizes of traced programs: results are computed for stand-ins, and their sizes translated back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

__all__ = ["Meta", "results_of_sizes"]

# Sizes that stand for symbols: two sets of primes, so that no size of the program is mistaken for one. Many
# layers can halve them before they are too small.
_STAND_INS = (
    (2003, 2011, 2017, 2027, 2029, 2039, 2053, 2063),
    (3001, 3011, 3019, 3023, 3037, 3041, 3049, 3061),
)


class Meta(NamedTuple):
    """Shape, strides and dtype of a tensor."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype


class _UnknownSizeError(Exception):
    """A size of a result is an unknown function of symbols."""


Metas = tuple[Meta | None, ...]
Rule = Callable[[Metas, tuple[Any, ...]], Sequence[Meta]]


def results_of_sizes(rule: Rule, metas: Metas, params: tuple[Any, ...]) -> list[Meta]:
    """Return the results of a rule of concrete sizes for operands and parameters with symbolic ones.

    Sizes of results are sizes of operands, or numbers of windows. If they depend on symbols in another way,
    or if operands fit for the present sizes only, the program is traced for these: of channels, of all axes
    but the batch, or of all axes.
    """
    first = metas[0].shape if metas[0] is not None else ()
    for kept in (None, (*first[:1], *first[2:]), first[:1]):
        try:
            return _symbolic_results(rule, *_specialised(metas, params, kept))
        except _UnknownSizeError:
            pass
    return list(rule(*_specialised(metas, params, ())))


def _specialised(
    metas: Metas, params: tuple[Any, ...], kept: tuple[Any, ...] | None
) -> tuple[Metas, tuple[Any, ...]]:
    """Return sizes as numbers, which guards a traced program, except for those in ``kept``; None for all.

    Strides, which are products of sizes, keep the symbols of sizes that are kept.
    """
    expressions = [size.node.expr for size in kept or () if isinstance(size, torch.SymInt)]
    free = {symbol for expression in expressions for symbol in expression.free_symbols}

    def number(size: Any) -> Any:
        if not isinstance(size, torch.SymInt):
            return size
        symbols = size.node.expr.free_symbols
        if kept is None or symbols <= free:
            return size if symbols else int(size)
        for symbol in symbols - free if symbols & free else ():
            int(size.node.shape_env.create_symintnode(symbol, hint=None))
        return size if size.node.expr.free_symbols & free else int(size)

    return _mapped(number, metas, params)


def _symbolic_results(rule: Rule, metas: Metas, params: tuple[Any, ...]) -> list[Meta]:
    """Return the results of a rule for stand-ins, with the symbols that these stand for."""
    sizes = _symbolic_sizes(metas, params)
    steps = [step for meta in metas if meta for step in meta.strides if isinstance(step, torch.SymInt)]
    # Strides of a slice have the sizes of the whole tensor.
    symbols = sorted({symbol for size in (*sizes, *steps) for symbol in size.node.expr.free_symbols}, key=str)
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
    axes = _Axes(rule, *_mapped(partial(_at, values=first), metas, params), metas)
    return [
        _translated(one, two, known, partial(axes.size, place))
        for place, (one, two) in enumerate(zip(*found, strict=True))
    ]


MAX_STRIDE = 64  # of the windows whose number is a symbolic size


class _Axes:
    """Sizes of results as functions of the sizes of the first operand along the same axes.

    ``metas`` and ``params`` have numbers, ``symbolic`` has the sizes that these stand for. A number of
    windows is ``(n + c) // s + 1``, and a size of a transposed convolution is ``s * n + c``.
    """

    def __init__(self, rule: Rule, metas: Metas, params: tuple[Any, ...], symbolic: Metas) -> None:
        self._rule, self._metas, self._params, self._symbolic = rule, metas, params, symbolic

    def size(self, place: int, axis: int) -> Any:
        """Return the symbolic size of an axis of a result."""
        first, symbolic = self._metas[0], self._symbolic[0]
        if first is None or symbolic is None or axis >= len(symbolic.shape):
            raise _UnknownSizeError
        try:
            return self._function(place, axis, first.shape[axis])(symbolic.shape[axis])
        except (ValueError, TypeError, IndexError) as error:  # a size does not fit
            raise _UnknownSizeError from error

    def _function(self, place: int, axis: int, n: int) -> Callable[[Any], Any]:
        """Return the size of an axis of a result as a function of a size of the first operand near ``n``."""
        sizes = [self._at(place, axis, n)]
        rises: list[int] = []
        while len(rises) < 2 and len(sizes) < 2 * MAX_STRIDE:
            sizes.append(self._at(place, axis, n + len(sizes)))
            if sizes[-1] != sizes[-2]:
                rises.append(len(sizes) - 1)
        if len(rises) < 2:
            raise _UnknownSizeError
        stride, slope = rises[1] - rises[0], sizes[-1] - sizes[-2]
        if stride == 1:
            offset = sizes[0] - n * slope

            def function(size: Any) -> Any:
                return size * slope + offset

        else:
            offset = stride * sizes[0] - n - rises[0]

            def function(size: Any) -> Any:
                return (size + offset) // stride + 1

        far = n + 10 * MAX_STRIDE + 1
        if function(far) != self._at(place, axis, far):
            raise _UnknownSizeError
        return function

    def _at(self, place: int, axis: int, n: int) -> int:
        """Return the size of a result for a size of the first operand."""
        first = self._metas[0]
        assert first is not None
        shape = (*first.shape[:axis], n, *first.shape[axis + 1 :])
        changed = Meta(shape, _packed_strides(shape), first.dtype)
        return int(self._rule((changed, *self._metas[1:]), self._params)[place].shape[axis])


def _packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


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


def _translated(one: Meta, two: Meta, known: dict[tuple[int, int], Any], other: Callable[[int], Any]) -> Meta:
    """Return the shape with symbols, and the strides of a contiguous tensor in the same order of axes.

    ``other`` returns the size of an axis that is not that of an operand.
    """
    pairs = enumerate(zip(one.shape, two.shape, strict=True))
    shape = tuple(n if n == m else known[n, m] if (n, m) in known else other(axis) for axis, (n, m) in pairs)
    if one.strides == two.strides:
        return Meta(shape, one.strides, one.dtype)
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for axis in sorted(range(len(shape)), key=lambda axis: (one.strides[axis], one.shape[axis] > 1)):
        strides[axis] = step
        step = step * shape[axis]
    return Meta(shape, tuple(strides), one.dtype)
