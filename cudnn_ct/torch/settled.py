"""Calls of torch's functions that one operator served: they are repeated in fewer steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
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

    A call is settled if one operator was called, without a gradient, on operands of the function, and its
    first result is that of the function.
    """

    def __init__(self) -> None:
        self._calls = BoundedDict(MAX_SETTLED)

    def key(self, function: Callable[..., Any], values: Sequence[Any], names: Iterable[str]) -> Any:
        """Return the key of a call, with ``names`` for the last values; None if it cannot be settled."""
        if torch.is_autocast_enabled():
            return None
        facts: list[Hashable] = [function, *settings(), *names]
        for one in values:
            if isinstance(one, torch.Tensor):
                facts += (one.shape, one.stride(), one.dtype, one.device)
            elif type(one) is list:
                if one and not isinstance(one[0], int):  # weights of a network
                    return None
                facts.append(tuple(one))
            else:
                facts.append(one)
        return tuple(facts)

    def served(self, key: Any, values: Sequence[Any]) -> torch.Tensor | None:
        """Return the result of a call; None if it is not settled, or torch has more to do than to compute."""
        try:
            call, places = self._calls[key]
        except (KeyError, TypeError):  # new, or an argument without a hash
            return None
        tensors = [None if place is None else values[place] for place in places]
        if forward_ad._current_level >= 0 or not only_computes(tensors):
            return None
        result: torch.Tensor = call.run(tensors)[0]
        return result

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
            places = [_place(one, values) for one in tensors]
            if result is first and -1 not in places:
                with suppress(TypeError):
                    self._calls[key] = (call, places)
        return result


def _place(tensor: Any, values: Sequence[Any]) -> int | None:
    """Return the place of a tensor among arguments: None for one that is not given, -1 for another tensor."""
    if tensor is None:
        return None
    return next((place for place, one in enumerate(values) if one is tensor), -1)
