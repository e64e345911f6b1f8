"""The plan of the last call, for people who want to know which algorithm ran."""

from __future__ import annotations

from typing import NamedTuple

from .. import array_shapes, context
from ..cuda import stream as streams
from .base import Candidate


class PlanDescription(NamedTuple):
    """The plan of a call; see :func:`last_plan`.

    ``problem`` names the operation and its operands. ``candidate`` is the selected algorithm, None for
    operations that select none. ``workspace`` is in bytes. ``fallback_reason`` is why another algorithm ran
    than the one that was named, or empty. ``plan`` has what was selected, how, and what was rejected.
    """

    problem: str
    candidate: Candidate | None
    workspace: int
    fallback_reason: str
    plan: str

    def describe(self) -> str:
        """Return the problem and the plan, one fact a line."""
        return f"{self.problem}\n{self.plan}"


def last_plan() -> PlanDescription | None:
    """Return how this thread's last call on the current device was computed.

    Returns
    -------
    PlanDescription or None
        None before the first call, and if the object that made the call (a ``ConvPlan``, an ``RNN``) is gone.
        Calls that raised an error, and calls on shapes, do not count.

    Raises
    ------
    NotInitializedError
        No driver or no device exists.

    Examples
    --------
    >>> y = ct.conv(ct.full((1, 4, 8, 8), 1), ct.full((4, 4, 3, 3), 1), padding=1)
    >>> plan = ct.last_plan()  # print(plan.describe()) shows how and why
    >>> plan.candidate.backend in ("graph", "legacy")
    True
    """
    if array_shapes.active():
        return None
    where = streams.current_stream()
    with streams.on_device(where.device):
        call = context.current(where).last_call
    if call is None:
        return None
    selected = call.selected
    return PlanDescription(
        str(call.problem),
        selected.candidate,
        selected.plan.workspace,
        selected.fallback_reason,
        call.describe(),
    )
