"""Calls of torch's functions that one operator served: they are repeated in fewer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from .._caches import BoundedDict
from .kernels import settings, watched
from .operators import only_computes
from .prepared import Call

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

    def find(self, function: Callable[..., Any], values: Sequence[Any], names: Iterable[str]) -> Any:
        """Return the key of a call, and the function of the values that repeats it if it is settled.

        ``names`` are those of the last values. The key is None if the call cannot be settled, and the
        function is None if it is not, or if torch has more to do than to compute. The function returns None
        for a call that differs in more than its key.
        """
        if _autocasts():
            return None, None
        facts: list[Any] = [function, *settings(), *names]
        computes, records = True, _grad_enabled()
        try:
            for one in values:
                kind = type(one)
                if kind in _PLAIN:
                    facts += (one.shape, one.stride(), one.dtype, one.device)
                    if one.is_neg() or (records and one.requires_grad):
                        computes = False
                elif kind in _SEQUENCES:
                    for number in one:
                        if type(number) is not int:  # 1.0 has the hash of 1, and lists have tensors
                            return None, None
                    facts.append(tuple(one))
                elif kind in _NUMBERS:
                    facts += (kind, one)
                else:
                    return None, None
        except RuntimeError:  # a tensor without strides
            return None, None
        key = tuple(facts)
        settled = self._calls.get(key)
        if settled is None or not computes or forward_ad._current_level >= 0 or not only_computes(()):
            return key, None
        return key, settled

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
            settled = self._settled(key[0], values, result, *seen[0])
            if settled is not None:
                self._calls[key] = settled
        return result

    def _settled(
        self,
        function: Any,
        values: Sequence[Any],
        result: Any,
        call: Call,
        tensors: Sequence[Any],
        first: Any,
    ) -> Callable[[Sequence[Any]], Any] | None:
        """Return a function of the values that repeats a call; None if there is none."""
        again = self._again.get(function)
        if again is not None:
            absent = tensors[3:]
            if any(one is not None for one in absent):
                return None
            return lambda values: again(values, lambda *operands: call.run((*operands, *absent))[0])
        # A tensor that is not an operand is a number, and the key does not have its value.
        given = {id(one): place for place, one in enumerate(values) if isinstance(one, torch.Tensor)}
        operands = [one for one in tensors if one is not None]
        if result is not first or len(given) != len(operands) or {*given} != {*map(id, operands)}:
            return None
        places = [None if one is None else given[id(one)] for one in tensors]
        return lambda values: call.run([None if one is None else values[one] for one in places])[0]


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_SEQUENCES = frozenset((tuple, list, torch.Size))
_NUMBERS = frozenset((int, float, bool, str, type(None)))
_autocasts, _grad_enabled = torch.is_autocast_enabled, torch.is_grad_enabled
