"""Calls of plans and built graphs on arrays with the keys of the last call: nothing is checked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._config import config
from ..array import DeviceArray
from ..context import local
from ..cuda import stream as streams
from ..cuda.stream import in_use
from ._call import run
from ._operands import read_arrays
from ._operation import PreparedCall
from ._replay import replayed
from ._state import PerContext

__all__ = ["ThreadPlan", "launch_known", "run_known"]


class ThreadPlan:
    """Prepared call of one thread for a plan, with the arrays and the settings that were checked last.

    ``keys`` are the keys of operands and results that fit ``call``, None for a result that was always new.
    """

    __slots__ = ("call", "keys", "settings")

    def __init__(self, call: PreparedCall) -> None:
        self.call = call
        self.keys: tuple[Any, ...] = ()
        self.settings: Any = None

    def remember(self, arrays: Sequence[DeviceArray | None], settings: object) -> None:
        """Keep the keys of arrays that were checked; those of new results, which are None, stay as before."""
        before = self.keys or (None,) * len(arrays)
        self.keys = tuple(
            old if array is None else array.key for array, old in zip(arrays, before, strict=True)
        )
        self.settings = settings


def launch_known(plans: PerContext[Any], arrays: tuple[Any, ...]) -> bool:
    """Launch the CUDA graph of a call on known arrays that one stream alone uses; return whether it did.

    ``arrays`` are the operands and the results.
    """
    first = arrays[0]
    if type(first) is not DeviceArray:
        return False
    ctx = local.contexts.get(first.key.device)
    if ctx is None or ctx.running or not ctx.alone:
        return False
    where, mine = in_use.get() or ctx.default, ctx.plans.get(plans.token)
    if mine is None or mine.settings is not config.snapshot or ctx.stream is not where:
        return False
    if len(arrays) != len(mine.keys):
        return False
    facts: list[Any] = [where.handle]
    try:
        for array, key in zip(arrays, mine.keys, strict=False):  # strict is slower
            if array.key is key and array.writer is where and array.home is where and array._uses is None:
                facts.append(array.pointer)
            else:
                return False
    except AttributeError:  # an array of another library, or a new result
        return False
    if not replayed(ctx, mine.call, tuple(facts)):
        return False
    ctx.last_call = mine.call
    return True


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
    if ctx is None or not ctx.alone:
        return None
    mine = ctx.plans.get(plans.token)
    if mine is None or mine.settings is not config.snapshot or len(keys) != len(mine.keys):
        return None
    for key, known in zip(keys, mine.keys, strict=False):
        if key is not known and key is not None:
            return None
    return run(ctx, mine.call, inputs, tuple(given), (where.handle, *pointers), False, alpha, beta, where)
