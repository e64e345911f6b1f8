"""Ordered implementations for operations that need no autotuning; the first one cuDNN supports is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from .._config import config
from .._lib import load
from ..context import Context
from ..cuda import stream as streams
from ..errors import BadParamError, CudnnError, NotSupportedError, without_frames
from ..facts import FactsError
from ..graph.offline import ShapesOnly
from ..graph.recording import record_first
from ..plans.base import NotChosen, Plan, SelectedPlan, packed_of, tensors_of, unsupported
from ..plans.wrappers import PlanMaker, on_float32, on_operands_of, zero_or_scale
from ..shapes.specs import LAYOUTS, nearest_layout

IGNORES_NAN = "propagate_nan is False, which only legacy functions support"


class Implementation(NamedTuple):
    """One way to compute a kind of problem."""

    make: PlanMaker  # returns None for problems that it is not made for
    # Whether its kernels load 16 bytes at once, which ends the CUDA context on misaligned memory: the plan
    # gets copies of misaligned operands.
    aligned: bool = False
    scales: bool = True  # its plan applies alpha and beta
    replaces: str = ""  # the library whose calls it replaces: it is used where the set lacks that one


def of_problem(make: Callable[[Any], Plan | None], *, aligned: bool = False) -> Implementation:
    """Return the implementation whose plan needs nothing but the problem."""
    return Implementation(lambda problem, _: make(problem), aligned)


def by_engines(make: PlanMaker, replaces: str = "ops") -> Implementation:
    """Return the implementation by graphs that replaces the calls of a library; its engines are compiled."""

    def planned(problem: Any, context: Context) -> Plan | None:
        made = make(problem, context) if config.allow_runtime_compilation else None
        if made is None and "float64" in {spec.dtype for spec in tensors_of(problem).values()}:
            raise NotSupportedError("no engine computes float64")
        return made

    return Implementation(planned, aligned=True, scales=False, replaces=replaces)


def usable(implementations: Sequence[Implementation], *, scaled: bool) -> list[Implementation]:
    """Return the implementations that may be tried for a call, in their order."""
    return [
        one
        for one in implementations
        if (one.scales or not scaled) and (not one.replaces or load().lacks(one.replaces))
    ]


def with_bfloat16(one: Implementation) -> tuple[Implementation, Implementation]:
    """Return an implementation, and the same on float32 copies of bfloat16, which its C calls lack."""
    return one, one._replace(make=on_float32(one.make, "bfloat16"))


class FirstSupported(SelectedPlan):
    """The implementations of a problem in one thread, and the plan of the first that cuDNN supports.

    ``relayout`` is set if copies of the operands in another layout are of use.
    """

    def __init__(
        self,
        problem: Any,
        implementations: Sequence[Implementation],
        context: Context,
        *,
        scaled: bool = False,
        relayout: bool = True,
        aligned: bool = True,
        factor: str = "alpha or beta is given",
    ) -> None:
        self._problem = problem
        given = usable(implementations, scaled=scaled)
        self._makers = _makers(problem, given, relayout, aligned)
        if any(one.replaces for one in usable(implementations, scaled=False) if one not in given):
            self._makers.append(partial(_reject, f"{factor}, which only legacy functions support"))
        self._left, self._rejections = iter(self._makers), list[str]()
        if isinstance(context, ShapesOnly):
            self.plan = record_first(partial(make, context) for make in self._makers)
        else:
            self._next(context)

    def run_other(self, error: CudnnError, context: Context, *arguments: Any) -> bool:
        """Run the next plan after a rejection, which cuDNN raises before any kernel starts."""
        while isinstance(error, NotSupportedError | BadParamError):
            if self.plan is not _NONE_LEFT:
                self._rejections.append(f"{self.plan.describe()}: {error}")
            self._next(context)
            try:
                self.plan.run(context, *arguments)
            except (NotSupportedError, BadParamError) as another:
                error = without_frames(another)
            else:
                return True
        return False

    def describe(self) -> str:
        return "\n".join([self.plan.describe(), *(f"  rejected: {line}" for line in self._rejections)])

    @streams.relaxed()  # cuDNN loads modules for a plan
    def _next(self, context: Context) -> None:
        """Make the next plan. If none is left, the next call begins again: a rejection may be transient."""
        for make in self._left:
            try:
                plan = make(context)
            except FactsError:
                raise
            except (NotSupportedError, ValueError) as error:  # a ValueError: no descriptor holds such numbers
                self._rejections.append(str(error))
            else:
                if plan is not None:
                    self.plan = plan
                    return
        self.plan, self._left, reasons = _NONE_LEFT, iter(self._makers), self._rejections
        self._rejections = []
        raise unsupported(self._problem, reasons)


def _reject(reason: str, _: Context) -> None:
    raise NotSupportedError(reason)


_NONE_LEFT = NotChosen("every implementation was rejected, and the next call tries them again")


# The context is given when a plan is made: kept in here, it would hold itself by the calls that it keeps.
def _makers(
    problem: Any, implementations: Sequence[Implementation], relayout: bool, aligned: bool
) -> list[Callable[[Context], Plan | None]]:
    """Return makers of plans on the operands in their current layout, then on packed copies of some."""
    # For misaligned operands, implementations that need no copy come first, and the plans of the others make
    # the copies.
    if not any(spec.size for spec in problem.results):
        return [lambda _: zero_or_scale(problem.results[0])]
    ordered = sorted(implementations, key=lambda one: one.aligned and not aligned)
    targets = [problem]
    if relayout:
        first = next(iter(tensors_of(problem).values()))
        targets += [packed_of(problem, layout) for layout in (nearest_layout(first), *LAYOUTS)]
    return [
        partial(_on_copies, one.make, problem, target, one.aligned and not aligned)
        for target in dict.fromkeys(targets)
        for one in ordered
    ]


def _on_copies(make: PlanMaker, problem: Any, target: Any, align: bool, context: Context) -> Plan | None:
    """Return a plan for a problem whose operands are copied into those of ``target``, or are misaligned."""
    inner = make(target, context)
    return None if inner is None else on_operands_of(inner, problem, target, align=align)
