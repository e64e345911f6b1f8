"""Calls on arrays of another library with the attributes of those that a prepared call was made on before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._config import config
from ..array import DeviceArray
from ..context import Context, local
from ..cuda import stream as streams
from ..cuda.array_key import ArrayKey
from ..cuda.foreign import library_of
from ..cuda.stream import LEGACY_DEFAULT, in_use
from ._operation import PreparedCall
from ._replay import replayed


def repeat_of(
    run: Callable[..., Sequence[DeviceArray]],
    ctx: Context,
    call: PreparedCall,
    arrays: Sequence[Any],
    keys: Sequence[ArrayKey],
    count: int,
) -> Callable[..., Sequence[DeviceArray] | None] | None:
    """Return a function that makes a call of ``ctx`` on other arrays; None if there is none.

    It takes the context, which keeps it, the arrays, alpha and beta. The arrays are ``count`` operands, and
    the results unless all are new. It returns None if their attributes, the settings or the stream are
    others. ``run`` is that of `ops._call`.
    """
    library = library_of(type(arrays[0]))
    if library is None or any(library_of(type(one)) is not library for one in arrays):
        return None
    given = [*enumerate(keys)][count:]
    partly = given and len(given) < len(call.result_slots)
    if partly or local.contexts.get(ctx.device) is not ctx:  # or it is made within another call
        return None
    read = library.reader(arrays, keys)
    if read is None:
        return None
    snapshot, default, device, alone = config.snapshot, ctx.default, ctx.device, ctx.alone
    owner, current, end = library.owner, library.current, 1 + count
    new: tuple[Any, ...] = (None,) * len(call.result_slots)

    def repeat(ctx: Context, arrays: tuple[Any, ...], alpha: Any, beta: Any) -> Sequence[DeviceArray] | None:
        facts = read(arrays)
        if facts is None or ctx.running or config.snapshot is not snapshot:
            return None
        where = default if facts[0] == LEGACY_DEFAULT else current(device)
        if (used := in_use.get()) is not None and used is not where:
            return None
        outs = () if given else new
        for place, key in given:
            outs += (DeviceArray(key, facts[1 + place], owner(arrays[place]), where, where, True),)
        previous = None if alone else ctx.enter()
        try:
            # As in `run`, which reads pointers again. Keys of replays of scaled calls have more than these.
            plain = given and ctx.stream is where and ctx.lent is None and ctx.watched is None
            if plain and replayed(ctx, call, facts):
                ctx.last_call = call
                return outs
            return run(ctx, call, arrays[:count], outs, facts[:end], False, alpha, beta, where)
        finally:
            if previous is not None:
                streams.restore_device(previous)

    local.contexts.last = ctx
    return repeat
