"""Records calls that repeat as CUDA graphs, which are launched instead of the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._config import config
from ..context import Context
from ..cuda import replay as replays
from ..cuda import stream as streams
from ..cuda.lifetime import ExportedMemory
from ..cuda.replay import Replay
from ..cuda.stream import Stream
from ..cuda.typed_memory import TypedMemory
from ..cuda.workspace import Workspace
from ..shapes.specs import UNALIGNED

if TYPE_CHECKING:
    from ._operation import PreparedCall

REPEATS = 8  # runs with the same pointers before the next one is recorded, which takes as long as 20 runs
SOON, LATER = -8, -64  # counts of runs after which a recording is tried again
NEVER = -(2**62)  # a count of runs that does not reach REPEATS


def replayed(ctx: Context, call: PreparedCall, key: Any) -> bool:
    """Launch the graph of a call instead of its plan; return whether that was done.

    ``key`` is all that a graph depends on in this call: the stream, the pointers, and what else varies.
    """
    running, ctx.running = ctx.running, True  # a finalizer must not free the workspace of the graph
    try:
        replay = call.replays.get(key)
        if replay is None:
            return False
        if replay.plan is not call.selected.plan:
            replay.drop()
            return False
        if replay.launch():
            return False
        replay.recent = True
        return True
    finally:
        ctx.running = running


def count_run(
    ctx: Context, call: PreparedCall, key: Any, pointers: tuple[int, ...], factors: tuple[Any, float]
) -> None:
    """Count a run that was enqueued, and record it for later ones after `REPEATS` runs."""
    if key in call.replays:  # the stream is captured now, or a launch failed
        return
    count = call.runs.get(key, 0) + 1
    lent = ctx.lent  # none of it: the run finds out how much a plan needs
    allowed = (lent is None or lent.size > 0) and config.replay and not config.debug_sync
    if count >= REPEATS and allowed and not ctx.capturing:
        count = _record(ctx, call, key, pointers, factors)
    if key in call.runs:
        call.runs[key] = count
    else:
        call.set_runs(key, count)


def _record(
    ctx: Context, call: PreparedCall, key: Any, pointers: tuple[int, ...], factors: tuple[Any, float]
) -> int:
    """Capture the plan of a call and add it to the replays of the call; return the new count of runs."""
    stream, plan = ctx.stream, call.selected.plan
    if call.selected.needs_timing or any(pointer & UNALIGNED for pointer in pointers):
        return NEVER
    if call.selected.exploring:  # launches would end the trials
        return 0
    if not replays.has_room(ctx.device, 1):
        return SOON
    used: dict[int, object] = {}

    def work(captured: Stream) -> None:
        with ctx.recording(captured) as kept:
            given, _memory = call.copies.made(ctx, pointers) if call.copies else (pointers, None)
            plan.run(ctx, given, *factors)
            used.update(kept)

    try:
        graph = replays.capture(ctx.device, work)
        launch = replays.launcher(graph, stream)
    except replays.NoRoomError:
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
