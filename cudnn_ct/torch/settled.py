"""Calls of torch's functions that one operator served: they are repeated in fewer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from .._caches import BoundedDict
from .guards import check_of
from .kernels import settings, watched
from .operators import only_computes
from .prepared import Call

__all__ = ["Settled", "SettledCalls"]

MAX_SETTLED = 4096  # calls in the process, but for other strides and dtypes
MAX_LAYOUTS = 8  # of the tensors of a call


_Key = tuple[tuple[Any, ...], Sequence[torch.Tensor]]
"""A call: all but its tensors, and these."""


class Settled:
    """A settled call.

    ``fits`` tells whether it is that of tensors, and ``records`` whether one of them requires a gradient.
    ``repeat`` is a function of the values; it returns None for a call that differs in more than its key.
    ``runs`` counts the calls until they are timed, and ``is_slower`` is set if torch was faster then.
    """

    __slots__ = ("fits", "is_slower", "records", "repeat", "runs")

    def __init__(
        self, fits: Callable[..., bool], records: bool, repeat: Callable[[Sequence[Any]], Any]
    ) -> None:
        self.fits, self.records, self.repeat = fits, records, repeat
        self.runs, self.is_slower = 0, False


class SettledCalls:
    """The operator's calls that served functions of torch, by all that decides which call that is.

    A call is settled if one operator was called, without a gradient, on the tensors of the function, which
    differ, and its first result is that of the function. ``again`` has functions that do more than that, and
    repeat a call around the attention that it called.
    """

    def __init__(self, again: Mapping[Any, Callable[[Sequence[Any], Any], Any]]) -> None:
        self._calls = BoundedDict(MAX_SETTLED)
        self._again = again

    def find(
        self, function: Callable[..., Any], values: Sequence[Any], names: Iterable[str]
    ) -> tuple[_Key | None, Settled | None]:
        """Return the key of a call, and the settled call if it is one.

        ``names`` are those of the last values. The key is None if the call cannot be settled, and the
        settled call is None if torch has more to do than to compute.
        """
        if _autocasts():
            return None, None
        facts: list[Any] = [function, *settings(), *names]
        tensors: list[torch.Tensor] = []
        for one in values:
            kind = type(one)
            if kind in _PLAIN:
                facts.append(kind)
                tensors.append(one)
            elif kind in _SEQUENCES:
                for number in one:
                    if type(number) is not int:  # 1.0 has the hash of 1, and lists have tensors
                        return None, None
                facts.append(tuple(one))
            elif kind in _NUMBERS:
                facts += (kind, one)
            else:
                return None, None
        try:
            facts += [one.shape for one in tensors]
        except RuntimeError:  # a nested tensor
            return None, None
        key = tuple(facts), tensors
        for settled in self._calls.get(key[0], ()):
            if settled.fits(*tensors):
                computes = not (settled.records and _grad_enabled()) and forward_ad._current_level < 0
                return key, settled if computes and only_computes(()) else None
        return key, None

    def forget(self, key: _Key) -> None:
        """Forget a call that was settled."""
        facts, tensors = key
        self._calls[facts] = [one for one in self._calls.get(facts, ()) if not one.fits(*tensors)]

    def learn(self, key: _Key, values: Sequence[Any], serve: Callable[[], Any]) -> Any:
        """Return the result of a call, and settle it if it can be repeated."""
        outer, watched.calls = watched.calls, []
        try:
            result = serve()
            seen = watched.calls
        finally:
            watched.calls = outer
        if len(seen) == 1:
            facts, tensors = key
            repeat = self._repeat(facts[0], values, result, *seen[0])
            if repeat is not None:
                self.forget(key)
                records = any(one.requires_grad for one in tensors)
                settled = Settled(check_of(tensors), records, repeat)
                self._calls[facts] = [settled, *self._calls[facts][: MAX_LAYOUTS - 1]]
        return result

    def _repeat(
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
