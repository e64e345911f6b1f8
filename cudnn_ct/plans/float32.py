"""Implementations of half precision on float32 copies, for calls that cuDNN has only for float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import Context
from ..shapes.specs import TensorSpec
from .base import Plan, tensors_of
from .elementwise import cast_plan
from .program import Step, chained

# Returns a plan for a problem, or None if the implementation does not apply to it.
PlanMaker = Callable[[Any, Context], Plan | None]


def on_float32(maker: PlanMaker, *dtypes: str) -> PlanMaker:
    """Return an implementation that runs another one on float32 copies of the operands of ``dtypes``."""

    def wide(problem: Any, context: Context) -> Plan | None:
        tensors = tensors_of(problem)
        copies = {name: widened(spec) for name, spec in tensors.items() if spec.dtype in dtypes}
        inner = maker(problem._replace(**copies), context) if copies else None
        if inner is None:
            return None
        places = list(range(len(tensors)))  # of the operands of the inner plan
        into, out_of = [], []
        first, read_again = len(tensors) - len(problem.results), len(tensors) - getattr(problem, "updated", 0)
        for place, (name, spec) in enumerate(tensors.items()):
            if name not in copies:
                continue
            places[place] = copied = len(tensors) + list(copies).index(name)
            if place < first or place >= read_again:
                into.append(Step(cast_plan(spec, copies[name]), (place, copied)))
            if place >= first:
                out_of.append(Step(cast_plan(copies[name], spec), (copied, place)))
        # The first result is last, because the last step applies alpha and beta.
        return chained(list(copies.values()), [*into, Step(inner, tuple(places)), *reversed(out_of)])

    return wide


def widened(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a contiguous float32 copy, in the layout of a contiguous ``spec``."""
    return TensorSpec.packed(spec.shape, "float32", spec.layouts[0] if spec.layouts else "nchw")
