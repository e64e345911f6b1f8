"""Operations whose ways are few and known: which is tried first, and what takes its place.

Convolutions, which have many ways, are chosen by `algo_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

from . import graph, legacy
from .context import Context
from .errors import BadParamError, NotSupportedError
from .legacy.widen import Way
from .problem import (
    ALIGNMENT,
    LAYOUTS,
    ActivationProblem,
    CTCProblem,
    FillProblem,
    GridProblem,
    Layer,
    LRNProblem,
    NormGradient,
    NormInference,
    NormTraining,
    OpTensorProblem,
    Plan,
    PoolProblem,
    ReduceProblem,
    SampleProblem,
    ScaleProblem,
    SoftmaxProblem,
    TransformProblem,
    nearest_layout,
    packed_of,
    tensors_of,
)

__all__ = ["Roads"]


def _simple(way: Callable[[Any], Plan | None]) -> Way:
    """A way whose plan needs no more than the problem."""
    return lambda problem, _: way(problem)


def _of_bfloat16_too(way: Way) -> tuple[Way, ...]:
    """A way, and the same on float32 copies of bfloat16, which the calls behind it lack."""
    return (way, legacy.on_float32(way, "bfloat16"))


# The plans of a kind of problem, the quickest first.
WAYS: dict[type, tuple[Way, ...]] = {
    ActivationProblem: (graph.activation, _simple(legacy.activation)),
    CTCProblem: (legacy.ctc_loss, legacy.ctc_loss_of_host_labels),
    FillProblem: (_simple(legacy.filling),),
    GridProblem: _of_bfloat16_too(_simple(legacy.GridPlan)),
    LRNProblem: _of_bfloat16_too(_simple(legacy.lrn)),
    NormGradient: legacy.NORM_GRADIENT_WAYS,
    NormInference: legacy.NORM_INFERENCE_WAYS,
    NormTraining: legacy.NORM_TRAINING_WAYS,
    OpTensorProblem: (_simple(legacy.op_tensor),),
    PoolProblem: tuple(
        map(
            _simple,
            (legacy.spread_gradient, legacy.gradient_in_c_order, legacy.pooling, legacy.padded_pooling),
        )
    ),
    ReduceProblem: (
        _simple(legacy.quick_sum),
        graph.reduction,
        _simple(legacy.summed),
        legacy.on_float32(_simple(legacy.summed), "float16", "bfloat16"),
        legacy.reduction,
        legacy.wide_reduction,
    ),
    SampleProblem: _of_bfloat16_too(_simple(legacy.SamplePlan)),
    ScaleProblem: (_simple(legacy.scaling), _simple(legacy.scaling_by_op_tensor)),
    SoftmaxProblem: (_simple(legacy.softmax_of_rows), _simple(legacy.softmax)),
    TransformProblem: (_simple(legacy.transformation), _simple(legacy.conversion), graph.conversion),
}

# These change an array where it lies, so a copy of it is of no use, or make the copies that they need.
AS_THEY_LIE = (CTCProblem, FillProblem, ScaleProblem)
# These compute the result alone: for a run with factors, they are not asked.
WITHOUT_FACTORS = (graph.activation,)


class Roads:
    """The ways to compute a problem in one thread: the first that cuDNN does not refuse is taken.

    ``scaled`` says that runs have an alpha that is not 1 or a beta that is not 0.
    """

    __slots__ = ("_elsewhere", "_left", "_problem", "_refusals", "_scaled", "_spent", "plan")

    def __init__(self, problem: Layer, context: Context, scaled: bool = False) -> None:
        self._problem = problem
        self._scaled = scaled
        self._begin(context)

    def _begin(self, context: Context) -> None:
        self._spent = True  # until there is a plan
        self._left = _ways(self._problem, self._scaled)
        self._refusals: list[str] = []
        self._elsewhere: Roads | None = None
        self.plan: Plan = self._next(context)
        self._spent = False

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Run the plan; where cuDNN refuses it only now, before any kernel starts, the next.

        Where none is left, the next call begins again: a refusal may pass.
        """
        if self._spent:
            self._begin(context)
        while True:
            try:
                return self.plan.run(context, pointers, alpha, beta)
            except (NotSupportedError, BadParamError) as error:
                if any(isinstance(pointer, int) and pointer % ALIGNMENT for pointer in pointers):
                    return self._for_other_memory(error, context).run(context, pointers, alpha, beta)
                self._refusals.append(f"{self.plan.describe()}: {error}")
                self._spent = True
                if not self._left:
                    raise self._nothing() from error
                self.plan = self._next(context)
                self._spent = False

    def _for_other_memory(self, error: Exception, context: Context) -> Roads:
        """The ways after this one, for memory that begins where kernels cannot load several elements at once.

        This one is kept for other calls: it may be refused for nothing but that address.
        """
        if self._elsewhere is None:
            other = copy(self)
            other._left = list(self._left)
            other._refusals = [*self._refusals, f"{self.plan.describe()}: {error}"]
            other.plan = other._next(context)
            self._elsewhere = other
        return self._elsewhere

    def describe(self) -> str:
        """Tell what was chosen, and what was refused and why."""
        return "\n".join([self.plan.describe(), *(f"  refused: {line}" for line in self._refusals)])

    def _next(self, context: Context) -> Plan:
        while self._left:
            make = self._left.pop(0)
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


# The context is given when a plan is made: kept in here, it would hold itself by the calls that it keeps.
def _ways(problem: Layer, scaled: bool) -> list[Callable[[Context], Plan | None]]:
    """Plans on the operands as they lie in memory, then on packed copies of some."""
    if not any(spec.size for spec in problem.results):
        return [lambda _: legacy.ScalePlan(problem.results[0])]
    ways = [way for way in WAYS[type(problem)] if not scaled or way not in WITHOUT_FACTORS]
    makers: list[Callable[[Context], Plan | None]] = [partial(way, problem) for way in ways]
    if isinstance(problem, AS_THEY_LIE):
        return makers
    first = next(iter(tensors_of(problem).values()))
    layouts = dict.fromkeys((nearest_layout(first), *LAYOUTS))
    copies = dict.fromkeys(packed_of(problem, layout) for layout in layouts)
    for packed in copies:
        if packed != problem:
            makers += [partial(_on_copies, way, problem, packed) for way in ways]
    return makers


def _on_copies(way: Way, problem: Layer, packed: Layer, context: Context) -> Plan | None:
    moves = [
        (spec, None if spec == target else target)
        for spec, target in zip(tensors_of(problem).values(), tensors_of(packed).values(), strict=True)
    ]
    inner, updated = way(packed, context), getattr(problem, "updated", 0)
    return inner and legacy.PackedPlan(inner, moves, len(problem.results), updated)
