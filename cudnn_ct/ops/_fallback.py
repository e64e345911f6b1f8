"""Ordered implementations for operations that need no autotuning; the first one cuDNN supports is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..context import Context
from ..cuda import stream as streams
from ..errors import BadParamError, NotSupportedError
from ..plans.base import Layer, Plan, packed_of, tensors_of
from ..plans.float32 import PlanMaker, on_float32
from ..plans.wrappers import RelayoutPlan, ZeroOrScale
from ..shapes.specs import LAYOUTS, UNALIGNED, nearest_layout

__all__ = ["FirstSupported", "Implementation", "of_problem", "with_bfloat16"]


class Implementation(NamedTuple):
    """One way to compute a kind of problem.

    ``make`` returns a plan for a problem and a context, or None for problems that it is not made for.
    ``aligned`` says that its kernels load 16 bytes at once, which ends the CUDA context on misaligned memory:
    its plan gets copies of misaligned operands. ``scales`` says that its plan applies alpha and beta.
    """

    make: PlanMaker
    aligned: bool = False
    scales: bool = True


def of_problem(make: Callable[[Any], Plan | None], *, aligned: bool = False) -> Implementation:
    """Return the implementation whose plan needs nothing but the problem."""
    return Implementation(lambda problem, _: make(problem), aligned)


def with_bfloat16(one: Implementation) -> tuple[Implementation, Implementation]:
    """Return an implementation, and the same on float32 copies of bfloat16, which its C calls lack."""
    return one, one._replace(make=on_float32(one.make, "bfloat16"))


class FirstSupported:
    """The implementations of a problem in one thread, and the plan of the first that cuDNN supports.

    ``scaled`` says that runs have an alpha that is not 1 or a beta that is not 0. ``relayout`` says that
    copies of the operands in another layout are of use; ``misaligned`` that some pointers are misaligned.
    """

    def __init__(
        self,
        problem: Layer,
        implementations: Sequence[Implementation],
        context: Context,
        *,
        scaled: bool = False,
        relayout: bool = True,
        misaligned: bool = False,
    ) -> None:
        self._problem = problem
        self._implementations = implementations
        self._scaled = scaled
        self._relayout = relayout
        self._misaligned = misaligned
        self._begin(context)

    def _begin(self, context: Context) -> None:
        self._spent = True  # until there is a plan
        self._left = self._makers()
        self._refusals: list[str] = []
        self._elsewhere: FirstSupported | None = None
        self.plan: Plan = self._next(context)
        self._spent = False

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the plan, or the next one if cuDNN rejects it, which it does before any kernel starts.

        If none is left, the next call begins again: a rejection may be transient.
        """
        if self._spent:
            self._begin(context)
        while True:
            if self._needs_alignment:
                for pointer in pointers:
                    if pointer & UNALIGNED:
                        return self._for_misaligned(context).run(context, pointers, alpha, beta)
            try:
                return self.plan.run(context, pointers, alpha, beta)
            except (NotSupportedError, BadParamError) as error:
                if not self._misaligned and _are_misaligned(pointers):
                    return self._for_misaligned(context).run(context, pointers, alpha, beta)
                self._refusals.append(f"{self.plan.describe()}: {error}")
                self._spent = True
                if not self._left:
                    raise self._nothing() from error
                self.plan = self._next(context)
                self._spent = False

    def _for_misaligned(self, context: Context) -> FirstSupported:
        """Return the implementations for misaligned operands.

        A refusal there may have no other reason than the address, so this object stays as it is for aligned
        operands.
        """
        if self._elsewhere is None:
            self._elsewhere = FirstSupported(
                self._problem,
                self._implementations,
                context,
                scaled=self._scaled,
                relayout=self._relayout,
                misaligned=True,
            )
        return self._elsewhere

    def describe(self) -> str:
        """Tell what was chosen, and what was refused and why."""
        return "\n".join([self.plan.describe(), *(f"  refused: {line}" for line in self._refusals)])

    @streams.relaxed()  # cuDNN loads modules for a plan
    def _next(self, context: Context) -> Plan:
        while self._left:
            make, self._needs_alignment = self._left.pop(0)
            try:
                plan = make(context)
            except (NotSupportedError, ValueError) as error:  # a ValueError: no descriptor holds such numbers
                self._refusals.append(str(error))
            else:
                if plan is not None:
                    return plan
        raise self._nothing()

    # The context is given when a plan is made: kept in here, it would hold itself by the calls that it keeps.
    def _makers(self) -> list[tuple[Callable[[Context], Plan | None], bool]]:
        """Return makers of plans on the operands in their current layout, then on packed copies of some.

        Each has a flag, whether it must run on aligned operands only. For misaligned operands,
        implementations that need no copy come first, and the plans of the others make the copies.
        """
        problem = self._problem
        if not any(spec.size for spec in problem.results):
            return [(lambda _: ZeroOrScale(problem.results[0]), False)]
        ways = [one for one in self._implementations if one.scales or not self._scaled]
        if self._misaligned:
            ways.sort(key=lambda one: one.aligned)
        targets = [problem]
        if self._relayout:
            first = next(iter(tensors_of(problem).values()))
            targets += [packed_of(problem, layout) for layout in (nearest_layout(first), *LAYOUTS)]
        return [
            (
                partial(_on_copies, one.make, problem, target, one.aligned and self._misaligned),
                one.aligned and not self._misaligned,
            )
            for target in dict.fromkeys(targets)
            for one in ways
        ]

    def _nothing(self) -> NotSupportedError:
        lines = [f"cuDNN has no way to compute this {self._problem}", *self._refusals]
        return NotSupportedError("\n  refused: ".join(lines))


def _are_misaligned(pointers: Sequence[Any]) -> bool:
    """Return whether a pointer is misaligned; arguments of other types are in host memory."""
    return any(isinstance(pointer, int) and pointer & UNALIGNED for pointer in pointers)


def _on_copies(make: PlanMaker, problem: Layer, target: Layer, align: bool, context: Context) -> Plan | None:
    """Return a plan for a problem whose operands are copied into those of ``target``, or are misaligned."""
    inner = make(target, context)
    if inner is None or (target == problem and not align):
        return inner
    moves = [
        (spec, None if spec == copy else copy)
        for spec, copy in zip(tensors_of(problem).values(), tensors_of(target).values(), strict=True)
    ]
    updated = getattr(problem, "updated", 0)
    return RelayoutPlan(inner, moves, len(problem.results), updated, align=align)
