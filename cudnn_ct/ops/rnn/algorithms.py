"""The algorithms that there are for a recurrent network, timed; dice are afterwards as they were before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ... import algo_cache
from ...array import DeviceArray
from ...autotune.request import AlgoRequest
from ...context import Context
from ...cuda import memory as memories
from ...cuda.stream import Stream
from ...errors import BadParamError, NotInitializedError, NotSupportedError
from ...plans.base import Candidate
from ...shapes.rnn import RNN_ALGOS, RNNSpec
from ...shapes.rnn_params import rnn_weight_size
from ..conv.algorithms import Algorithms
from ..dropout import DropoutState
from .call import ResultSlot, RNNCall, enqueue, prepare, result_slot
from .candidates import RNNFamily, rnn_rows
from .plans import TrainingState

__all__ = ["autotune_preserving_rng", "table", "zeros"]


def table(
    ctx: Context,
    spec: RNNSpec,
    x_shape: tuple[int, ...],
    lengths: tuple[int, ...] | None,
    layout: Any,
    training: bool,
    measure: bool,
    dice: DropoutState | None,
    networks: dict[Any, Any],
) -> Algorithms:
    """Every algorithm for data of a shape, refused ones with their reasons; timed on zeros if wanted."""
    if measure and ctx.capturing:
        raise NotInitializedError("algorithms cannot be timed on a stream that is being captured")
    x, w = (
        zeros(result_slot(shape, spec.dtype), ctx.stream) for shape in (x_shape, (rnn_weight_size(spec),))
    )
    dropout = None if dice is None else dice._descriptor
    wanted, specs = AlgoRequest("heuristic"), (x.spec, w.spec, None, None)
    probe = prepare(ctx, spec, wanted, specs, lengths, layout, training, 0.0, networks, dropout)
    if not any(probe.lengths):
        return Algorithms(probe.problem, [])
    family, rows = RNNFamily(probe.lengths, 0.0, networks, dropout), []
    for row in rnn_rows(probe.problem, RNN_ALGOS):
        try:
            plan = family.plan(probe.problem, row, ctx)
        except (NotSupportedError, BadParamError) as error:
            rows.append(row._replace(rejected=str(error)))
        else:
            rows.append(row._replace(workspace=plan.workspace))
    if measure:
        ways = [(row, family.plan) for row in rows if not row.rejected]
        done = TrainingState() if training else None
        timed: list[Candidate] = []

        def work(pointers: list[int]) -> None:
            places: Any = (*pointers, done)
            timed.extend(algo_cache.benchmark_rows(probe.problem, ways, ctx, places, 1.0, 0.0)[0])

        with _preserved(dice, ctx.stream):
            enqueue(ctx, probe, "forward", (x, w, None, None), probe.results, None, (), work)
        rows = timed + [row for row in rows if row.rejected]
    return Algorithms(probe.problem, rows)


def autotune_preserving_rng(
    ctx: Context, call: RNNCall, operands: tuple[Any, ...], dice: DropoutState
) -> None:
    """Let the candidates of a call be timed, and the dice be as if they had not been."""

    def work(pointers: list[int]) -> None:
        call.choice.time(ctx, (*pointers, TrainingState()), 1.0, 0.0)

    with _preserved(dice, ctx.stream):
        enqueue(ctx, call, "forward", operands, call.results, None, (dice._memory,), work)


def zeros(wanted: ResultSlot, stream: Stream) -> DeviceArray:
    """An array of zeros."""
    assert wanted is not None
    array = DeviceArray.new(*wanted, stream, "zeros")
    if wanted[1]:
        memories.fill(array.pointer, b"\0", wanted[1], stream)
    return array


@contextmanager
def _preserved(dice: DropoutState | None, stream: Stream) -> Iterator[None]:
    """Dice that are set back at the end: what is timed throws them many times."""
    if dice is None:
        yield
        return
    memory = dice._memory
    saved = memory.copy(stream=stream)
    try:
        yield
    finally:
        memory.before_write(stream)
        memories.copy_device(memory.pointer, saved.pointer, memory.nbytes, stream)
        memory.after_write(stream)
