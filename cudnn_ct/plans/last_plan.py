"""The plan of the last call, for people who want to know which algorithm ran."""

from __future__ import annotations

from typing import NamedTuple

from .. import context
from ..cuda import stream as streams
from .base import Candidate

__all__ = ["PlanDescription", "last_plan"]


class PlanDescription(NamedTuple):
    """How a call was computed; see :func:`last_plan`.

    Attributes
    ----------
    problem : str
        The operation with its operands.
    candidate : Candidate or None
        The algorithm of an operation that selects one; None for other operations.
    workspace : int
        Bytes of scratch memory that a run needs.
    fallback_reason : str
        Why it is not the algorithm that was named; empty if it is.
    plan : str
        What was selected and how, and what was rejected and why.
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
        None if there was no call yet, or if the object that made it (a ``ConvPlan``, an ``RNN``) is gone. A
        call that raised an error does not count.

    Raises
    ------
    CudnnError
        No usable cuDNN, driver or device exists.

    Notes
    -----
    An operation that selects no algorithm may run another implementation for misaligned operands than the one
    that is described.

    Examples
    --------
    >>> x, w = ct.full((1, 4, 8, 8), 1), ct.full((4, 4, 3, 3), 1)
    >>> y = ct.conv(x, w, padding=1)
    >>> plan = ct.last_plan()  # print(plan.describe()) shows how and why
    >>> plan.candidate.backend in ("graph", "legacy")
    True
    """
    where = streams.current_stream()
    previous = streams.set_device(where.device)
    try:
        call = context.current(where).last_call
    finally:
        streams.restore_device(previous)
    if call is None:
        return None
    choice = call.choice
    return PlanDescription(
        str(call.problem),
        getattr(choice, "candidate", None),
        choice.plan.workspace,
        getattr(choice, "fallback_reason", ""),
        choice.describe(),
    )
