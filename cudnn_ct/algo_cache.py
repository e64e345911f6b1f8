"""Which way to compute a problem: candidates tried in order until one runs. Knows no operation."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

from .context import Bounded, Context
from .errors import AllocationError, CudnnWarning, NotSupportedError
from .problem import Candidate, Plan

__all__ = ["Choice", "Family", "choose"]


class Family(Protocol):
    """A way to compute problems: what it can try, and a plan for each."""

    def candidates(self, problem: Any, context: Context) -> list[Candidate]:
        """All rows for a problem, the most promising first; refused ones have a status."""

    def plan(self, problem: Any, candidate: Candidate, context: Context) -> Plan:
        """Make a row ready to run in the context's thread."""


class Choice:
    """A problem, its candidates, and this thread's plan for the best one that has not failed.

    Made by :func:`choose`. The decision - which candidates there are and which were refused - is shared by
    the process; the plan belongs to the thread.
    """

    __slots__ = ("_candidate", "_decision", "_family", "plan", "problem")

    def __init__(self, problem: Any, family: Family, decision: _Decision, context: Context) -> None:
        self.problem = problem
        self._family = family
        self._decision = decision
        self.plan: Plan = self._next_plan(context)

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the plan; where cuDNN refuses it only now, or memory runs out, the next candidate's.

        Both are refused before any kernel starts, so the operands are as they were.
        """
        try:
            self.plan.run(context, pointers, alpha, beta)
        except NotSupportedError as error:
            self._decision.refuse(self._candidate, str(error))
            self.plan = self._next_plan(context)
            self.run(context, pointers, alpha, beta)
        except AllocationError as error:
            self._run_smaller(context, pointers, alpha, beta, error)

    def _run_smaller(
        self, context: Context, pointers: Sequence[int], alpha: float, beta: float, error: AllocationError
    ) -> None:
        """Run the first candidate whose workspace can be had. Memory may be free again at the next call."""
        wanted = self.plan.workspace
        for candidate in self._decision.usable():
            if candidate.workspace < wanted:
                try:
                    self._family.plan(self.problem, candidate, context).run(context, pointers, alpha, beta)
                except (AllocationError, NotSupportedError):
                    continue
                if self._decision.warn_once():
                    warnings.warn(f"{error}; {candidate} ran instead", CudnnWarning, stacklevel=4)
                return
        raise error

    def _next_plan(self, context: Context) -> Plan:
        while True:
            candidate = self._decision.best()
            if candidate is None:
                raise NotSupportedError(
                    "\n".join([f"cuDNN has no way to compute this {self.problem}", *self._decision.reasons()])
                )
            try:
                self._candidate = candidate
                return self._family.plan(self.problem, candidate, context)
            except NotSupportedError as error:
                self._decision.refuse(candidate, str(error))

    def describe(self) -> str:
        """Tell what was chosen and what was refused, and why."""
        return "\n".join([self.plan.describe(), *self._decision.reasons()])


class _Decision:
    """The candidates of one problem on one device, and which of them failed. Shared by threads."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self._rows = candidates
        self._lock = threading.Lock()
        self._warned = False

    def usable(self) -> list[Candidate]:
        return [row for row in self._rows if not row.status]

    def best(self) -> Candidate | None:
        return next((row for row in self._rows if not row.status), None)

    def refuse(self, candidate: Candidate, reason: str) -> None:
        with self._lock:
            self._rows = [row._replace(status=reason) if row == candidate else row for row in self._rows]

    def warn_once(self) -> bool:
        with self._lock:
            first, self._warned = not self._warned, True
        return first

    def reasons(self) -> list[str]:
        return [f"  refused: {row}: {row.status}" for row in self._rows if row.status]


_decisions = Bounded(16_384)
_lock = threading.Lock()


def choose(problem: Any, family: Family, context: Context) -> Choice:
    """Decide how to compute ``problem`` on the context's device.

    Raises
    ------
    NotSupportedError
        No candidate is left; the message lists all of them, each with its reason.
    """
    key = (context.device, context.library, problem)
    with _lock:
        decision = _decisions.get(key)
    if decision is None:
        decision = _Decision(family.candidates(problem, context))
        with _lock:
            decision = _decisions.setdefault(key, decision)
    return Choice(problem, family, decision, context)
