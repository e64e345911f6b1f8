"""Records calls that repeat as CUDA graphs, which are launched instead of the calls.

A call that repeats with the same pointers has a graph of its own for them. A call whose pointers change has
one graph for all that are as aligned: each launch writes them into its nodes, which takes longer. While
the device waits for graphs, that graph is preferred, or the calls are made without graphs.

A call on arrays of another library is repeated without its checks on arrays with the same attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from .._config import config
from ..array import DeviceArray
from ..context import Context, local
from ..cuda import movable
from ..cuda import replay as replays
from ..cuda import stream as streams
from ..cuda.allocator import Workspace
from ..cuda.array_key import ArrayKey
from ..cuda.foreign import library_of
from ..cuda.graph import Graph
from ..cuda.lifetime import ExportedMemory
from ..cuda.replay import Replay
from ..cuda.stream import LEGACY_DEFAULT, Stream, in_use
from ..cuda.typed_memory import TypedMemory
from ..errors import AllocationError
from ..shapes.specs import UNALIGNED
from ._operands import share_elements
from ._operation import MAX_POINTER_SETS, PreparedCall

REPEATS = 8  # runs with the same pointers before the next one is recorded, which takes as long as 20 runs
MOVES = 16  # runs with any pointers before the graph for others is made, which takes four times as long
SOON, LATER = -8, -64  # counts of runs after which a recording is tried again
NEVER = -(2**62)  # a count of runs that does not reach REPEATS

_Work = Callable[[Stream, tuple[int, ...]], object]
"""Enqueues a call on a stream and pointers."""

SOME = (True,)  # for results of which one may overlap an operand

_Captured = tuple[Graph, Callable[..., int]]
"""A graph, and the function that launches it; that for any pointers takes these."""


def replayed(ctx: Context, call: PreparedCall, key: Any, given: Sequence[object] = SOME) -> bool:
    """Launch a graph of a call instead of its plan; return whether that was done.

    ``key`` is all that a graph depends on in this call: the stream, the pointers, and what else varies.
    ``given`` has None for each result in new memory, which overlaps nothing.
    """
    running, ctx.running = ctx.running, True  # a finalizer must not free the workspace of the graph
    try:
        backlog, replay, moved = ctx.replays.backlog, call.replays.get(key), None
        if replay is None or backlog.left <= 0:
            if backlog.left <= backlog.until:
                # Not on the stream of the context: a finalizer may have made it work on another.
                backlog.ask(Stream(key[0], ctx.device))
            if backlog.alone:
                return False
            if replay is None or backlog.moves:
                moved = _moved(call, key, given, backlog.moves)
                replay = moved or call.replays.get(key)
            if replay is None:
                return False
        if moved is None:
            if replay.plan is not call.selected.plan:
                call.replays.clear()
                return False
            if replay.launch():
                return False
        if replay.recent is not backlog.batch:
            replay.recent = backlog.batch
            backlog.graphs += 1
        backlog.left -= 1
        return True
    finally:
        ctx.running = running


def _moved(call: PreparedCall, key: Any, given: Sequence[object], preferred: bool) -> Replay | None:
    """Launch the graph of a call that takes any pointers, and return it; None if that was not done.

    Unless it is preferred, it is not launched if the graph for these pointers is due.
    """
    end, runs = 1 + len(call.spans), call.runs
    if len(key) == end:  # as of most calls: a slice takes as long as all else here
        replay, pointers = call.replays.get((None, key[0])), key[1:]
    else:
        replay, pointers = call.replays.get((None, key[0], *key[end:])), key[1:end]
    if replay is None:
        return None
    count = runs.get(key)
    if count is None:
        if any(one is not None for one in given) and not _are_disjoint(call, pointers):
            return None
        count = 0
    elif count and count + 1 >= REPEATS:
        if not preferred:
            return None
        count -= 1  # it stays due
    if replay.plan is not call.selected.plan:
        call.replays.clear()
        return None
    if replay.launch(pointers):
        return None
    if len(runs) < MAX_POINTER_SETS:
        runs[key] = count + 1
    else:
        call.set_runs(key, count + 1)
    return replay


def _are_disjoint(call: PreparedCall, pointers: Any) -> bool:
    spans = call.spans
    for place in range(len(call.inputs), len(spans)):
        low, high = spans[place]
        first, last = pointers[place] + low, pointers[place] + high
        for other, (pointer, (low, high)) in enumerate(zip(pointers[:place], spans, strict=False)):
            if pointer + low < last and first < pointer + high:  # as of adjacent columns of a matrix
                specs = (*call.inputs, *call.results)
                if share_elements(specs[other], specs[place], pointers[place] - pointer):
                    return False
    return True


def count_run(
    ctx: Context, call: PreparedCall, key: Any, pointers: tuple[int, ...], factors: tuple[Any, float]
) -> None:
    """Count a run that was enqueued, and record it for later ones after `REPEATS` or `MOVES` runs."""
    # With a graph for this run, the stream is captured, or the launch has failed.
    if key in call.replays or ctx.replays.backlog.alone or not config.replay or config.debug_sync:
        return
    runs, lent = call.runs, ctx.lent
    if lent is None or lent.size > 0:  # none of it: the run finds out how much a plan needs
        count = runs.get(key, 0) + 1
        if count >= REPEATS:
            run = _Run(ctx, call, pointers, factors)
            count = run.record(key, count, run.capture)
        if key in runs:
            runs[key] = count
        else:
            call.set_runs(key, count)
        if count < LATER:  # it cannot be captured
            return
    following = (None, key[0], *key[1 + len(pointers) :])
    distinct = len({0, *pointers}) > len(pointers)  # others cannot be moved
    if lent is None and following not in call.replays and distinct:
        count = runs.get(following, 0) + 1
        if count >= MOVES:
            run = _Run(ctx, call, pointers, factors)
            count = run.record(following, count, run.capture_for_any)
        if following in runs:
            runs[following] = count
        else:
            call.set_runs(following, count)


class _Run(NamedTuple):
    """A run of a call that was enqueued, to be recorded."""

    ctx: Context
    call: PreparedCall
    pointers: tuple[int, ...]
    factors: tuple[Any, float]

    def record(self, key: Any, count: int, capture: Callable[[_Work], _Captured]) -> int:
        """Add a graph to the replays of the call, unless the stream is captured; return the count of runs."""
        ctx, call, used = self.ctx, self.call, dict[int, object]()
        if ctx.capturing:
            return count
        stream, plan = ctx.stream, call.selected.plan
        if call.selected.needs_timing or any(pointer & UNALIGNED for pointer in self.pointers):
            return NEVER
        if call.selected.exploring:  # launches would end the trials
            return 0
        try:
            if not replays.has_room(ctx.device, 1):
                return SOON
            graph, launch = capture(partial(self._work, used))
        except (replays.NoRoomError, AllocationError):
            return LATER
        except Exception:  # of any kind: the call itself has run
            return NEVER
        # Memory that the plan owns is freed on the default stream: after the last launch on another stream.
        memory = [one for one in used.values() if isinstance(one, TypedMemory)]
        exported = ExportedMemory(memory, streams.default_stream(ctx.device), stream) if memory else None
        replay = Replay(graph, launch, plan, exported, ctx.replays, call.replays, key)
        for one in used.values():
            if isinstance(one, Workspace):
                one.add(replay)
        return 0

    def _work(self, used: dict[int, object], captured: Stream, pointers: tuple[int, ...]) -> None:
        """Run the plan on a stream that is captured, and note what the graph uses."""
        copies = self.call.copies
        with self.ctx.recording(captured) as kept:
            given, _memory = copies.made(self.ctx, pointers) if copies else (pointers, None)
            self.call.selected.plan.run(self.ctx, given, *self.factors)
            used.update(kept)

    def capture(self, work: _Work) -> _Captured:
        """Capture the call on its pointers."""
        stream = self.ctx.stream
        graph = replays.capture(self.ctx.device, lambda captured: work(captured, self.pointers))
        return graph, replays.launcher(graph, stream)

    def capture_for_any(self, work: _Work) -> _Captured:
        """Capture the call for any pointers that are as aligned."""
        stream, device = self.ctx.stream, self.ctx.device
        accept, launcher = partial(replays.accept, device), partial(replays.launcher, stream=stream)
        moved = movable.capture(device, work, self.pointers, accept, launcher)
        return moved.graph, moved.launch


# --- calls on arrays of another library with the attributes of those of an earlier call --------------------


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
