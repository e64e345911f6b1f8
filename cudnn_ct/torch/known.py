"""Functions of the package that operators call again on other memory: they run what the first call did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from .._config import config
from ..array import DeviceArray
from ..context import Context, local
from ..cuda import stream as streams
from ..cuda.stream import Stream
from ..ops._call import NO_VARIANT, ONE, ZERO, run
from ..ops._operation import PreparedCall
from ..ops._replay import SOME, replayed
from ..ops._state import PerContext
from ..shapes.specs import UNALIGNED

__all__ = ["KnownFunction"]


class _Part(NamedTuple):
    """A prepared call of a function, with its factors: its arrays by their places among the function's.

    ``pointers`` selects the pointers of operands and results, and ``more`` follows them in keys of replays.
    ``given`` is empty if all results are new memory in each call, and ``in_order`` whether keys have the
    pointers as they are, and no more.
    """

    call: PreparedCall
    operands: tuple[int, ...]
    outs: tuple[int, ...]
    factors: tuple[Any, Any]
    pointers: Callable[[Sequence[int]], tuple[int, ...]]
    more: tuple[Any, ...]
    given: Sequence[object]
    in_order: bool

    def run(self, ctx: Context, arrays: Sequence[Any], pointers: Sequence[int], where: Stream) -> None:
        """Run or replay the call on arrays at other addresses."""
        operands = tuple([arrays[place] for place in self.operands])
        slots = zip(self.outs, self.call.result_slots, strict=False)  # strict is slower
        outs = tuple(
            [
                DeviceArray(key, pointers[place], arrays[place], where, where, True)
                for place, (_, key) in slots
            ]
        )
        facts = (where.handle, *[pointers[place] for place in self.operands])
        run(ctx, self.call, operands, outs, facts, False, *self.factors, where)


class KnownFunction:
    """A function of this package on arrays whose attributes its caller has checked: it depends on addresses.

    The first call is watched. If prepared calls on arrays of the caller are all that the function did, later
    ones run those. This holds for functions that only call operations. All arrays belong to the stream of
    the calls, and their addresses are multiples of 16. The last ``results`` arrays are new in each call; the
    function may write to others.
    """

    __slots__ = ("_parts", "_results")

    def __init__(self, results: int) -> None:
        self._results = results
        self._parts = PerContext[tuple[object, tuple[_Part, ...]]]()

    def replay(self, where: Stream, pointers: Sequence[int], lent: tuple[int, ...] = ()) -> bool:
        """Launch the graph of a function that is one call; return whether that was done.

        ``lent`` are the address and the size of a workspace of the caller. The pointers of a replay are
        aligned.
        """
        ctx = local.contexts.get(where.device)
        if ctx is None or ctx.running or ctx.stream is not where or ctx.watched is not None:
            return False
        known = ctx.plans.get(self._parts.token)
        if known is None or known[0] is not config.snapshot or len(known[1]) != 1:
            return False
        (part,) = known[1]
        if part.in_order:
            key = (where.handle, *pointers, *lent)
        else:
            key = (where.handle, *part.pointers(pointers), *part.more, *lent)
        previous = None if ctx.alone else ctx.enter()
        try:
            done = replayed(ctx, part.call, key, part.given)
        finally:
            if previous is not None:
                streams.restore_device(previous)
        if done:
            ctx.last_call = part.call
        return done

    def run(self, where: Stream, arrays: Sequence[Any], pointers: Sequence[int]) -> bool:
        """Run the prepared calls of this thread; return whether they are known.

        An array that is not given has the address 0.
        """
        ctx = local.contexts.get(where.device)
        known = None if ctx is None or ctx.running else self._parts.get(ctx)
        if ctx is None or known is None or known[0] is not config.snapshot:
            return False
        for pointer in pointers:
            if pointer & UNALIGNED:
                return False
        previous = ctx.enter()
        try:
            for part in known[1]:
                part.run(ctx, arrays, pointers, where)
        finally:
            if previous is not None:
                streams.restore_device(previous)
        return True

    def learn(self, ctx: Context, function: Callable[[], object], pointers: Sequence[int]) -> None:
        """Call a function, and keep its prepared calls if all their arrays are at ``pointers``."""
        seen: list[tuple[Any, ...]] = []
        settings, outer, ctx.watched = config.snapshot, ctx.watched, seen
        try:
            function()
        finally:
            ctx.watched = outer
        places = {pointer: place for place, pointer in enumerate(pointers) if pointer}
        if any(pointer & UNALIGNED for pointer in pointers) or settings is not config.snapshot:
            return
        parts = [_part(one, places, len(pointers) - self._results) for one in seen]
        if parts and None not in parts and len(places) == sum(pointer != 0 for pointer in pointers):
            self._parts.put(ctx, (settings, tuple(one for one in parts if one is not None)))


def _part(seen: tuple[Any, ...], places: dict[int, int], new: int) -> _Part | None:
    """Return a call that ran, by the places of its arrays; None if it used other memory or a state.

    ``new`` is the first place of an array that is new in each call.
    """
    call, facts, alpha, beta, variant = seen
    count = len(call.inputs)
    try:
        found = tuple(places[pointer] for pointer in facts[1 : 1 + count + len(call.result_slots)])
    except KeyError:
        return None
    if variant is not NO_VARIANT or call.copies is not None:
        return None
    more = facts[1 + len(found) : 1 + len(found) + 3] if alpha is not ONE or beta is not ZERO else ()
    given = () if min(found[count:]) >= new else SOME
    in_order = not more and found == tuple(range(len(found)))
    return _Part(call, found[:count], found[count:], (alpha, beta), itemgetter(*found), more, given, in_order)
