"""Operations whose ways are few and known: which is tried first, and what takes its place.

Convolutions, which have many ways, are chosen by `algo_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

from ..context import Context
from ..cuda import stream as streams
from ..errors import BadParamError, NotSupportedError
from ..plans.base import Layer, Plan, packed_of, tensors_of
from ..plans.elementwise import cast_plan as legacy_conversion
from ..plans.elementwise import fill_plan, op_tensor, scale_plan, scaling_by_op_tensor, transformation
from ..plans.float32 import Implementation, on_float32
from ..plans.wrappers import RelayoutPlan, ZeroOrScale
from ..shapes.activation import ActivationProblem
from ..shapes.ctc import CTCProblem
from ..shapes.elementwise import FillProblem, OpTensorProblem, ScaleProblem, TransformProblem
from ..shapes.lrn import LRNProblem
from ..shapes.norm_problem import NormGradient, NormInference, NormTraining
from ..shapes.pooling import PoolProblem
from ..shapes.reduction import ReduceProblem
from ..shapes.softmax import SoftmaxProblem
from ..shapes.spatial import GridProblem, SampleProblem
from ..shapes.specs import ALIGNMENT, LAYOUTS, nearest_layout
from .activation_graph import activation as graph_activation
from .activation_legacy import activation as legacy_activation
from .cast_graph import conversion as graph_conversion
from .ctc_legacy import ctc_loss, ctc_loss_of_host_labels
from .lrn_legacy import lrn
from .norm.plans import NORM_GRADIENT_WAYS, NORM_INFERENCE_WAYS, NORM_TRAINING_WAYS
from .pooling_legacy import broadcast_gradient, gradient_in_c_order, padded_pooling, pooling
from .reduce.fast_sum import channel_sum, fast_sum
from .reduce.graph import reduction as graph_reduction
from .reduce.legacy import reduction as legacy_reduction
from .reduce.legacy import wide_reduction
from .softmax_legacy import softmax, softmax_of_rows
from .spatial_legacy import GridPlan, SamplePlan

__all__ = ["FirstSupported"]


def _simple(way: Callable[[Any], Plan | None]) -> Implementation:
    """A way whose plan needs no more than the problem."""
    return lambda problem, _: way(problem)


def _of_bfloat16_too(way: Implementation) -> tuple[Implementation, ...]:
    """A way, and the same on float32 copies of bfloat16, which the calls behind it lack."""
    return (way, on_float32(way, "bfloat16"))


@dataclass(frozen=True)
class RequireAlignment:
    """An implementation whose kernels load 16 bytes at once, and end the CUDA context on misaligned memory.

    Its plan gets copies of the operands whose pointers are misaligned. See
    :class:`plans.wrappers.RelayoutPlan`.
    """

    make: Implementation

    def __call__(self, problem: Any, context: Context) -> Plan | None:
        """Return the plan for aligned operands."""
        return self.make(problem, context)


# The plans of a kind of problem, the fastest first.
WAYS: dict[type, tuple[Implementation, ...]] = {
    ActivationProblem: (RequireAlignment(graph_activation), _simple(legacy_activation)),
    CTCProblem: (ctc_loss, ctc_loss_of_host_labels),
    FillProblem: (_simple(fill_plan),),
    GridProblem: _of_bfloat16_too(_simple(GridPlan)),
    LRNProblem: _of_bfloat16_too(_simple(lrn)),
    NormGradient: tuple(map(RequireAlignment, NORM_GRADIENT_WAYS)),
    NormInference: tuple(map(RequireAlignment, NORM_INFERENCE_WAYS)),
    NormTraining: tuple(map(RequireAlignment, NORM_TRAINING_WAYS)),
    OpTensorProblem: (_simple(op_tensor),),
    PoolProblem: (
        RequireAlignment(_simple(broadcast_gradient)),
        _simple(gradient_in_c_order),
        _simple(pooling),
        _simple(padded_pooling),
    ),
    ReduceProblem: (
        RequireAlignment(_simple(fast_sum)),
        RequireAlignment(graph_reduction),
        RequireAlignment(_simple(channel_sum)),
        on_float32(_simple(channel_sum), "float16", "bfloat16"),
        legacy_reduction,
        wide_reduction,
    ),
    SampleProblem: _of_bfloat16_too(_simple(SamplePlan)),
    ScaleProblem: (_simple(scale_plan), _simple(scaling_by_op_tensor)),
    SoftmaxProblem: (RequireAlignment(_simple(softmax_of_rows)), _simple(softmax)),
    TransformProblem: (_simple(transformation), _simple(legacy_conversion), graph_conversion),
}

# These change an array where it lies, so a copy of it is of no use, or make the copies that they need.
AS_THEY_LIE = (CTCProblem, FillProblem, ScaleProblem)
# These compute the result alone: for a run with factors, they are not asked.
WITHOUT_FACTORS = (RequireAlignment(graph_activation),)


class FirstSupported:
    """The ways to compute a problem in one thread: the first that cuDNN does not refuse is taken.

    ``scaled`` says that runs have an alpha that is not 1 or a beta that is not 0; ``misaligned`` that some of
    their pointers are misaligned.
    """

    __slots__ = (
        "_elsewhere",
        "_left",
        "_misaligned",
        "_needs_alignment",
        "_problem",
        "_refusals",
        "_scaled",
        "_spent",
        "plan",
    )

    def __init__(
        self, problem: Layer, context: Context, scaled: bool = False, misaligned: bool = False
    ) -> None:
        self._problem = problem
        self._scaled = scaled
        self._misaligned = misaligned
        self._begin(context)

    def _begin(self, context: Context) -> None:
        self._spent = True  # until there is a plan
        self._left = _ways(self._problem, self._scaled, self._misaligned)
        self._refusals: list[str] = []
        self._elsewhere: FirstSupported | None = None
        self.plan: Plan = self._next(context)
        self._spent = False

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the plan; where cuDNN refuses it only now, before any kernel starts, the next.

        Where none is left, the next call begins again: a refusal may pass.
        """
        if self._spent:
            self._begin(context)
        while True:
            if self._needs_alignment and reduce(or_, pointers) % ALIGNMENT:
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
            self._elsewhere = FirstSupported(self._problem, context, self._scaled, misaligned=True)
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

    def _nothing(self) -> NotSupportedError:
        lines = [f"cuDNN has no way to compute this {self._problem}", *self._refusals]
        return NotSupportedError("\n  refused: ".join(lines))


def _are_misaligned(pointers: Sequence[Any]) -> bool:
    """Return whether a pointer is misaligned; arguments of other types are in host memory."""
    return any(isinstance(pointer, int) and pointer % ALIGNMENT for pointer in pointers)


Maker = Callable[[Context], Plan | None]


# The context is given when a plan is made: kept in here, it would hold itself by the calls that it keeps.
def _ways(problem: Layer, scaled: bool, misaligned: bool) -> list[tuple[Maker, bool]]:
    """Plans on the operands in their current layout, then on packed copies of some.

    Each has a flag, whether it must run on aligned operands only. For ``misaligned`` operands,
    implementations that need no copy come first, and the plans of the others make the copies.
    """
    if not any(spec.size for spec in problem.results):
        return [(lambda _: ZeroOrScale(problem.results[0]), False)]
    ways = [way for way in WAYS[type(problem)] if not scaled or way not in WITHOUT_FACTORS]
    if misaligned:
        ways.sort(key=lambda way: isinstance(way, RequireAlignment))
    targets = [problem]
    if not isinstance(problem, AS_THEY_LIE):
        first = next(iter(tensors_of(problem).values()))
        targets += [packed_of(problem, layout) for layout in (nearest_layout(first), *LAYOUTS)]
    makers: list[tuple[Maker, bool]] = []
    for target in dict.fromkeys(targets):
        for way in ways:
            align = isinstance(way, RequireAlignment)
            make = partial(_on_copies, way, problem, target, align and misaligned)
            makers.append((make, align and not misaligned))
    return makers


def _on_copies(
    way: Implementation, problem: Layer, target: Layer, align: bool, context: Context
) -> Plan | None:
    """A plan for a problem whose operands are copied as ``target`` has them, or are misaligned."""
    inner = way(target, context)
    if inner is None or (target == problem and not align):
        return inner
    moves = [
        (spec, None if spec == copy else copy)
        for spec, copy in zip(tensors_of(problem).values(), tensors_of(target).values(), strict=True)
    ]
    updated = getattr(problem, "updated", 0)
    return RelayoutPlan(inner, moves, len(problem.results), updated, align=align)
