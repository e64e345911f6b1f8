"""Calls on arrays that were checked before: of plans, of built graphs, and of other libraries' operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from .._config import config
from ..array import DeviceArray
from ..context import Context, local
from ..cuda import stream as streams
from ..cuda.foreign import Library, library_of
from ..cuda.stream import Stream, in_use
from ..shapes.specs import UNALIGNED
from ._call import NO_VARIANT, ONE, ZERO, run
from ._operands import read_arrays
from ._operation import PreparedCall
from ._replay import replayed
from ._state import PerContext


class ThreadPlan:
    """Prepared call of one thread for a plan, with the arrays and the settings that were checked last.

    ``keys`` are the keys of operands and results that fit ``call``, None for a result that was always new.
    """

    __slots__ = ("_facts", "_library", "call", "keys", "settings")

    def __init__(self, call: PreparedCall) -> None:
        self.call = call
        self._keep((), None)

    def remember(self, arrays: Sequence[DeviceArray | None], settings: object) -> None:
        """Keep the keys of arrays that were checked; those of new results, which are None, stay as before."""
        before = self.keys or (None,) * len(arrays)
        keys = tuple(old if array is None else array.key for array, old in zip(arrays, before, strict=True))
        self._keep(keys, settings)

    def use(self, settings: object) -> None:
        """Forget arrays that were checked with other settings, and replays, which may be off now."""
        if settings is not self.settings:
            self.call.replays.clear()
            self._keep((), settings)

    def _keep(self, keys: tuple[Any, ...], settings: object) -> None:
        self.keys, self.settings = keys, settings
        self._library: Library | None = None
        self._facts: tuple[Any, ...] = ()

    def facts(self, library: Library) -> tuple[Any, ...]:
        """Return the attributes of known arrays of a library; empty if a result was always new."""
        if self._library is not library:
            known = None not in self.keys
            self._facts = tuple(library.facts(key) for key in self.keys) if known else ()
            self._library = library
        return self._facts


def launch_known(
    plans: PerContext[Any], inputs: tuple[Any, ...], outs: tuple[Any, ...]
) -> Sequence[DeviceArray] | None:
    """Launch the CUDA graph of a call on known arrays that one stream alone uses, all of one library.

    Returns the results; None if the call has to go another way.
    """
    kind = type(inputs[0])
    if kind is not DeviceArray:
        library = library_of(kind)
        return None if library is None else _launch_foreign(plans, inputs, outs, library)
    ctx = local.contexts.get(inputs[0].key.device)
    if ctx is None or ctx.running or not ctx.alone:
        return None
    where, mine = in_use.get() or ctx.default, ctx.plans.get(plans.token)
    if mine is None or mine.settings is not config.snapshot or ctx.stream is not where:
        return None
    arrays, facts = inputs + outs, [where.handle]
    if len(arrays) != len(mine.keys):
        return None
    try:
        for array, key in zip(arrays, mine.keys, strict=False):  # strict is slower
            if array.key is key and array.writer is where and array.home is where:
                facts.append(array.pointer)
            else:
                return None
        for out in outs:
            if out._uses is not None:  # another stream may read it
                return None
    except AttributeError:  # an array of another library, or a new result
        return None
    if not replayed(ctx, mine.call, tuple(facts)):
        return None
    ctx.last_call = mine.call
    return outs


def _launch_foreign(
    plans: PerContext[Any], inputs: tuple[Any, ...], outs: tuple[Any, ...], library: Library
) -> Sequence[DeviceArray] | None:
    """Launch a call on arrays of another library, which its current stream alone uses.

    Nothing depends on whether the pointers are aligned: those of a replay are.
    """
    ctx = local.contexts.get(library.device(inputs[0]))
    if ctx is None or ctx.running or not ctx.alone:
        return None
    where, mine = library.current(ctx.device), ctx.plans.get(plans.token)
    if mine is None or mine.settings is not config.snapshot or ctx.stream is not where:
        return None
    arrays, known = inputs + outs, mine.facts(library)
    if (in_use.get() or where) is not where or len(known) != len(arrays):
        return None
    facts = [where.handle]
    for array, expected in zip(arrays, known, strict=False):  # strict is slower
        pointer = library.pointer(array, expected) if library_of(type(array)) is library else 0
        if not pointer:
            return None
        facts.append(pointer)
    if not replayed(ctx, mine.call, tuple(facts)):
        return None
    ctx.last_call = mine.call
    first = len(inputs)
    return [
        DeviceArray(key, pointer, library.owner(out), where, where, True)
        for out, key, pointer in zip(outs, mine.keys[first:], facts[first + 1 :], strict=True)
    ]


def run_known(
    plans: PerContext[Any], inputs: tuple[Any, ...], outs: tuple[Any, ...], alpha: Any = 1, beta: Any = 0
) -> Sequence[DeviceArray] | None:
    """Run a call on known arrays of any library, which work on one stream now; None if they are not known."""
    where = in_use.get()
    if where is None and type(inputs[0]) is DeviceArray:
        where = streams.default_stream(inputs[0].key.device)
    found = read_arrays(inputs, outs, where)
    if found is None:
        return None
    where, keys, pointers, given = found
    ctx = local.contexts.get(where.device)
    if ctx is None or ctx.running or not ctx.alone:  # a call that interrupts another one has its own context
        return None
    mine = ctx.plans.get(plans.token)
    if mine is None or mine.settings is not config.snapshot or len(keys) != len(mine.keys):
        return None
    for key, known in zip(keys, mine.keys, strict=False):
        if key is not known and key is not None:
            return None
    return run(ctx, mine.call, inputs, tuple(given), (where.handle, *pointers), False, alpha, beta, where)


class _Part(NamedTuple):
    """A prepared call of a function, with its factors: its arrays by their places among the function's.

    ``pointers`` selects the pointers of operands and results, and ``more`` follows them in keys of replays.
    """

    call: PreparedCall
    operands: tuple[int, ...]
    outs: tuple[int, ...]
    factors: tuple[Any, Any]
    pointers: Callable[[Sequence[int]], tuple[int, ...]]
    more: tuple[Any, ...]

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
    the calls, and their addresses are multiples of 16.
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts = PerContext[tuple[object, tuple[_Part, ...]]]()

    def replay(self, where: Stream, pointers: Sequence[int], *lent: int) -> bool:
        """Launch the graph of a function that is one call; return whether that was done.

        ``lent`` are the address and the size of a workspace of the caller. The pointers of a replay are
        aligned.
        """
        ctx = local.contexts.get(where.device)
        if ctx is None or ctx.running or ctx.stream is not where or ctx.watched is not None:
            return False
        known = self._parts.get(ctx)
        if known is None or known[0] is not config.snapshot or len(known[1]) != 1:
            return False
        (part,) = known[1]
        key = (where.handle, *part.pointers(pointers), *part.more, *lent)
        previous = None if ctx.alone else ctx.enter()
        try:
            done = replayed(ctx, part.call, key)
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
        parts = [_part(one, places) for one in seen]
        if parts and None not in parts and len(places) == sum(pointer != 0 for pointer in pointers):
            self._parts.put(ctx, (settings, tuple(one for one in parts if one is not None)))


def _part(seen: tuple[Any, ...], places: dict[int, int]) -> _Part | None:
    """Return a call that ran, by the places of its arrays; None if it used other memory or a state."""
    call, facts, alpha, beta, variant = seen
    count = len(call.inputs)
    try:
        found = tuple(places[pointer] for pointer in facts[1 : 1 + count + len(call.result_slots)])
    except KeyError:
        return None
    if variant is not NO_VARIANT or call.copies is not None:
        return None
    more = facts[1 + len(found) : 1 + len(found) + 3] if alpha is not ONE or beta is not ZERO else ()
    return _Part(call, found[:count], found[count:], (alpha, beta), itemgetter(*found), more)
