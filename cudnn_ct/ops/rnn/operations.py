"""The forward pass and both gradients of a network as operations, and the table of algorithms."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ... import algo_cache
from ...array_creation import zeros
from ...autotune.table import Algorithms
from ...context import Context
from ...errors import NotInitializedError, NotSupportedError
from ...plans.base import Candidate
from ...shapes.checks import one_dtype
from ...shapes.rnn import RNN_ALGOS, RNNSpec
from ...shapes.rnn_params import rnn_weight_size
from ...shapes.rnn_problem import RNNProblem, RNNStep, rnn_problem, why_not_packed
from ...shapes.sequences import check_rnn_operands, check_states
from ...shapes.specs import TensorSpec
from .._call import CallSignature, Operation, PreparedCall, Select, SinglePlan
from .._state import OwnedCache
from .candidates import RNNFamily
from .network import KeepingDropoutState, Network, RNNState, TrainingState, preserved
from .plans import EmptyRNNPlan, step_plan
from .weights import check_weights

__all__ = ["BACKWARD_DATA", "BACKWARD_WEIGHTS", "FORWARD", "RNNParams", "table"]

Specs = dict[str, TensorSpec]
Outs = Sequence[TensorSpec | None]


class RNNParams(NamedTuple):
    """Arguments of a forward pass that are not arrays; ``padding`` as bytes, because NaN != NaN."""

    network: Network
    lengths: tuple[int, ...] | None
    layout: str
    training: bool
    padding: bytes


def _forward_problem(specs: Specs, _: Outs, *params: Any, aligned: bool, **__: Any) -> RNNStep:
    told = RNNParams(*params)
    spec = told.network.spec
    shape = {name: one.shape for name, one in specs.items()}
    shapes, lengths = check_rnn_operands(
        spec, shape["x"], shape.get("h0"), shape.get("c0"), told.lengths, told.layout
    )
    check_weights(spec, specs["w"])
    _check_dtype(spec, specs)
    axis = 1 if told.layout == "batch_major" else 0
    steps = max(lengths, default=0) if told.layout == "packed" else shapes.x[axis]
    problem = rnn_problem(spec, told.layout, steps, shapes.h[1], lengths, told.training)
    if any(lengths) and problem.layout == "packed" and why_not_packed(lengths):
        raise NotSupportedError(why_not_packed(lengths))
    (padding,) = struct.unpack("d", told.padding)
    step = RNNStep("forward", problem, shapes, lengths, padding)
    return _with_tensors(step, specs, {"y": shapes.y, "hy": shapes.h, "cy": shapes.c}, aligned)


def _check_dtype(spec: RNNSpec, operands: Specs) -> None:
    dtypes = {name: own.dtype for name, own in operands.items()}
    one_dtype("a recurrent network", network=spec.dtype, **dtypes)


def _data_problem(specs: Specs, _: Outs, step: RNNStep, _plan: Any, *, aligned: bool, **__: Any) -> RNNStep:
    shapes, spec = step.shapes, step.problem.spec
    given = {name: own for name, own in specs.items() if name in ("dy", "dhy", "dcy")}
    _check_dtype(spec, given)
    check_states(spec, shapes, **{name: own.shape for name, own in given.items() if name != "dy"})
    if "dy" in given and given["dy"].shape != shapes.y:
        raise ValueError(f"dy has shape {given['dy'].shape}; this network needs {shapes.y}")
    results = {"dx": shapes.x, "dh0": shapes.h, "dc0": shapes.c}
    return _with_tensors(step._replace(name="backward_data"), specs, results, aligned)


def _weights_problem(
    specs: Specs, _: Outs, step: RNNStep, _plan: Any, add: bool, *, aligned: bool, **__: Any
) -> RNNStep:
    results = {"dw": (rnn_weight_size(step.problem.spec),)}
    step = step._replace(name="backward_weights", updated=int(add))
    return _with_tensors(step, specs, results, aligned)


def _with_tensors(
    step: RNNStep, specs: Specs, results: Mapping[str, tuple[int, ...] | None], aligned: bool
) -> RNNStep:
    """Add the tensors of a run to a step, in the order of its pointers."""
    made = {
        name: TensorSpec.packed(shape, step.problem.spec.dtype)
        for name, shape in results.items()
        if shape is not None
    }
    return step._replace(operands=tuple(specs.items()), written=tuple(made.items()), aligned=aligned)


def _select_forward(step: RNNStep, params: tuple[Any, ...]) -> Select:
    told = RNNParams(*params)

    def select(ctx: Context) -> Any:
        if ctx.capturing:
            raise NotInitializedError(
                "a pass that is captured must be made once before, on the same stream and in this thread"
            )
        if not any(step.lengths):
            return SinglePlan(step_plan(step, EmptyRNNPlan()))
        selection = _selection(step, told.network, ctx)
        keeps = told.training and told.network.has_dropout
        return KeepingDropoutState(selection) if keeps else selection

    return select


def _selection(step: RNNStep, network: Network, ctx: Context) -> Any:
    family, algo = RNNFamily(step, network, ctx), network.request.algo
    try:
        return algo_cache.select(step.problem, family, ctx, network.request)
    except NotSupportedError as error:
        if algo not in RNN_ALGOS:
            raise
        others = [other for other in RNN_ALGOS if other != algo and family.supports(step.problem, other, ctx)]
        raise NotSupportedError(
            f"algo={algo!r} does not support this case; {', '.join(others) or 'no other'} "
            f"do{'es' * (len(others) < 2)}\n{error}",
            status=error.status,
            function=error.function,
            detail=error.detail,
        ) from error


def _select_gradient(step: RNNStep, params: tuple[Any, ...]) -> Select:
    plan = SinglePlan(step_plan(step, params[1]))
    return lambda _: plan


_operation = partial(Operation, fixed_results=True, freeze=tuple)
FORWARD = _operation(
    "a recurrent network", _forward_problem, select=_select_forward, written=("out y", "out hy", "out cy")
)
BACKWARD_DATA = _operation(
    "a gradient of a recurrent network",
    _data_problem,
    select=_select_gradient,
    written=("out dx", "out dh0", "out dc0"),
)
BACKWARD_WEIGHTS = _operation(
    "a gradient of a recurrent network", _weights_problem, select=_select_gradient, written=("out dw",)
)


class _Benchmark:
    """A selection whose run measures all candidates."""

    def __init__(self, problem: RNNProblem, family: RNNFamily, rows: list[Candidate]) -> None:
        self._problem = problem
        self._make = family.plan
        self.rows = rows

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        self.rows, _ = algo_cache.benchmark_rows(
            self._problem, self.rows, self._make, context, pointers, alpha, beta
        )


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
        call = PreparedCall.of(step, specs, step.results, timed, ctx.device, what=FORWARD.name)
        operands = tuple(zeros(one.shape, one.dtype, stream=ctx.stream) for one in specs)
        last = ctx.last_call
        with preserved(state.dropout, ctx.stream):
            state.run(ctx, call, operands, outs, 1.0, 0.0, ctx.stream)
        ctx.last_call = last  # a benchmark is not a call of the caller, and has no plan
        rows = timed.rows + [row for row in rows if row.rejected]
    return Algorithms(step.problem, rows)
