"""Pair of calls to time: an operation by PyTorch and by cudnn_ct, on the same operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from harness.comparison import distance, tensor_of
from harness.operands import Array, Operands
from harness.timing import Call

from cudnn_ct.dtypes import as_dtype

Tensors = dict[str, list[Any]]  # by role, one for each set of operands


class Pair(NamedTuple):
    """One operation on both sides.

    ``arrays`` are operands and results by role. "out" is the result that is passed as ``out=``, and "made" a
    result that the call allocates. A call returns its results, in the same order on both sides. ``prepare``
    sets the values of the operands. After that, ``theirs`` and ``ours`` return the calls.
    """

    arrays: dict[str, Array]
    theirs: Callable[[Operands], Call]
    ours: Callable[[Operands], Call]
    prepare: Callable[[Tensors], None] | None = None
    spare: tuple[str, ...] = ()  # operands that the formula does not need
    updated: tuple[str, ...] = ()  # operands that both sides update in place
    matched: Callable[[list[Any], list[Any], Tensors], Iterable[tuple[Any, Any]]] | None = None
    tolerance: float = 1  # factor of the tolerance of the dtype

    @property
    def bytes(self) -> int:
        """Minimum memory traffic in bytes: each needed array is read or written once."""
        needed = (array for role, array in self.arrays.items() if role not in self.spare)
        return sum(math.prod(array.shape) * as_dtype(array.dtype).itemsize for array in needed)


def difference(pair: Pair, operands: Operands, ours: Call, theirs: Call) -> float:
    """Return the largest relative distance of our results from PyTorch's, for the first set of operands.

    A result that was not written is NaN, and the difference is then NaN too.
    """
    expected = _results(pair, operands, theirs)
    for given in operands.theirs.get("out", ())[:1]:
        given.fill_(math.nan)
    found = _results(pair, operands, ours)
    match = pair.matched or (lambda ours, theirs, _: zip(ours, theirs, strict=False))
    apart = [distance(a, b) for a, b in match(found, expected, operands.theirs)]
    return math.nan if any(map(math.isnan, apart)) else max(apart)


def _results(pair: Pair, operands: Operands, call: Call) -> list[Any]:
    """Return the updated operands and the results of a call, and restore the operands."""
    state = [operands.theirs[role][0] for role in pair.updated]
    before = [tensor.clone() for tensor in state]
    results = call(0)
    several = results if isinstance(results, tuple | list) else (results,)
    # The updated operands come first, because one side may return more results than the other.
    found = [tensor.clone() for tensor in state]
    found += [tensor_of(one) for one in several if one is not None]
    for tensor, old in zip(state, before, strict=True):
        tensor.copy_(old)
    return found
