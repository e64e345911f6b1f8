"""The reserve of a training pass of a recurrent network, from which its gradients are computed."""

from __future__ import annotations

from typing import Any, NoReturn

from ...array import DeviceArray
from ...cuda import stream as streams
from ...errors import AllocationError, BadParamError, NotInitializedError, NotSupportedError
from .._call import execute
from .._state import OwnedCache
from .operations import BACKWARD_DATA, BACKWARD_WEIGHTS
from .state import GradientState, TrainingState

__all__ = ["RNNReserve"]

_GRADIENTS = {"backward_data": BACKWARD_DATA, "backward_weights": BACKWARD_WEIGHTS}

# Operands of the forward pass that a gradient does not read. Results of `backward_data` must not overlap the
# others, which `backward_weights` reads later.
_UNREAD: dict[str, tuple[str, ...]] = {"backward_data": (), "backward_weights": ("w", "c0")}

# Errors before anything is enqueued: the reserve is unchanged.
_UNCHANGED = (NotSupportedError, BadParamError, NotInitializedError, AllocationError, ValueError, TypeError)


class RNNReserve:
    """Ties a training pass of an :class:`RNN` to its gradients, each of which can be computed once.

    It keeps the operands and cuDNN's reserve space until both are computed, ``backward_data`` first.

    Attributes
    ----------
    device : int
    nbytes : int
        Bytes of cuDNN's reserve space; 0 once it is used up.
    exhausted : tuple of str
        The gradients that were computed.
    """

    __slots__ = ("__weakref__", "_memory", "_owner", "_plan", "_step", "arrays", "device", "exhausted")

    def __init__(self, owner: Any, state: TrainingState) -> None:
        self._owner = owner
        self._step = state.call.problem
        self._plan = state.plan
        self._memory = state.memory
        names = [name for name, _ in self._step.operands]
        self.arrays: dict[str, DeviceArray] = dict(zip(names, state.operands, strict=True))
        self.arrays["y"] = state.results[0]
        self.device = self.arrays["y"].device
        self.exhausted: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of cuDNN's reserve space, without the operands."""
        return 0 if self._memory is None else self._memory.size

    def describe(self) -> str:
        """Return what was computed, and by which algorithm."""
        return f"{self._step.problem}\n{self._plan.describe()}"

    def _compute(
        self,
        gradient: str,
        owner: Any,
        cache: OwnedCache,
        given: dict[str, Any],
        params: tuple[Any, ...],
        outs: tuple[Any, ...],
        stream: Any,
    ) -> list[DeviceArray]:
        """Compute a gradient; the reserve stays as it was if nothing was enqueued."""
        if stream is None:
            where = streams.current_stream(self.device)
        else:
            where = streams.as_stream(stream, self.device)
        if where.device != self.device:
            raise ValueError(f"the reserve is on device {self.device}; the operation runs on {where.device}")
        self._check_use(gradient, owner)
        unread = _UNREAD[gradient]
        operands = {name: array for name, array in self.arrays.items() if name not in unread} | given
        names, arrays = tuple(operands), tuple(operands.values())
        params, state = (self._step, self._plan, *params), GradientState(cache, self._memory)
        before = self.exhausted
        self.exhausted = (*before, gradient)
        try:
            results = execute(
                _GRADIENTS[gradient], names, arrays, params, outs=outs, stream=where, state=state
            )
        except _UNCHANGED:
            self.exhausted = before
            raise
        if len(self.exhausted) == len(_GRADIENTS):
            self._memory = None
            self.arrays.clear()
        return results

    def _check_use(self, gradient: str, owner: Any) -> None:
        if self._owner is not owner:
            raise ValueError(f"the reserve is of {self._owner!r}, not of this {owner!r}")
        if gradient in self.exhausted:
            raise ValueError(
                f"the reserve was used by {gradient} before, and changed; "
                "run forward with training=True again"
            )
        if gradient == "backward_weights" and "backward_data" not in self.exhausted:
            raise ValueError(
                "backward_weights reads what backward_data wrote to the reserve; call that first"
            )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "RNNReserve cannot be copied or pickled: it holds device memory of an unfinished training step"
        )

    def __repr__(self) -> str:
        state = f"used by {' and '.join(self.exhausted)}" if self.exhausted else "fresh"
        return f"<RNNReserve of {self._step.problem}; {self.nbytes:,} bytes, {state}>"
