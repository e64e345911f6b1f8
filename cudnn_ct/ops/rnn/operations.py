"""Algorithms of networks, the forward pass and both gradients as operations, and the table of algorithms."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from ... import algo_cache
from ...array_creation import zeros
from ...autotune.measurement import Algorithms, benchmark_rows
from ...context import Context
from ...descriptors import TensorDescriptor
from ...dtypes import DTYPES
from ...errors import BadParamError, NotInitializedError, NotSupportedError
from ...graph.offline import target_of
from ...legal.rules import rejection_of
from ...plans.base import AlgoRequest, Candidate, Heuristic, Plan, SelectedPlan
from ...shapes import sequences as rules
from ...shapes.checks import one_dtype, result_spec
from ...shapes.rnn import RNN_ALGOS, RNNSpec, rnn_parameters, rnn_weight_size
from ...shapes.sequences import RNNProblem, RNNStep
from ...shapes.specs import Outs, Specs, TensorSpec
from .._operation import CallSignature, Operation, Select
from .._state import OwnedCache
from ..dropout import DropoutDescriptor
from .network import Network, RNNState, check_weights
from .plans import RNNAlgorithm, RNNDescriptor, step_plan

COMPILED = ("persist_dynamic",)  # at run time, for a batch size

BASE = 1 << 40  # the address of weights in the query for their offsets; nothing is read there


class RNNFamily(algo_cache.CandidateSource):
    """The algorithms for one forward pass, as `algo_cache` takes them.

    Decisions are about problems without lengths, so calls that differ in lengths share them. Native networks
    are kept for further plans in a thread.
    """

    def __init__(self, step: RNNStep, network: Network, context: Context) -> None:
        self._step = step
        self._dropout, self._networks = None, context.calls
        if step.problem.training and network.has_dropout:
            state = network.dropout_state(context.stream)
            self._dropout, self._networks = state._descriptor, state._calls.of(context)

    def heuristics(self, problem: RNNProblem) -> Sequence[Heuristic]:
        """Return all algorithms, in the order of the heuristic choice."""
        return [lambda _: _rows(problem, rules.guessed_algos(problem))]

    def autotune_candidates(
        self,
        problem: RNNProblem,
        context: Context,  # noqa: ARG002 - an argument of all families
        request: AlgoRequest,
    ) -> list[Candidate]:
        """Return all algorithms; those that are compiled at run time only if the request allows it."""
        rows = _rows(problem, rules.guessed_algos(problem))
        rows = [row for row in rows if request.compiled or row.algorithm not in COMPILED]
        return [row._replace(rejected=row.rejected or request.rejection(row)) for row in rows]

    def by_name(self, problem: RNNProblem, name: str) -> tuple[Sequence[Heuristic], Sequence[Heuristic]]:
        """Return the algorithm of a name, without alternatives."""
        return [lambda _: _rows(problem, (name,))], []

    def planned(self, problem: RNNProblem, context: Context) -> list[Candidate]:
        """Return all algorithms with their workspace, or with the reason why cuDNN rejects them."""
        rows = []
        for row in _rows(problem, RNN_ALGOS):
            try:
                plan = self.plan(problem, row, context)
            except (NotSupportedError, BadParamError) as error:
                rows.append(row._replace(rejected=str(error)))
            else:
                rows.append(row._replace(workspace=plan.workspace))
        return rows

    def plan(self, problem: RNNProblem, candidate: Candidate, context: Context) -> Plan:
        """Return a plan; raise if cuDNN rejects the algorithm, or places weights elsewhere."""
        algo = candidate.algorithm
        unfit = rules.unfit_algo(problem, algo) or rejection_of(problem, algo, target_of(context))
        if unfit or algo not in RNN_ALGOS:
            raise NotSupportedError(unfit or f"algorithm {algo!r} does not exist")
        spec = problem.spec._replace(algo=algo)
        network = self._network(spec, problem, context)
        return step_plan(self._step, RNNAlgorithm(self._step, candidate, network, context))

    def _network(self, spec: RNNSpec, problem: RNNProblem, context: Context) -> RNNDescriptor:
        """Return the native network. One that is compiled for a batch size is compiled once."""
        padded, compiled = problem.layout != "packed", spec.algo in COMPILED
        key = ("a network", spec, padded, problem.batch if compiled else 0)
        found: RNNDescriptor | None = self._networks.get(key)
        if found is None:
            # cuDNN requires a dropout descriptor; it allows one with probability 0 and without states.
            dropout = self._dropout or DropoutDescriptor(context, 0.0, 0, 0, 0)
            found = RNNDescriptor(spec, padded=padded, dropout=dropout)
            _check_weights(found, spec, context)
            if compiled:  # without this, cuDNN answers SUCCESS and writes nothing
                context.library.cudnnBuildRNNDynamic(context.handle, found, problem.batch)
            self._networks[key] = found
        return found


def _rows(problem: RNNProblem, algos: Sequence[str]) -> list[Candidate]:
    """Return candidates; those that are known to be wrong or useless are rejected with the reason."""
    math = problem.spec.math
    return [Candidate("legacy", one, math, 0, True, rejected=rules.unfit_algo(problem, one)) for one in algos]


def _check_weights(network: RNNDescriptor, spec: RNNSpec, context: Context) -> None:
    """Raise unless each parameter is at its offset in our table, by which weights are packed."""
    library, handle, itemsize = context.library, context.handle, DTYPES[spec.dtype].itemsize
    size = ctypes.c_size_t()
    library.cudnnGetRNNWeightSpaceSize(handle, network, ctypes.byref(size))
    wanted = rnn_weight_size(spec) * itemsize
    if size.value != wanted:
        raise NotSupportedError(
            f"{spec.algo} keeps weights in {size.value:,} bytes; the network's are {wanted:,}"
        )
    blank = TensorSpec.packed((1, 1, 1), spec.dtype)
    with TensorDescriptor(blank) as matrix, TensorDescriptor(blank) as bias:
        for row in rnn_parameters(spec):
            found = {"matrix": ctypes.c_void_p(), "bias": ctypes.c_void_p()}
            library.cudnnGetRNNWeightParams(
                *(handle, network, row.pseudo_layer, size.value, BASE, row.lin_layer_id),
                *(matrix, ctypes.byref(found["matrix"]), bias, ctypes.byref(found["bias"])),
            )
            address, offset = found[row.kind].value, row.offset * itemsize
            if address != BASE + offset:
                where = "nowhere" if address is None else f"at byte {address - BASE:,}"
                raise NotSupportedError(f"{spec.algo} keeps {row.name} {where}; it is at byte {offset:,}")


class RNNParams(NamedTuple):
    """Arguments of a forward pass that are not arrays; ``padding`` in hexadecimal, because NaN != NaN."""

    network: Network
    lengths: tuple[int, ...] | None
    layout: str
    training: bool
    padding: str


def _forward_problem(specs: Specs, outs: Outs, *params: Any, aligned: bool, **__: Any) -> RNNStep:
    parsed = RNNParams(*params)
    spec = parsed.network.spec
    shape = {name: one.shape for name, one in specs.items()}
    shapes, lengths = rules.check_rnn_operands(
        spec, shape["x"], shape.get("h0"), shape.get("c0"), parsed.lengths, parsed.layout
    )
    check_weights(spec, specs["w"])
    _check_dtype(spec, specs)
    axis = 1 if parsed.layout == "batch_major" else 0
    steps = max(lengths, default=0) if parsed.layout == "packed" else shapes.x[axis]
    problem = rules.rnn_problem(spec, parsed.layout, steps, shapes.h[1], lengths, parsed.training)
    if any(lengths) and problem.layout == "packed" and not rules.packed_for_cudnn(lengths):
        raise NotSupportedError(
            "cuDNN takes packed data only with the longest sequence first and none without a step: got "
            f"lengths {lengths}; sort the sequences, or pass padded data, which may have any lengths"
        )
    step = RNNStep("forward", problem, shapes, lengths, float.fromhex(parsed.padding))
    return _with_tensors(step, specs, {"y": shapes.y, "hy": shapes.h, "cy": shapes.c}, outs, aligned)


def _check_dtype(spec: RNNSpec, operands: Specs) -> None:
    dtypes = {name: own.dtype for name, own in operands.items()}
    one_dtype("a recurrent network", network=spec.dtype, **dtypes)


def _data_problem(
    specs: Specs, outs: Outs, step: RNNStep, _algorithm: Any, *, aligned: bool, **__: Any
) -> RNNStep:
    shapes, spec = step.shapes, step.problem.spec
    given = {name: own for name, own in specs.items() if name in ("dy", "dhy", "dcy")}
    _check_dtype(spec, given)
    rules.check_states(spec, shapes, **{name: own.shape for name, own in given.items() if name != "dy"})
    if "dy" in given and given["dy"].shape != shapes.y:
        raise ValueError(f"dy has shape {given['dy'].shape}; this network needs {shapes.y}")
    results = {"dx": shapes.x, "dh0": shapes.h, "dc0": shapes.c}
    return _with_tensors(step._replace(name="backward_data"), specs, results, outs, aligned)


def _weights_problem(
    specs: Specs, outs: Outs, step: RNNStep, _algorithm: Any, add: bool, *, aligned: bool, **__: Any
) -> RNNStep:
    results = {"dw": (rnn_weight_size(step.problem.spec),)}
    step = step._replace(name="backward_weights", updated=int(add))
    return _with_tensors(step, specs, results, outs, aligned)


def _with_tensors(
    step: RNNStep, specs: Specs, results: Mapping[str, tuple[int, ...] | None], outs: Outs, aligned: bool
) -> RNNStep:
    """Add the tensors of a run to a step, in the order of its pointers."""
    shapes = [(name, shape) for name, shape in results.items() if shape is not None]
    written = []
    for (name, shape), out in zip(shapes, outs, strict=True):
        new = TensorSpec.packed(shape, step.problem.spec.dtype)
        written.append((name, result_spec(shape, new, out=out, name=f"{name} of out")))
    return step._replace(operands=tuple(specs.items()), written=tuple(written), aligned=aligned)


def _select_forward(step: RNNStep, params: tuple[Any, ...]) -> Select:
    network = RNNParams(*params).network

    def select(ctx: Context) -> Any:
        if ctx.capturing:
            raise NotInitializedError(
                "a pass that is captured must be made once before, on the same stream and in this thread"
            )
        if not any(step.lengths):
            return SelectedPlan(step_plan(step, None))
        return algo_cache.select(step.problem, RNNFamily(step, network, ctx), ctx, network.request)

    return select


def _select_gradient(step: RNNStep, params: tuple[Any, ...]) -> Select:
    plan = SelectedPlan(step_plan(step, params[1]))
    return lambda _: plan


_operation = partial(Operation, freeze=tuple)
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


def table(ctx: Context, x_shape: tuple[int, ...], params: RNNParams, *, measure: bool) -> Algorithms:
    """Return every algorithm for data of a shape, those rejected with the reason; measured on zeros."""
    if measure and ctx.capturing:
        raise NotInitializedError("algorithms cannot be timed on a stream that is being captured")
    network = copy(params.network)  # with a dropout state of its own
    spec, names = network.spec, ("x", "w")
    specs = tuple(TensorSpec.packed(shape, spec.dtype) for shape in (x_shape, (rnn_weight_size(spec),)))
    outs = (None,) * (3 if spec.has_cells else 2)
    step = FORWARD.problem_of(CallSignature(names, specs, outs, params), specs)
    if not any(step.lengths):
        return Algorithms(step.problem, [])
    family = RNNFamily(step, network, ctx)
    rows = family.planned(step.problem, ctx)
    if measure:
        usable = [row for row in rows if not row.rejected]
        stream = ctx.stream
        arrays = [zeros(one.shape, one.dtype, stream=stream) for one in (*specs, *step.results)]
        pointers = [array.pointer for array in arrays]
        outer, ctx.state = ctx.state, RNNState(OwnedCache(1))
        try:
            with ctx.working(stream):
                timed, _ = benchmark_rows(step.problem, usable, family.plan, ctx, pointers, 1.0, 0.0)
        finally:
            ctx.state = outer
        rows = timed + [row for row in rows if row.rejected]
    return Algorithms(step.problem, rows)
