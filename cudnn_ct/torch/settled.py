"""Calls of torch's functions that one operator served: they are repeated in fewer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from .._caches import BoundedDict
from .kernels import settings, watched
from .operators import only_computes

__all__ = ["SettledCalls"]

MAX_SETTLED = 4096  # calls in the process


class SettledCalls:
    """The operator's calls that served functions of torch, by all that decides which call that is.

    A call is settled if one operator was called, without a gradient, on the tensors of the function, which
    differ, and its first result is that of the function. ``again`` has functions that do more than that, and
    repeat a call around the attention that it called.
    """

    def __init__(self, again: Mapping[Any, Callable[[Sequence[Any], Any], Any]]) -> None:
        self._calls = BoundedDict(MAX_SETTLED)
        self._again = again

    def key(self, function: Callable[..., Any], values: Sequence[Any], names: Iterable[str]) -> Any:
        """Return the key of a call, with ``names`` for the last values; None if it cannot be settled."""
        if torch.is_autocast_enabled():
            return None
        facts: list[Any] = [function, *settings(), *names]
        try:
            for one in values:
                kind = type(one)
                if kind in _PLAIN:
                    facts += (one.shape, one.stride(), one.dtype, one.device)
                elif kind in _SEQUENCES:
                    for number in one:
                        if type(number) is not int:  # 1.0 has the hash of 1, and lists have tensors
                            return None
                    facts.append(tuple(one))
                elif kind in _NUMBERS:
                    facts += (kind, one)
                else:
                    return None
        except RuntimeError:  # a tensor without strides
            return None
        return tuple(facts)

    def served(self, key: Any, values: Sequence[Any]) -> Any:
        """Return the result of a call; None if it is not settled, or torch has more to do than to compute."""
        try:
            call, places = self._calls[key]
        except KeyError:
            return None
        again = self._again.get(key[0])
        if again is None:
            tensors = [None if place is None else values[place] for place in places]
        else:
            tensors = [one for one in values if type(one) in _PLAIN]
        if forward_ad._current_level >= 0 or not only_computes(tensors):
            return None
        if again is None:
            return call.run(tensors)[0]
        return again(values, lambda q, k, v: call.run((q, k, v, *places[3:]))[0])

    def forget(self, key: Any) -> None:
        """Forget a call that was settled."""
        self._calls.pop(key, None)

    def learn(self, key: Any, values: Sequence[Any], serve: Callable[[], Any]) -> Any:
        """Return the result of a call, and settle it if it can be repeated."""
        outer, watched.calls = watched.calls, []
        try:
            result = serve()
            seen = watched.calls
        finally:
            watched.calls = outer
        if len(seen) == 1:
            call, tensors, first = seen[0]
            if key[0] in self._again:
                if not any(one is not None for one in tensors[3:]):
                    self._calls[key] = (call, (None,) * len(tensors))
                return result
            # A tensor that is not an operand is a number, and the key does not have its value.
            given = {id(one): place for place, one in enumerate(values) if isinstance(one, torch.Tensor)}
            operands = [one for one in tensors if one is not None]
            if result is first and len(given) == len(operands) and {*given} == {*map(id, operands)}:
                places = [None if one is None else given[id(one)] for one in tensors]
                self._calls[key] = (call, places)
        return result


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_SEQUENCES = frozenset((tuple, list, torch.Size))
_NUMBERS = frozenset((int, float, bool, str, type(None)))
