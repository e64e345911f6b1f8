"""Implementations of half precision on float32 copies, for calls that cuDNN has only for float32."""

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

# Returns a plan for a problem, or None if the implementation does not apply to it.
PlanMaker = Callable[[Any, Context], Plan | None]


def on_float32(maker: PlanMaker, *dtypes: str) -> PlanMaker:
    """Return an implementation for problems of ``dtypes``, which runs another one on float32 copies."""

    def wide(problem: Any, context: Context) -> Plan | None:
        tensors = tensors_of(problem)
        if any(spec.dtype not in dtypes for spec in tensors.values()):
            return None
        copies = {name: widened(spec) for name, spec in tensors.items()}
        inner = maker(problem._replace(**copies), context)
        if inner is None:
            return None
        count, results = len(tensors), len(problem.results)
        pairs = [
            (i, TransformProblem(spec, copy), TransformProblem(copy, spec))
            for i, (spec, copy) in enumerate(zip(tensors.values(), copies.values(), strict=True))
        ]
        steps = [Step(cast_plan(there), (i, count + i)) for i, there, _ in pairs[: count - results]]
        steps.append(Step(inner, tuple(range(count, 2 * count))))
        # The first result is last, because the last step applies alpha and beta.
        steps += [Step(cast_plan(back), (count + i, i)) for i, _, back in reversed(pairs[count - results :])]
        return ChainPlan(list(copies.values()), steps)

    return wide


def widened(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a contiguous float32 copy, in the layout of a contiguous ``spec``."""
    return TensorSpec.packed(spec.shape, "float32", spec.layouts[0] if spec.layouts else "nchw")
