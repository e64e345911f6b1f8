"""Record the graphs that a program plans, so that they can be compiled elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from .operations import Graph
from .plan_file import StoredPlan

__all__ = ["PlanRequest", "RecordedPlans", "ShapesOnly", "active", "note_choice", "record", "unplanned"]


class PlanRequest(NamedTuple):
    """A graph to compile, and how its engine is selected.

    ``order`` is that of `graph.plan.first_plan`, None for graphs with candidates. Of those, ``excluded`` are
    the numerical notes that an engine must not have, and ``last`` the engines that are tried last. ``engine``
    was used where the call was recorded. ``choice`` has the problem and the limits of a call that took the
    heuristic choice, as text; ``limits`` has the limits as JSON.
    """

    graph: Graph
    order: tuple[int, ...] | None = None
    excluded: frozenset[str] = frozenset()
    last: tuple[int, ...] = ()
    engine: str = ""
    choice: str = ""
    limits: Mapping[str, Any] = {}

    @property
    def identity(self) -> tuple[str, ...]:
        """Two requests with the same identity are one."""
        engine = "" if self.choice else self.engine
        return repr(self.graph), repr(self.order), repr(sorted(self.excluded)), engine, self.choice


class RecordedPlans:
    """Requests of one recording, and the plans that served them; filled by any thread."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, ...], PlanRequest] = {}
        self.plans: dict[str, StoredPlan] = {}
        self.skipped: dict[str, str] = {}  # calls without a plan, with the reason

    def __len__(self) -> int:
        return len(self.requests)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.requests)} graphs, {len(self.plans)} entries compiled>"


class ShapesOnly:
    """Replaces a context where no GPU is: graphs are recorded, and nothing is planned or run."""

    device = 0


class _Thread(threading.local):
    """The request that this thread recorded last."""

    def __init__(self) -> None:
        self.last: PlanRequest | None = None


_recordings: list[RecordedPlans] = []  # those that are active, in all threads
_thread = _Thread()


def active() -> bool:
    """Return whether plans are recorded."""
    return bool(_recordings)


def record(request: PlanRequest, *plans: StoredPlan) -> None:
    """Record a graph that was planned, and its plan."""
    for recording in list(_recordings):
        recording.requests[request.identity] = request
        recording.plans.update((plan.key, plan) for plan in plans)
    _thread.last = request if _recordings else None


def note_choice(choice: str, limits: Mapping[str, Any], *plans: StoredPlan) -> None:
    """Note that the graph which this thread recorded last was the heuristic choice for a problem."""
    request, _thread.last = _thread.last, None
    if request is None:
        return
    for recording in list(_recordings):
        recording.requests.pop(request.identity, None)
    record(request._replace(choice=choice, limits=limits), *plans)
    _thread.last = None


def unplanned(call: str, reason: str) -> None:
    """Record a call that has no graph."""
    for recording in list(_recordings):
        recording.skipped[call] = reason


def begin(recording: RecordedPlans) -> None:
    """Begin to record into an object."""
    _recordings.append(recording)


def end(recording: RecordedPlans) -> None:
    """Stop to record into an object."""
    _recordings.remove(recording)
