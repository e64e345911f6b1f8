"""State of a call that is not an operand: caches that belong to an object, and numbers on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from .._caches import CallCache
from ..array import DeviceArray
from ..context import Context
from ..cuda import recording
from ..cuda import stream as streams
from ..cuda.stream import Stream
from ..dtypes import DTYPES
from ..errors import NotInitializedError
from ._operation import PreparedCall

T = TypeVar("T")


class PerContext(Generic[T]):
    """A value for one object in each context (a thread on a device). The values are dropped with this.

    ``token`` is the key of the value in ``Context.plans``.
    """

    def __init__(self) -> None:
        self.token = object()
        # No set and no lock: a finalizer or another thread may add a context while they are listed.
        self._contexts: weakref.WeakValueDictionary[int, Context] = weakref.WeakValueDictionary()
        weakref.finalize(self, _drop, self.token, self._contexts).atexit = False

    def get(self, context: Context) -> T | None:
        """Return the value of a context, None if it has none."""
        value: T | None = context.plans.get(self.token)
        return value

    def put(self, context: Context, value: T) -> T:
        context.plans[self.token] = value
        self._contexts[id(context)] = context
        return value

    def values(self) -> list[T]:
        contexts = _listed(self._contexts)
        return [value for context in contexts if (value := self.get(context)) is not None]


def _listed(contexts: weakref.WeakValueDictionary[int, Context]) -> list[Context]:
    return [context for one in contexts.valuerefs() if (context := one()) is not None]


def _drop(token: object, contexts: weakref.WeakValueDictionary[int, Context]) -> None:
    for context in _listed(contexts):
        dropped = context.plans.pop(token, None)
        calls = dropped.values() if isinstance(dropped, dict) else (getattr(dropped, "call", dropped),)
        if any(call is context.last_call for call in calls):
            context.last_call = None  # it would keep native state alive


class OwnedCache:
    """A cache in each context for the calls that it prepared for one object. All are dropped with this."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._caches = PerContext[CallCache]()

    def of(self, context: Context) -> CallCache:
        found: CallCache | None = context.plans.get(self._caches.token)  # as `get`, whose call takes longer
        return self._caches.put(context, CallCache(self._limit)) if found is None else found

    def values(self) -> list[PreparedCall]:
        return [call for cache in self._caches.values() for call in list(cache.values())]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the limit; the calls belong to the original."""
        return OwnedCache, (self._limit,)


class CallState:
    """State of one call that is not an array: arguments in host memory, and what later calls need of it.

    A plan reads it as ``context.state``. :func:`execute` sets ``call``, ``operands`` and ``results``: the
    prepared call and the arrays that it ran on. ``cache`` is where the prepared call is kept if it belongs to
    an object. ``changed`` is memory that the plan reads and writes, and that belongs to no caller.
    ``value`` has these arguments.
    ``variant`` has the part of the state that a run depends on; None, the default, for a run that must not be
    replayed.
    """

    __slots__ = ("cache", "call", "changed", "operands", "results", "value", "variant")

    call: PreparedCall
    operands: tuple[DeviceArray, ...]
    results: Sequence[DeviceArray]

    def __init__(
        self,
        cache: OwnedCache | None = None,
        changed: tuple[DeviceArray, ...] = (),
        value: Any = None,
        variant: tuple[str, ...] | None = None,
    ) -> None:
        self.cache, self.changed, self.value, self.variant = cache, changed, value, variant

    def calls(self, ctx: Context) -> CallCache:
        return ctx.calls if self.cache is None else self.cache.of(ctx)

    def run(
        self,
        run: Callable[..., Sequence[DeviceArray]],
        ctx: Context,
        call: PreparedCall,
        operands: tuple[DeviceArray, ...],
        *arguments: Any,
    ) -> Sequence[DeviceArray]:
        """Run a call as ``run`` of `ops._call` does, with this state in the context; the stream is last."""
        stream: Stream = arguments[-1]
        for array in self.changed:
            if array.writer is not stream or array._uses is not None:
                array.before_write(stream)
        self.call, self.operands = call, operands
        outer, ctx.state = ctx.state, self  # a finalizer may make this call within another one
        try:
            self.results = run(ctx, call, operands, *arguments, self.variant)
        finally:
            ctx.state = outer
            for array in self.changed:
                if array.home is not stream or array.writer is not stream:
                    array.after_write(stream)
        return self.results


# --- lengths, labels and other numbers on the device -------------------------------------------------------


class DeviceNumbers:
    """Numbers on the device, owned by the default stream because they outlive the other streams."""

    __slots__ = ("_array", "_is_written", "_name")

    def __init__(self, device: int, values: Sequence[float], name: str, dtype: str = "int32") -> None:
        import numpy as np

        home, row = streams.default_stream(device), DTYPES[dtype]
        self._array = DeviceArray.from_host(np.array(values, row.numpy), row, "nchw", home)
        self._is_written = False  # as far as streams other than the default one know
        self._name = name

    def on(self, ctx: Context, owner: object = None) -> DeviceArray:
        """Return the array for work on the stream of a context; a captured graph keeps it, and ``owner``."""
        array, stream = self._array, ctx.call_stream
        if stream is not array.home:
            capturing = ctx.capturing
            if not self._is_written:  # once, because the numbers do not change
                if capturing and recording.current() is None:
                    raise not_on_stream(self._name)
                streams.wait(streams.default_stream(array.device))
                self._is_written = True
            if capturing:
                for kept in (owner or array, array):
                    ctx.pin(kept)
        array.writer = stream  # nothing has to wait
        return array

    def keep_until_done(self, stream: Stream) -> None:
        """Keep the memory until the work that is enqueued on a stream is done."""
        if stream is not self._array.home:
            self._array.record_use(stream)


def not_on_stream(name: str) -> NotInitializedError:
    """Return the error for numbers that a capture would have to copy to the device."""
    return NotInitializedError(
        f"{name} were not seen before on this stream, and a capture cannot copy them to the device; "
        "make the same call once on this stream before the capture"
    )
