"""The reserve of a training pass of a recurrent network, which its gradients need."""

from __future__ import annotations

from typing import Any, NoReturn

from ...array import DeviceArray
from .state import TrainingState

__all__ = ["RNNReserve"]


class RNNReserve:
    """Ties a training pass of an :class:`RNN` to its gradients, each of which may be computed once.

    It keeps the operands alive, and what cuDNN remembered of the pass, until both gradients are computed.
    ``backward_data`` comes first: what it writes here, ``backward_weights`` reads.

    Attributes
    ----------
    device : int
    nbytes : int
        Bytes of device memory that cuDNN's reserve space has; 0 once it is used up.
    exhausted : tuple of str
        The gradients that were computed.
    """

    __slots__ = ("__weakref__", "_owner", "arrays", "device", "exhausted", "memory", "plan", "step")

    def __init__(self, owner: Any, state: TrainingState) -> None:
        self._owner = owner
        self.step = state.call.problem
        self.plan = state.plan
        self.memory = state.memory
        names = [name for name, _ in self.step.operands]
        self.arrays: dict[str, DeviceArray] = dict(zip(names, state.operands, strict=True))
        self.arrays["y"] = state.results[0]
        self.device = self.arrays["y"].device
        self.exhausted: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that it holds besides the operands."""
        return 0 if self.memory is None else self.memory.size

    def describe(self) -> str:
        """Return what was computed, and by which algorithm."""
        return f"{self.step.problem}\n{self.plan.describe()}"

    def take(self, owner: Any, step: str) -> None:
        """Note that a gradient is computed.

        Raises
        ------
        ValueError
            It is of another network, was used for that already, or the other gradient comes first.
        """
        if self._owner is not owner:
            raise ValueError(f"the reserve is of {self._owner!r}, not of this {owner!r}")
        if step in self.exhausted:
            raise ValueError(
                f"the reserve was used by {step} before, and changed; run forward with training=True again"
            )
        if step == "backward_weights" and "backward_data" not in self.exhausted:
            raise ValueError(
                "backward_weights reads what backward_data wrote to the reserve; call that first"
            )
        self.exhausted = (*self.exhausted, step)

    def give_back(self, step: str) -> None:
        """Take a note back: nothing was enqueued."""
        self.exhausted = tuple(one for one in self.exhausted if one != step)

    def finish(self) -> None:
        """Release memory and operands, once both gradients are enqueued."""
        self.memory = None
        self.arrays.clear()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "RNNReserve cannot be copied or pickled: it holds device memory of an unfinished training step"
        )

    def __repr__(self) -> str:
        state = f"used by {' and '.join(self.exhausted)}" if self.exhausted else "fresh"
        return f"<RNNReserve of {self.step.problem}; {self.nbytes:,} bytes, {state}>"
