"""What was prepared for a recurrent network: its calls by thread and arguments, its dice by device."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..._config import config
from ...array import DeviceArray
from ...autotune.request import POLICIES, SYNONYMS, AlgoRequest, request
from ...context import BoundedDict, Context
from ...cuda.stream import Stream
from ...errors import NotInitializedError
from ...plans.base import Candidate
from ...shapes.parse import as_float
from ...shapes.rnn import RNN_ALGOS, RNNSpec
from ...shapes.sequences import RNN_LAYOUTS, as_lengths, rnn_layout
from .._call import remember
from ..dropout import DropoutState
from .call import RNNCall, prepare

__all__ = ["RNNCalls", "lengths_of"]

CALLS = 1024  # that a thread keeps ready for a network: one for each tuple of shapes and lengths
NETWORKS = 256  # native ones of a thread with the dice of a network


class RNNCache(NamedTuple):
    """What one thread keeps for one network; ``networks`` are the native ones that throw its dice."""

    calls: BoundedDict
    networks: BoundedDict


class RNNCalls:
    """What threads keep for a network, until it is gone, and its dice."""

    def __init__(self, specs: Mapping[bool, RNNSpec], algo: str | Candidate | None, seed: int) -> None:
        self._specs = specs
        self._algo = algo
        self._seed = seed
        self.drops = self.spec.dropout > 0 and self.spec.num_layers > 1
        self._dice: dict[int, DropoutState] = {}
        self._token = object()
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        weakref.finalize(self, _forget, self._token, self._contexts).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy what it was made of: what threads have prepared for it is its own."""
        return RNNCalls, (self._specs, self._algo, self._seed)

    @property
    def spec(self) -> RNNSpec:
        """The network as the settings have it."""
        return self._specs[config.allow_tf32]

    def call(
        self,
        ctx: Context,
        operands: tuple[Any, ...],
        lengths: Any,
        layout: Any,
        training: bool,
        padding: Any,
    ) -> RNNCall:
        """Look a call up by its arguments; prepare it the first time."""
        x, w, h0, c0 = operands
        specs = (x.spec, w.spec, None if h0 is None else h0.spec, None if c0 is None else c0.spec)
        if lengths is not None:
            lengths = lengths_of(lengths, ctx)
        if type(layout) is not str or layout not in RNN_LAYOUTS:
            layout = rnn_layout(layout)
        padding = as_float(padding, "padding_value")
        # By its bytes: NaN is not equal to NaN, and -0.0 is to 0.0.
        key = (specs, lengths, layout, training, struct.pack("d", padding), config.snapshot)
        kept = self._kept(ctx)
        call: RNNCall | None = kept.calls.get(key)
        if call is None:
            if ctx.capturing:
                raise NotInitializedError(
                    "a pass that is captured must be made once before, on the same stream and in this thread"
                )
            dice, networks = self.dropout_state(ctx, training)
            call = prepare(
                ctx,
                self.spec,
                self._request(),
                specs,
                lengths,
                layout,
                training,
                padding,
                networks,
                None if dice is None else dice._descriptor,
            )
            remember(kept.calls, key, call)
        return call

    def dropout_state(self, ctx: Context, training: bool) -> tuple[DropoutState | None, dict[Any, Any]]:
        """The dice of a pass, None where nothing is dropped; and where a thread has its native networks."""
        if not (training and self.drops):
            return None, ctx.calls
        return self.dropout_state_on(ctx.stream), self._kept(ctx).networks

    def dropout_state_on(self, where: Stream) -> DropoutState:
        """The dice on a device, which are made when they are first needed."""
        found = self._dice.get(where.device)
        if found is None:
            made = DropoutState(self.spec.dropout, self._seed, stream=where)
            found = self._dice.setdefault(where.device, made)
        return found

    def describe(self) -> str:
        """Tell what was computed; empty for nothing."""
        told = []
        for ctx in list(self._contexts):
            kept = ctx.plans.get(self._token)
            for call in list(kept.calls.values()) if kept else ():
                told.append(f"{call.problem}\n{call.choice.describe()}")
        return "\n".join(dict.fromkeys(told))

    def _kept(self, ctx: Context) -> RNNCache:
        kept: RNNCache | None = ctx.plans.get(self._token)
        if kept is None:
            kept = ctx.plans[self._token] = RNNCache(BoundedDict(CALLS), BoundedDict(NETWORKS))
            self._contexts.add(ctx)
        return kept

    def _request(self) -> AlgoRequest:
        algo = self._algo
        if algo is None:  # settings may name an algorithm of convolutions, which says nothing here
            known = (*POLICIES, *SYNONYMS, *RNN_ALGOS)
            algo = config.algo if config.algo in known else "heuristic"
        if isinstance(algo, Candidate):
            if algo.rejected:
                raise ValueError(f"algo: {algo} was refused: {algo.rejected}")
            return AlgoRequest(None, algo, workspace_limit=config.workspace_limit)
        return request(algo, config.deterministic, config.workspace_limit, False)


def lengths_of(given: Any, ctx: Context) -> tuple[int, ...]:
    """Lengths as ints, wherever they are; those on the device are waited for: descriptors hold them.

    Raises
    ------
    TypeError
        They are no integers.
    NotInitializedError
        They are on the device while a CUDA graph is captured.
    """
    if isinstance(given, DeviceArray):
        if ctx.capturing:
            raise NotInitializedError("lengths on the device cannot be read in a capture; pass them as ints")
        given = given.numpy()
    return as_lengths(given.tolist() if hasattr(given, "tolist") else given)


def _forget(token: object, contexts: Iterable[Context]) -> None:
    """Let the threads go of what they prepared for a network that is gone."""
    for ctx in list(contexts):
        ctx.plans.pop(token, None)
