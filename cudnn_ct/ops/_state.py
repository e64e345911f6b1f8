"""State of a call that is not an array, and caches of prepared calls that belong to an object."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from ..array import DeviceArray
from ..context import BoundedDict, Context
from ._call import PreparedCall, run

__all__ = ["CallState", "OwnedCache"]


class OwnedCache:
    """A cache in each thread for what it prepared for one object. All of them are dropped with this."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._token = object()
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        weakref.finalize(self, _drop_owned, self._token, self._contexts).atexit = False

    def of(self, context: Context) -> BoundedDict:
        """Return the cache of a thread on a device."""
        found: BoundedDict | None = context.plans.get(self._token)
        if found is None:
            found = context.plans[self._token] = BoundedDict(self._limit)
            self._contexts.add(context)
        return found

    def values(self) -> list[DeviceArray]:
        """Return the entries of all threads."""
        caches = [context.plans.get(self._token) for context in list(self._contexts)]
        return [entry for cache in caches if cache for entry in list(cache.values())]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the limit; the entries belong to the original."""
        return OwnedCache, (self._limit,)


def _drop_owned(token: object, contexts: Iterable[Context]) -> None:
    for context in list(contexts):
        context.plans.pop(token, None)


class CallState:
    """State of one call that is not an array: arguments in host memory, and what later calls need of it.

    A plan reads it as ``context.state``. :func:`execute` sets ``call``, ``operands`` and ``results``: the
    prepared call and the arrays that it ran on. ``cache`` is where the prepared call is kept if it belongs to
    an object. ``changed`` is memory that the plan reads and writes, and that belongs to no caller.
    """

    __slots__ = ("cache", "call", "changed", "operands", "results")

    call: PreparedCall
    operands: tuple[DeviceArray, ...]
    results: list[DeviceArray]

    def __init__(self, cache: OwnedCache | None = None, changed: tuple[DeviceArray, ...] = ()) -> None:
        self.cache = cache
        self.changed = changed

    def calls(self, ctx: Context) -> dict[Any, Any]:
        """Return the cache of the prepared call."""
        return ctx.calls if self.cache is None else self.cache.of(ctx)

    def run(
        self, ctx: Context, call: PreparedCall, operands: tuple[DeviceArray, ...], *arguments: Any
    ) -> list[DeviceArray]:
        """Run a call as :func:`run` does, with this state in the context."""
        stream = ctx.stream
        for array in self.changed:
            if array.writer is not stream or array._uses is not None:
                array.before_write(stream)
        self.call, self.operands = call, operands
        outer, ctx.state = ctx.state, self  # a finalizer may make this call within another one
        try:
            self.results = run(ctx, call, operands, *arguments)
        finally:
            ctx.state = outer
            for array in self.changed:
                if array.home is not stream or array.writer is not stream:
                    array.after_write(stream)
        return self.results
