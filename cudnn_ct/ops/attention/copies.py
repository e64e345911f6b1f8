"""Copies that kernels of attention read or write instead of an operand: other strides, sizes or dtypes."""

from __future__ import annotations

from ...context import Context
from ...plans.base import Plan
from ...plans.elementwise import cast_or_copy_plan, copy_plan, fill_plan, op_tensor_of
from ...plans.program import NO_STEP, Step, chained
from ...plans.workspace import room_of
from ...shapes.reduction import ReduceProblem
from ...shapes.specs import TensorSpec
from .._cast import cast_by_graph
from ..reduce.legacy import ReducePlan


def copy_into(context: Context, spec: TensorSpec, copy: TensorSpec) -> Plan:
    """Return the plan that writes the copy of an operand.

    Axes of length 1 are repeated, longer ones are filled up with zeros. A mask becomes 0 where it is True and
    -inf elsewhere.
    """
    if spec.dtype == copy.dtype and spec.shape == copy.shape:
        return copy_plan(spec, copy)
    temporaries, steps, source = [], [], 0
    if spec.dtype != copy.dtype:
        converted = TensorSpec.packed(spec.shape, copy.dtype)
        steps, source = [Step(_conversion(context, spec, converted), (0, 2))], 2
        temporaries, spec = [converted], converted
    grown = _grown(spec, copy)
    if grown:
        steps.append(Step(fill_plan(copy, 0.0), (1,)))
    if any(spec.shape[axis] == 1 for axis in grown):
        steps.append(Step(op_tensor_of("add", copy, spec, copy), (1, source, 1)))
    else:
        steps.append(Step(copy_plan(spec, copy._replace(shape=spec.shape)), (source, 1)))
    return chained(temporaries, steps, scaled=NO_STEP)


def copy_out_of(context: Context, copy: TensorSpec, spec: TensorSpec) -> Plan:
    """Return the plan that writes a result from its copy: repeated axes are summed, in float32."""
    grown = _grown(spec, copy)
    if not any(spec.shape[axis] == 1 for axis in grown):
        return cast_or_copy_plan(copy._replace(shape=spec.shape), spec)
    terms, sums = TensorSpec.packed(copy.shape), TensorSpec.packed(spec.shape)
    add = ReducePlan(ReduceProblem(terms, sums, None, grown, "add", True), context)
    steps = [
        Step(cast_or_copy_plan(copy, terms), (0, 2)),
        Step(add, (2, 3)),
        Step(cast_or_copy_plan(sums, spec), (3, 1)),
    ]
    return chained([terms, sums], steps, scaled=NO_STEP)


def room_of_conversion(spec: TensorSpec, copy: TensorSpec) -> int:
    """Return an upper bound of the bytes that these plans need besides the copy."""
    if spec.dtype == copy.dtype and spec.shape == copy.shape:
        return 0
    return 2 * room_of([TensorSpec.packed(one.shape) for one in (spec, copy)])


def _conversion(context: Context, spec: TensorSpec, converted: TensorSpec) -> Plan:
    if spec.dtype != "bool":
        return cast_or_copy_plan(spec, converted)
    # The logarithms of 1 and 0. A bool is a byte, which engines read as int8 only.
    return cast_by_graph(spec._replace(dtype="int8"), converted, context, "log")


def _grown(spec: TensorSpec, copy: TensorSpec) -> tuple[int, ...]:
    """Return the axes along which a copy is longer than its operand."""
    return tuple(axis for axis, size in enumerate(spec.shape) if size != copy.shape[axis])
