"""The algorithms of recurrent networks, and plans of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ...algo_cache import CandidateSource
from ...autotune.request import AlgoRequest
from ...context import Context
from ...descriptors import TensorDescriptor
from ...dtypes import DTYPES
from ...errors import BadParamError, NotSupportedError
from ...graph.offline import target_of
from ...legal.rules import rejection_of
from ...plans.base import Candidate, Heuristic, Plan
from ...shapes.rnn import RNN_ALGOS, RNNSpec, rnn_parameters, rnn_weight_size
from ...shapes.rnn_problem import RNNProblem, RNNStep, guessed_algos, unfit_algo
from ...shapes.specs import TensorSpec
from ..dropout import DropoutDescriptor
from .network import Network
from .plans import RNNAlgorithm, RNNDescriptor, step_plan

COMPILED = ("persist_dynamic",)  # at run time, for a batch size

BASE = 1 << 40  # the address of weights in the query for their offsets; nothing is read there


class RNNFamily(CandidateSource):
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
        return [lambda _: _rows(problem, guessed_algos(problem))]

    def autotune_candidates(
        self,
        problem: RNNProblem,
        context: Context,  # noqa: ARG002 - an argument of all families
        request: AlgoRequest,
    ) -> list[Candidate]:
        """Return all algorithms; those that are compiled at run time only if the request allows it."""
        rows = _rows(problem, guessed_algos(problem))
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
        unfit = unfit_algo(problem, algo) or rejection_of(problem, algo, target_of(context))
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
    return [Candidate("legacy", algo, math, 0, True, rejected=unfit_algo(problem, algo)) for algo in algos]


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
