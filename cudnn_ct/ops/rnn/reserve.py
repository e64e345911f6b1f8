"""What a training pass of a recurrent network leaves for its gradients."""

from __future__ import annotations

from typing import Any, NoReturn

from ...array import DeviceArray
from .call import RNNCall

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
    spent : tuple of str
        The gradients that were computed.
    """

    __slots__ = ("__weakref__", "_arrays", "_call", "_memory", "_owner", "_plan", "device", "exhausted")

    def __init__(
        self,
        owner: Any,
        call: RNNCall,
        plan: Any,
        memory: DeviceArray | None,
        arrays: tuple[DeviceArray | None, ...],
        device: int,
    ) -> None:
        self._owner = owner
        self._call = call
        self._plan = plan
        self._memory = memory
        self._arrays = arrays  # x, w, h0, c0 and y
        self.device = device
        self.exhausted: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that it holds beside the operands."""
        return 0 if self._memory is None else self._memory.size

    def describe(self) -> str:
        """Tell what was computed, and by which algorithm."""
        return f"{self._call.problem}\n{self._plan.describe()}"

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
        """Take a note back: cuDNN refused, and nothing was changed."""
        self.exhausted = tuple(one for one in self.exhausted if one != step)

    def finish(self) -> None:
        """Let go of everything, once both gradients are on their way."""
        self._memory = None
        self._arrays = (None,) * len(self._arrays)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an RNNReserve is memory on a device in the midst of a computation")

    def __repr__(self) -> str:
        state = f"used by {' and '.join(self.exhausted)}" if self.exhausted else "fresh"
        return f"<RNNReserve of {self._call.problem}; {self.nbytes:,} bytes, {state}>"
