"""The part of an RNN that its calls share: specs, algorithm, dropout states. The state of one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..._caches import CallCache
from ..._config import config
from ...array import DeviceArray
from ...autotune.request import POLICIES, SYNONYMS, AlgoRequest, request
from ...context import Context
from ...cuda import memory as memories
from ...cuda.stream import Stream
from ...errors import NotInitializedError
from ...plans.base import Candidate
from ...shapes.rnn import RNN_ALGOS, RNNSpec
from ...shapes.specs import TensorSpec
from .._call import PreparedCall
from .._state import CallState, OwnedCache
from ..dropout import DropoutState

__all__ = [
    "GradientState",
    "HasNetwork",
    "KeepingDropoutState",
    "Network",
    "RNNState",
    "TrainingState",
    "preserved",
]


class Network:
    """Part of the key of each call of an RNN, by identity. A copy begins without dropout states."""

    def __init__(self, specs: Mapping[bool, RNNSpec], algo: str | Candidate | None, seed: int) -> None:
        self._specs = specs
        self.algo = algo
        self.seed = seed
        self.has_dropout = self.spec.dropout > 0 and self.spec.num_layers > 1
        self._dropout_states: dict[int, DropoutState] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, (self._specs, self.algo, self.seed)

    @property
    def spec(self) -> RNNSpec:
        """The network as a value; ``math`` follows ``config.allow_tf32`` where precision leaves it open."""
        return self._specs[config.allow_tf32]

    @property
    def request(self) -> AlgoRequest:
        """How an algorithm is selected, with the settings for a network that names none."""
        algo = self.algo
        if algo is None:  # settings may name an algorithm of convolutions, which means nothing here
            known = (*POLICIES, *SYNONYMS, *RNN_ALGOS)
            algo = config.algo if config.algo in known else "heuristic"
        if isinstance(algo, Candidate):
            if algo.rejected:
                raise ValueError(f"algo: {algo} was rejected: {algo.rejected}")
            return AlgoRequest(None, algo, workspace_limit=config.workspace_limit)
        return request(algo, config.deterministic, config.workspace_limit, False)

    def dropout_state(self, stream: Stream) -> DropoutState:
        """Return the dropout state of the device, made when it is first needed."""
        found = self._dropout_states.get(stream.device)
        if found is None:
            made = DropoutState(self.spec.dropout, self.seed, stream=stream)
            found = self._dropout_states.setdefault(stream.device, made)
        return found

    def native(self, ctx: Context, training: bool) -> tuple[Any, dict[Any, Any]]:
        """Return the dropout descriptor of a pass, None without dropout, and a cache for native networks."""
        if not (training and self.has_dropout):
            return None, ctx.calls
        state = self.dropout_state(ctx.stream)
        return state._descriptor, state._calls.of(ctx)


class HasNetwork:
    """The base of the parts of an RNN."""

    _network: Network
    _cache: OwnedCache

    @property
    def spec(self) -> RNNSpec:
        """The network as a value; ``math`` follows ``config.allow_tf32`` where precision leaves it open."""
        return self._network.spec


class RNNState(CallState):
    """The state of a step, which checks given results: one prepared call serves given and new ones.

    ``not_captured`` is the reason why a CUDA graph cannot contain the step; empty if it can.
    """

    __slots__ = ()
    not_captured = ""
    dropout: DropoutState | None = None

    def calls(self, ctx: Context) -> CallCache:
        """Return the cache of the prepared call, unless the step is captured and must not be."""
        if self.not_captured and ctx.capturing:
            raise NotInitializedError(f"{self.not_captured}; only passes with training=False can be captured")
        return super().calls(ctx)

    def run(
        self,
        ctx: Context,
        call: PreparedCall,
        operands: tuple[DeviceArray, ...],
        given: tuple[DeviceArray | None, ...],
        alpha: Any,
        beta: float,
        stream: Stream,
    ) -> Sequence[DeviceArray]:
        """Run the step after a check of the given results."""
        for array, (name, spec) in zip(given, call.problem.written, strict=True):
            if array is not None and array.spec != spec:
                _check_fits(array.spec, spec, name)
        return super().run(ctx, call, operands, given, alpha, beta, stream)


class TrainingState(RNNState):
    """State that a forward pass leaves for the gradients: the plan that ran, and its reserve memory."""

    __slots__ = ("_network", "dropout", "memory", "plan")
    not_captured = "a training pass makes its reserve, which would belong to the graph that is captured"

    def __init__(self, cache: OwnedCache, network: Network) -> None:
        super().__init__(cache)
        self._network = network
        self.dropout = None
        self.plan: Any = None
        self.memory: DeviceArray | None = None

    def calls(self, ctx: Context) -> CallCache:
        """Return the cache of the prepared call, and take the dropout state, which no capture can make."""
        calls = super().calls(ctx)
        if self._network.has_dropout:
            self.dropout = self._network.dropout_state(ctx.stream)
            self.changed = (self.dropout._memory,)
        return calls

    def reserve_for(self, plan: Any, context: Context) -> int:
        """Return the address of memory for a plan's reserve; allocate it unless there is enough."""
        self.plan = plan
        spec = plan.reserve
        if not spec.size:
            return 0
        if self.memory is None or self.memory.size < spec.size:
            self.memory = DeviceArray.new(
                spec, spec.size, context.stream, "the reserve of a recurrent network"
            )
        return self.memory.pointer


class GradientState(RNNState):
    """The state of a gradient, which reads and changes the reserve."""

    __slots__ = ("_memory",)
    not_captured = "a gradient uses up its reserve, which a graph would use again each time it is launched"

    def __init__(self, cache: OwnedCache, memory: DeviceArray | None) -> None:
        super().__init__(cache, () if memory is None else (memory,))
        self._memory = memory

    def reserve_for(self, _plan: Any, _context: Context) -> int:
        """Return the address of the reserve."""
        return 0 if self._memory is None else self._memory.pointer


def _check_fits(own: TensorSpec, spec: TensorSpec, name: str) -> None:
    if own.dtype != spec.dtype:
        raise TypeError(f"{name} of out is {own.dtype}; the result is {spec.dtype}")
    if own.shape != spec.shape:
        raise ValueError(f"{name} of out has shape {own.shape}; the result has {spec.shape}")
    if "nchw" not in own.layouts:  # axes of length 1 may have any strides
        raise ValueError(f"{name} of out has strides {own.strides}; it must be contiguous, in C order")


class KeepingDropoutState:
    """A selection of an algorithm that restores the dropout state after benchmarks."""

    def __init__(self, selection: Any) -> None:
        self._selection = selection

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the plan; benchmark the candidates before if an algorithm is still to be selected."""
        if self._selection.needs_timing:
            with preserved(context.state.dropout, context.stream):
                self._selection.time(context, pointers, alpha, beta)
        self._selection.run(context, pointers, alpha, beta)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selection, name)


@contextmanager
def preserved(state: DropoutState | None, stream: Stream) -> Iterator[None]:
    """Restore a dropout state at the end, which each benchmarked pass changes."""
    if state is None:
        yield
        return
    memory = state._memory
    saved = memory.copy(stream=stream)
    try:
        yield
    finally:
        memory.before_write(stream)
        memories.copy_device(memory.pointer, saved.pointer, memory.nbytes, stream)
        memory.after_write(stream)
