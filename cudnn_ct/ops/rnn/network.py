"""The part of an RNN that its calls share: specs, algorithm, dropout states. The state of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._algorithm_names import POLICIES, SYNONYMS
from ..._caches import CallCache
from ..._config import config
from ...array import DeviceArray
from ...autotune.request import AlgoRequest, request
from ...context import Context
from ...cuda.stream import Stream
from ...errors import NotInitializedError
from ...plans.base import Candidate
from ...shapes.rnn import RNN_ALGOS, RNNSpec
from .._call import NO_VARIANT
from .._operation import PreparedCall
from .._state import CallState, OwnedCache
from ..dropout import DropoutState


class Network:
    """Part of the key of each call of an RNN, by identity. A copy begins without dropout states."""

    def __init__(self, specs: Mapping[bool, RNNSpec], algo: str | Candidate | None, seed: int) -> None:
        self._specs = specs
        self.algo = algo
        self.seed = seed
        self.has_cells = self.spec.has_cells
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
        """The request for an algorithm, by the settings for a network that names none."""
        algo = self.algo
        if algo is None:  # settings may name an algorithm of convolutions, which means nothing here
            known = (*POLICIES, *SYNONYMS, *RNN_ALGOS)
            algo = config.algo if config.algo in known else "heuristic"
        return request(algo, config.deterministic, config.workspace_limit, False)

    def dropout_state(self, stream: Stream) -> DropoutState:
        """Return the dropout state of the device, made when it is first needed."""
        found = self._dropout_states.get(stream.device)
        if found is None:
            made = DropoutState(self.spec.dropout, self.seed, stream=stream)
            found = self._dropout_states.setdefault(stream.device, made)
        return found


class HasNetwork:
    """The base of the parts of an RNN."""

    _network: Network
    _cache: OwnedCache

    @property
    def spec(self) -> RNNSpec:
        """The network as a value; ``math`` follows ``config.allow_tf32`` where precision leaves it open."""
        return self._network.spec


class RNNState(CallState):
    """The state of a pass; ``network`` is given for a training pass, ``memory`` for a gradient."""

    __slots__ = ("_network", "_training", "algorithm", "dropout", "memory")

    def __init__(
        self,
        cache: OwnedCache,
        *,
        training: bool = False,
        network: Network | None = None,
        memory: DeviceArray | None = None,
    ) -> None:
        super().__init__(cache, () if memory is None else (memory,))
        self._network = network
        self._training = training
        if not training and memory is None:  # else the reserve is new memory, or is used up
            self.variant = NO_VARIANT
        self.algorithm: Any = None
        self.dropout: DropoutState | None = None
        self.memory = memory

    def calls(self, ctx: Context) -> CallCache:
        """Return the cache of the prepared call, and take the dropout state, which no capture can make."""
        if self._training and ctx.capturing:
            raise NotInitializedError(
                "a training pass makes its reserve and gradients use it up, which a graph cannot repeat; "
                "only passes with training=False can be captured"
            )
        if self._network is not None and self._network.has_dropout:
            self.dropout = self._network.dropout_state(ctx.stream)
            self.changed = (self.dropout._memory,)
        return super().calls(ctx)

    def run(self, run: Any, ctx: Context, call: PreparedCall, *arguments: Any) -> Sequence[DeviceArray]:
        """Run the pass; repeat it after a benchmark of algorithms, which draws from the dropout state."""
        if self.dropout is not None and call.selected.needs_timing:
            saved = self.dropout.save()
            super().run(run, ctx, call, *arguments)
            self.dropout.restore(saved)
        return super().run(run, ctx, call, *arguments)

    def reserve_for(self, algorithm: Any, context: Context) -> int:
        """Return the address of memory for an algorithm's reserve; allocate it unless there is enough."""
        self.algorithm = algorithm
        spec = algorithm.reserve
        if spec.size and (self.memory is None or self.memory.size < spec.size):
            self.memory = DeviceArray.new(
                spec, spec.size, context.stream, "the reserve of a recurrent network"
            )
        return 0 if self.memory is None else self.memory.pointer
