"""Calls on packed copies of operands whose strides no descriptor holds: 0 or negative ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..context import Context
from ..plans.base import Candidate, Plan, SelectedPlan
from ..plans.strided_copy import StridedCopy
from ..plans.workspace import align_after, nbytes_of
from ..shapes.specs import TensorSpec
from ._operands import unexpanded


def copies_of(
    specs: Sequence[TensorSpec], inputs: Sequence[TensorSpec]
) -> dict[int, tuple[TensorSpec, TensorSpec]]:
    """Return the operands that are copied, by place, and their copies; a problem has ``inputs``."""
    read = [
        spec if spec.shape == copy.shape else unexpanded(spec)
        for spec, copy in zip(specs, inputs, strict=True)
    ]
    pairs = enumerate(zip(read, inputs, strict=True))
    return {place: (spec, copy) for place, (spec, copy) in pairs if spec != copy}


class OnCopies(SelectedPlan):
    """Another selection, whose plans run on packed copies of some operands.

    The copies are in memory of the context, so that a call makes them without an allocation in a capture.
    """

    __slots__ = ("_copies", "_selected")

    plan: _PlanOnCopies

    def __init__(self, selected: SelectedPlan, copies: Mapping[int, tuple[TensorSpec, TensorSpec]]) -> None:
        self._selected = selected
        self._copies = _Copies(copies)
        super().__init__(_PlanOnCopies(selected.plan, self._copies))

    @property
    def candidate(self) -> Candidate | None:
        return self._selected.candidate

    @property
    def needs_timing(self) -> bool:
        return self._selected.needs_timing

    @property
    def fallback_reason(self) -> str:
        return self._selected.fallback_reason

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        with_copies, _memory = self._copies.made(context, pointers)
        self._selected.run(context, with_copies, alpha, beta)
        if self._selected.plan is not self.plan.inner:
            self.plan = _PlanOnCopies(self._selected.plan, self._copies)

    def describe(self) -> str:
        return f"{self._selected.describe()}\n  {self._copies.describe()}"


class _Copies:
    """Copies of operands by their places, in one memory."""

    __slots__ = ("_copies", "_nbytes", "_temporary")

    def __init__(self, copies: Mapping[int, tuple[TensorSpec, TensorSpec]]) -> None:
        self._copies, nbytes = {}, 0
        for place, (source, target) in copies.items():
            offset, nbytes = align_after(nbytes, nbytes_of(target))
            self._copies[place] = StridedCopy(source, target), offset
        most = max(copy.workspace for copy, _ in self._copies.values())
        self._temporary, self._nbytes = align_after(nbytes, most)

    def made(self, context: Context, pointers: Sequence[int]) -> tuple[list[int], object]:
        """Enqueue the copies; return the pointers with those of the copies, and their memory."""
        memory = context.operand_copies(self._nbytes)
        inner = list(pointers)
        for place, (copy, offset) in self._copies.items():
            inner[place] = memory.handle + offset
            copy.copy(context, pointers[place], inner[place], memory.handle + self._temporary)
        return inner, memory

    def describe(self) -> str:
        count = len(self._copies)
        return f"{count} {'operand' if count == 1 else 'operands'} copied: strides are 0 or negative"


class _PlanOnCopies:
    """A plan that runs on copies; a replay records it."""

    __slots__ = ("_copies", "inner")

    def __init__(self, inner: Plan, copies: _Copies) -> None:
        self.inner = inner
        self._copies = copies

    @property
    def workspace(self) -> int:
        """The workspace of the plan; the copies are in other memory."""
        return self.inner.workspace

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        with_copies, _memory = self._copies.made(context, pointers)
        self.inner.run(context, with_copies, alpha, beta)

    def describe(self) -> str:
        return f"{self.inner.describe()}; {self._copies.describe()}"
