"""Reductions by the legacy calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from ...context import Context
from ...descriptors import ReduceDescriptor, TensorDescriptor
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...plans.axes import coalesce, pad_axes_to_4d
from ...plans.base import Plan
from ...plans.elementwise import copy_plan, fill_plan, op_tensor_of
from ...plans.program import FunctionPlan, Step, chained, scalar_type
from ...plans.wrappers import scaled_after
from ...shapes.specs import INT_MAX, ReduceSpec, TensorSpec, results_of
from ...shapes.tensor import ReduceProblem
from ...typing import OpTensorOp, ReduceOp

Reduce = Callable[[ReduceProblem, Context], Plan]

# For each extreme, the op that compares it with the sum of absolute values, and the factor of that sum.
NAN_GUARDS: dict[str, tuple[OpTensorOp, float]] = {
    "max": ("max", -1.0),
    "amax": ("max", -1.0),
    "min": ("min", 1.0),
}

# Value of a reduction over zero elements; the other operations are undefined there.
_EMPTY_VALUES = {"add": 0.0, "mul": 1.0, "norm1": 0.0, "norm2": 0.0, "mul_no_zeros": 1.0}
_ABSOLUTE = ("amax", "norm1", "norm2")


def reduction(problem: ReduceProblem, context: Context) -> Plan:
    """Return a plan with ``cudnnReduceTensor``, or without it for zero or one elements per result."""
    if problem.terms == 0:
        return _empty_reduction(problem)
    if problem.terms > 1:
        if problem.op == "mul_no_zeros" and not problem.indices:
            return _product_of_others(problem, context)
        if problem.op not in NAN_GUARDS or (problem.propagate_nan and problem.indices):
            return reduce_plan(problem, context)
        found = TensorSpec.packed(problem.kept.shape, problem.y.dtype)
        joined = nan_propagating if problem.propagate_nan else nan_ignoring
        return joined(problem, found, reduce_plan, context)
    plan = _identity_reduction(problem, context)
    if problem.indices is None:
        return plan
    # No call writes integers, but the bit pattern of 0 is the same in float32.
    zeros = fill_plan(problem.indices._replace(dtype="float32"), 0.0)
    return chained([], [Step(zeros, (2,)), Step(plan, (0, 1))])


def nan_propagating(problem: ReduceProblem, found: TensorSpec, reduce: Reduce, context: Context) -> Plan:
    """Return a plan for an extreme that propagates NaN, from calls that skip NaN.

    The extreme is compared with plus or minus the sum of absolute values. That sum is never less than the
    magnitude of the extreme, so it has an effect only if it is NaN. ``found`` is the spec of both
    intermediate tensors; ``reduce`` makes plans that write one.
    """
    op, factor = NAN_GUARDS[problem.op]
    extremes = problem._replace(y=found)
    steps = [
        Step(reduce(extremes, context), (0, 2)),
        Step(reduce(extremes._replace(op="norm1"), context), (0, 3)),
        Step(_scaled_after(op, factor, found, found, problem.kept), (2, 3, 1)),
    ]
    return chained([found, found], steps)


def nan_ignoring(problem: ReduceProblem, found: TensorSpec, reduce: Reduce, context: Context) -> Plan:
    """Return a plan for an extreme that is NaN only if all elements are; the arguments are as before.

    If they are, cuDNN 9.19 returns the value that its search begins with, so that the maximum is less than
    the minimum. Clipped to the range from -1 to 1 both are finite, and a negative difference has no root.
    """
    first = 3 if problem.indices else 2
    largest, smallest, low, high, one = range(first, first + 5)
    one_spec = TensorSpec.packed((1,) * len(found.shape), found.dtype)
    at_least, at_most = (
        op_tensor_of("max", found, one_spec, found, alpha2=-1.0),
        op_tensor_of("min", found, one_spec, found),
    )
    difference = op_tensor_of("add", found, found, found, alpha2=-1.0)
    steps = [Step(fill_plan(one_spec, 1.0), (one,))]
    extremes: tuple[tuple[ReduceOp, int, int], ...] = ("max", largest, high), ("min", smallest, low)
    for op, at, clipped in extremes:
        indices = problem.indices if op == problem.op else None
        search = reduce(problem._replace(y=found, op=op, indices=indices), context)
        steps += [
            Step(search, (0, at, 2) if indices else (0, at)),
            Step(at_least, (at, one, clipped)),
            Step(at_most, (clipped, one, clipped)),
        ]
    steps += [
        Step(difference, (high, low, high)),
        Step(op_tensor_of("sqrt", found, found), (high, high)),
        Step(difference, (high, high, high)),  # 0 or NaN
    ]
    extreme = smallest if problem.op == "min" else largest
    if problem.op == "amax":
        steps.append(
            Step(op_tensor_of("max", found, found, found, alpha2=-1.0), (largest, smallest, largest))
        )
    steps.append(Step(_scaled_after("add", 1.0, found, found, problem.kept), (extreme, high, 1)))
    return chained([found] * 4 + [one_spec], steps)


def _scaled_after(op: OpTensorOp, factor: float, *specs: TensorSpec) -> Plan:
    """Return a plan of alpha op(a, factor b) + beta y; in the op, alpha < 0 would exchange max and min."""
    *operands, y = specs
    if y.layouts:
        return scaled_after(op_tensor_of(op, *specs, alpha2=factor), len(operands), y)
    packed, places = TensorSpec.packed(y.shape, y.dtype), range(len(operands))
    result, temporary = len(operands), len(operands) + 1
    inner = op_tensor_of(op, *operands, packed, alpha2=factor)
    steps = [Step(inner, (*places, temporary)), Step(copy_plan(packed, y), (temporary, result))]
    return chained([packed], steps)


def _empty_reduction(problem: ReduceProblem) -> Plan:
    constant = TensorSpec.packed(problem.y.shape, problem.y.dtype)
    steps = [
        Step(fill_plan(constant, _EMPTY_VALUES[problem.op]), (2,)),
        Step(copy_plan(constant, problem.y), (2, 1)),
    ]
    return chained([constant], steps)


def _identity_reduction(problem: ReduceProblem, context: Context) -> Plan:
    """Return a plan for reduced axes of length 1, which cuDNN rejects."""
    x, y = problem.x, problem.kept
    if problem.op in _ABSOLUTE:
        return _scaled_after("max", -1.0, x, y)
    if problem.op != "mul_no_zeros":
        return copy_plan(x, y)
    return _ones_for_zeros(x, y, context)


def _ones_for_zeros(x: TensorSpec, y: TensorSpec, context: Context) -> Plan:
    """Return a plan that copies x with 1 for 0, by products without zeros of pairs, x and 1."""
    pair = TensorSpec.packed((2, *x.shape), x.dtype)
    kept = TensorSpec((1, *y.shape), (1, *y.strides), y.dtype)
    steps = [
        Step(fill_plan(pair, 1.0), (2,)),
        Step(copy_plan(x, TensorSpec.packed(x.shape, x.dtype)), (0, 2)),
        Step(reduce_plan(ReduceProblem(pair, kept, None, (0,), "mul_no_zeros", True), context), (2, 1)),
    ]
    return chained([pair], steps)


def _product_of_others(problem: ReduceProblem, context: Context) -> Plan:
    """Return a plan for a product without zeros: cuDNN 9.19 leaves out partial products that underflow."""
    others = TensorSpec.packed(problem.x.shape, problem.x.dtype)
    product = problem._replace(x=others, op="mul")
    steps = [
        Step(_ones_for_zeros(problem.x, others, context), (0, 2)),
        Step(reduce_plan(product, context), (2, 1)),
    ]
    return chained([others], steps)


def reduce_plan(problem: ReduceProblem, context: Context) -> FunctionPlan:
    """Return one ``cudnnReduceTensor`` on x and y with coalesced axes; pointers are x, y and any indices."""
    x, y, indices = problem.x, problem.kept, problem.indices
    if indices and any("nchw" not in spec.layouts for spec in results_of(problem)):
        raise NotSupportedError(f"indices require a result in C order: got {problem.y}")
    axes = coalesce([x, y], in_order=indices is not None)
    if x.size > INT_MAX or any(axis.reach > INT_MAX for axis in axes):
        raise NotSupportedError(f"{x} is too large: cuDNN reduces at most {INT_MAX:,} elements")
    compute = DTYPES[x.dtype].accumulate
    spec = ReduceSpec(problem.op, compute, problem.propagate_nan, indices is not None)
    reduction, scalar = ReduceDescriptor.cached(spec), scalar_type(compute)
    x_, y_ = map(TensorDescriptor.cached, pad_axes_to_4d(axes, [x, y]))

    def query(function: str) -> int:
        size = ctypes.c_size_t()
        getattr(context.library, function)(context.handle, reduction, x_, y_, ctypes.byref(size))
        return size.value

    workspace = query("cudnnGetReductionWorkspaceSize")
    nbytes = indices.size * DTYPES[indices.dtype].itemsize if indices else 0
    if indices and (needed := query("cudnnGetReductionIndicesSize")) > nbytes:
        raise NotSupportedError(f"cuDNN needs {needed:,} bytes for indices: got {nbytes:,}")

    def run(context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        memory = pointers[2] if nbytes else None, nbytes, context.workspace(workspace), workspace
        source, target = (scalar(alpha), x_, pointers[0]), (scalar(beta), y_, pointers[1])
        context.library.cudnnReduceTensor(context.handle, reduction, *memory, *source, *target)

    return FunctionPlan(f"cudnnReduceTensor, {problem.op}", run, workspace)
