"""Calls that were prepared on their own, plans and built graphs, on arrays that were checked before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .. import context
from .._caches import Parameters
from .._config import config
from ..array import DeviceArray
from ..context import local
from ..cuda import stream as streams
from ..cuda.stream import in_use
from ..plans.base import Candidate
from ._call import ONE, ZERO, run
from ._operands import read_arrays, read_or_import
from ._operation import PreparedCall
from ._replay import repeat_of, replayed
from ._state import PerContext


class ThreadPlan:
    """Prepared call of one thread for a plan, with the arrays and the settings that were checked last.

    ``keys`` are the keys of operands and results that fit ``call``, None for a result that was always new.
    ``repeats`` repeat the call on tensors.
    """

    __slots__ = ("call", "keys", "repeats", "settings")

    def __init__(self, call: PreparedCall) -> None:
        self.call, self.repeats = call, Parameters()
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


class Prepared:
    """A call that was prepared on its own. ``problem`` is the computation as a value."""

    problem: Any
    _cannot_copy: str  # why it cannot be pickled

    @property
    def _call(self) -> PreparedCall:
        """What this thread has prepared."""
        raise NotImplementedError

    @property
    def candidate(self) -> Candidate | None:
        """The engine or algorithm that runs in this thread; None before autotuning, or if nothing runs."""
        return self._call.selected.candidate

    @property
    def workspace(self) -> int:
        """Bytes of workspace that a run needs."""
        return self._call.selected.plan.workspace

    @property
    def fallback_reason(self) -> str:
        """The reason why a named algorithm or engine does not run; empty if it runs."""
        return self._call.selected.fallback_reason

    def describe(self) -> str:
        """Describe the problem, what runs, its selection, the rejected candidates, and replays."""
        return f"{self.problem}\n{self._call.describe()}"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled; {self._cannot_copy}")


def run_checked(
    checked: Callable[..., PreparedCall],
    inputs: tuple[Any, ...],
    outs: tuple[Any, ...],
    names: tuple[str, ...],
    written: tuple[str, ...],
    stream: Any,
    alpha: Any = ONE,
    beta: Any = ZERO,
) -> Sequence[DeviceArray]:
    """Import the arrays of a call, and run what ``checked`` returns for context, arrays and stream."""
    operands, given, where = read_or_import(inputs, outs, names, written, stream)
    ctx = context.of_device(where.device)
    previous = None if ctx.alone else ctx.enter()
    try:
        call = checked(ctx, operands, given, where)
        facts = [where.handle, *[array.pointer for array in operands]]
        # Whether an array belongs to another stream, or was used on one.
        elsewhere = any(array.writer is not where or array.home is not where for array in operands)
        elsewhere = elsewhere or any(out is not None and not out.belongs_to(where) for out in given)
        return run(ctx, call, operands, given, facts, elsewhere, alpha, beta, where)
    finally:
        streams.restore_device(previous)


def launch_known(
    plans: PerContext[Any], inputs: tuple[Any, ...], outs: tuple[Any, ...]
) -> Sequence[DeviceArray] | None:
    """Launch the graph of a call on known arrays of this package and one stream; None if that fails."""
    if type(inputs[0]) is not DeviceArray:
        return None
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
            if out._uses is not None and out._uses.events:  # another stream may read it
                return None
    except AttributeError:  # an array of another library, or a new result
        return None
    if not replayed(ctx, mine.call, tuple(facts)):
        return None
    ctx.last_call = mine.call
    return outs


def run_known(
    plans: PerContext[Any], inputs: tuple[Any, ...], outs: tuple[Any, ...], alpha: Any = 1, beta: Any = 0
) -> Sequence[DeviceArray] | None:
    """Run a call on known arrays of any library, which work on one stream now; None if they are not known."""
    where, theirs, last = in_use.get(), type(inputs[0]) is not DeviceArray, local.contexts.last
    arrays = (*inputs, *[one for one in outs if one is not None])
    if theirs and last is not None and (mine := last.plans.get(plans.token)) is not None:
        for repeat in mine.repeats:
            results: Sequence[DeviceArray] | None = repeat(last, arrays, alpha, beta)
            if results is not None:
                return results
    if where is None and not theirs:
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
    if theirs:
        fits = [one for one in keys if one is not None]
        mine.repeats.add(repeat_of(run, ctx, mine.call, arrays, fits, len(inputs)))
    return run(ctx, mine.call, inputs, tuple(given), (where.handle, *pointers), False, alpha, beta, where)
