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
from ..errors import CudnnError
from ..shapes.specs import UNALIGNED

if TYPE_CHECKING:
    from ._operation import PreparedCall

__all__ = ["count_run", "replayed"]

REPEATS = 8  # runs with the same pointers before the next one is recorded, which takes as long as 20 runs
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
    if count >= REPEATS and not ctx.capturing and config.replay and not config.debug_sync:
        count = 0 if ctx.replays.has_room(1) else -REPEATS  # try again after some more runs
        if not count and not _record(ctx, call, key, pointers, factors):
            count = NEVER
    call.set_runs(key, count)


def _record(
    ctx: Context, call: PreparedCall, key: Any, pointers: tuple[int, ...], factors: tuple[Any, float]
) -> bool:
    """Capture the plan of a call and add it to the replays of the call; return whether that succeeded."""
    stream, plan = ctx.stream, call.selected.plan
    if call.selected.needs_timing or any(pointer & UNALIGNED for pointer in pointers):
        return False  # another plan runs
    used: dict[int, object] = {}

    def work(captured: Stream) -> None:
        with ctx.recording(captured) as kept:
            plan.run(ctx, pointers, *factors)
            used.update(kept)

    try:
        graph = replays.capture(ctx.device, work)
        launch = replays.launcher(graph, stream)
    except CudnnError:
        return False
    if not ctx.replays.has_room(graph.nodes):
        return True
    # Memory that the plan owns is freed on the default stream: after the last launch on another stream.
    memory = [one for one in used.values() if isinstance(one, TypedMemory)]
    exported = ExportedMemory(memory, streams.default_stream(ctx.device), stream) if memory else None
    replay = Replay(graph, launch, plan, exported, ctx.replays, call.replays, key)
    for one in used.values():
        if isinstance(one, Workspace):
            one.add(replay)
    return True
