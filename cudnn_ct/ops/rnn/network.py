"""The description of a network that its calls share: its specs, its algorithm and its dropout states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._config import config
from ...autotune.request import POLICIES, SYNONYMS, AlgoRequest, request
from ...context import Context
from ...cuda.stream import Stream
from ...plans.base import Candidate
from ...shapes.rnn import RNN_ALGOS, RNNSpec
from .._state import OwnedCache
from ..dropout import DropoutState

__all__ = ["HasNetwork", "Network"]


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
