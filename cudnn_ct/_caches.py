"""Caches with a bound."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any


class BoundedDict(dict[Any, Any]):
    """A dict that drops its oldest entry when a new one would exceed the limit.

    Threads may share one. Each of them may exceed the limit by one entry, until the next one is added.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: Any, value: Any) -> None:
        while key not in self and len(self) >= self.limit:
            with suppress(RuntimeError, StopIteration):  # another thread has changed the dict meanwhile
                self.pop(next(iter(self)), None)  # a finalizer may have removed it meanwhile
        super().__setitem__(key, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Restore the limit before the entries, which pickle would otherwise set on an object without it."""
        return BoundedDict, (self.limit,), None, None, iter(self.items())

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; insert ``default`` within the limit if it is missing."""
        if key not in self:
            self[key] = default
        return self.get(key, default)  # another thread may have dropped the entry


MAX_LAYOUTS = 16  # of tensors in calls with the same parameters


class Parameters(list[Any]):
    """Parameters as one object, which is cheap to hash, and functions that repeat calls with them."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def add(self, repeat: Any) -> None:
        """Add a function unless it is None, and drop the oldest one beyond the limit."""
        if repeat is not None:
            self[:] = [repeat, *self[: MAX_LAYOUTS - 1]]


class CallCache(BoundedDict):
    """Prepared calls by keys, which contain one object for all parameters of a call.

    ``parameters(*values)`` returns the :class:`Parameters` of values of the same types that were added; the
    types distinguish 1, 1.0 and True, and members of enums from ints, but not within a tuple, where 1.0 may
    pass for a known 1. It raises LookupError for others, so that the values of a rejected call are not kept.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        adding: list[bool] = []

        def parameters(*_: Any) -> Parameters:
            if not adding:
                raise LookupError
            return Parameters()

        self._adding = adding
        self.parameters = lru_cache(self.limit, typed=True)(parameters)

    def clear(self) -> None:
        super().clear()
        self.parameters.cache_clear()

    def add_parameters(self, values: tuple[Any, ...]) -> Parameters:
        """Return the object for values, whether they are known or not."""
        self._adding.append(True)
        try:
            return self.parameters(*values)
        finally:
            self._adding.pop()

    def __reduce__(self) -> tuple[Any, ...]:
        return CallCache, (self.limit,)
