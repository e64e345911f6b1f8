"""What cuDNN has for float32 and not for half types: on copies that hold more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import Context
from ..shapes.elementwise import TransformProblem
from ..shapes.specs import TensorSpec
from .base import Plan, tensors_of
from .chain import ChainPlan, Step
from .elementwise import cast_plan

__all__ = ["PlanMaker", "on_float32", "widened"]

# A plan for a problem, or None where the way is for others of its kind.
PlanMaker = Callable[[Any, Context], Plan | None]


def on_float32(way: PlanMaker, *dtypes: str) -> PlanMaker:
    """A way that computes a problem of one of ``dtypes`` as ``way`` does one of float32; for others none."""

    def wide(problem: Any, context: Context) -> Plan | None:
        tensors = tensors_of(problem)
        if any(spec.dtype not in dtypes for spec in tensors.values()):
            return None
        copies = {name: widened(spec) for name, spec in tensors.items()}
        inner = way(problem._replace(**copies), context)
        if inner is None:
            return None
        count, results = len(tensors), len(problem.results)
        pairs = [
            (i, TransformProblem(spec, copy), TransformProblem(copy, spec))
            for i, (spec, copy) in enumerate(zip(tensors.values(), copies.values(), strict=True))
        ]
        steps = [Step(cast_plan(there), (i, count + i)) for i, there, _ in pairs[: count - results]]
        steps.append(Step(inner, tuple(range(count, 2 * count))))
        # The first result last: it is the one that alpha and beta are of.
        steps += [Step(cast_plan(back), (count + i, i)) for i, _, back in reversed(pairs[count - results :])]
        return ChainPlan(list(copies.values()), steps)

    return wide


def widened(spec: TensorSpec) -> TensorSpec:
    """A float32 copy without gaps, in the same order of memory where that has none."""
    return TensorSpec.packed(spec.shape, "float32", spec.layouts[0] if spec.layouts else "nchw")
