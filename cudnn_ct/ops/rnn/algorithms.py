"""The table of algorithms for a recurrent network, with the time of each."""

from __future__ import annotations

from collections.abc import Sequence

from ... import algo_cache
from ...array_creation import zeros
from ...context import Context
from ...errors import NotInitializedError
from ...plans.base import Candidate
from ...shapes.rnn_params import rnn_weight_size
from ...shapes.rnn_problem import RNNProblem
from ...shapes.specs import TensorSpec
from .._call import CallSignature, PreparedCall
from .._state import OwnedCache
from ..conv.algorithms import Algorithms
from .candidates import RNNFamily
from .operations import FORWARD, RNNParams
from .state import RNNState, TrainingState, preserved

__all__ = ["table"]


class _Benchmark:
    """A selection whose run measures all candidates."""

    def __init__(self, problem: RNNProblem, family: RNNFamily, rows: list[Candidate]) -> None:
        self._problem = problem
        self._ways = [(row, family.plan) for row in rows]
        self.rows: list[Candidate] = []

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        self.rows, _ = algo_cache.benchmark_rows(self._problem, self._ways, context, pointers, alpha, beta)


def table(ctx: Context, x_shape: tuple[int, ...], params: RNNParams, *, measure: bool) -> Algorithms:
    """Return every algorithm for data of a shape, those rejected with the reason; measured on zeros."""
    if measure and ctx.capturing:
        raise NotInitializedError("algorithms cannot be timed on a stream that is being captured")
    network = params.network
    spec, names = network.spec, ("x", "w")
    specs = tuple(TensorSpec.packed(shape, spec.dtype) for shape in (x_shape, (rnn_weight_size(spec),)))
    outs = (None,) * (3 if spec.has_cells else 2)
    step = FORWARD.problem_of(CallSignature(names, specs, outs, params), specs)
    if not any(step.lengths):
        return Algorithms(step.problem, [])
    family = RNNFamily(step, network, ctx)
    rows = family.planned(step.problem, ctx)
    if measure:
        state = TrainingState(OwnedCache(1), network) if params.training else RNNState()
        state.calls(ctx)  # takes the dropout state
        timed = _Benchmark(step.problem, family, [row for row in rows if not row.rejected])
        call = PreparedCall.of(step, specs, step.results, timed, what=FORWARD.name)
        operands = tuple(zeros(one.shape, one.dtype, stream=ctx.stream) for one in specs)
        with preserved(state.dropout, ctx.stream):
            state.run(ctx, call, operands, outs, 1.0, 0.0)
        rows = timed.rows + [row for row in rows if row.rejected]
    return Algorithms(step.problem, rows)
