"""Several plans one after another, with intermediate results in the workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..context import Context
from ..errors import BadParamError, CudnnError, ExecutionFailedError, NotSupportedError
from ..shapes.specs import TensorSpec
from .base import Plan
from .workspace import append

__all__ = ["NO_STEP", "ChainPlan", "Step", "partial_write_error", "run_all"]

NO_STEP = -1  # no step of a chain is scaled


class Step(NamedTuple):
    """A plan, the places of its pointers among those of the chain, and the factor that it is run with.

    The places of temporaries come after those of a run's pointers.
    """

    plan: Plan
    places: tuple[int, ...]
    factor: float = 1.0


class ChainPlan:
    """A sequence of steps; the step ``scaled`` applies alpha, the last step beta."""

    __slots__ = ("_offsets", "_scaled", "_steps", "workspace")

    def __init__(
        self, temporaries: Sequence[TensorSpec], steps: Sequence[Step], scaled: int | None = None
    ) -> None:
        self._steps = steps
        self._scaled = len(steps) - 1 if scaled is None else scaled
        self._offsets = []
        self.workspace = max(step.plan.workspace for step in steps)
        for spec in temporaries:
            offset, self.workspace = append(self.workspace, spec)
            self._offsets.append(offset)

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        base, last = context.workspace(self.workspace), len(self._steps) - 1
        memory = [*pointers, *(base + offset for offset in self._offsets)]
        for i, (plan, places, factor) in enumerate(self._steps):
            a, b = alpha if i == self._scaled else factor, beta if i == last else 0.0
            plan.run(context, [memory[place] for place in places], a, b)

    def describe(self) -> str:
        texts = (step.plan.describe().removeprefix("chosen: ") for step in self._steps)
        return f"chosen: {'; then '.join(texts)}"


def partial_write_error(error: CudnnError) -> ExecutionFailedError:
    """Return the error for a call that was rejected after earlier calls had changed the results."""
    return ExecutionFailedError(
        f"{error}\nearlier calls of the same operation have changed its results, so no fallback was tried",
        status=error.status,
        function=error.function,
        detail=error.detail,
    )


def run_all(calls: Iterable[Callable[[], object]]) -> None:
    """Make several calls for one result; after the first one, no other implementation may start over."""
    for i, call in enumerate(calls):
        try:
            call()
        except (NotSupportedError, BadParamError) as error:
            if not i:
                raise
            raise partial_write_error(error) from error
