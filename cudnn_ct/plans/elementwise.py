"""Plans of legacy calls that compute element by element, or copy elements."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .._lib import load
from ..context import Context
from ..cuda import memory as memories
from ..descriptors import OpTensorDescriptor, TensorDescriptor
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..shapes.specs import OpTensorSpec, TensorSpec, nearest_layout
from ..shapes.tensor import OpTensorProblem, OpTensorScales
from ..typing import OpTensorOp
from . import program
from .axes import tile
from .base import Plan
from .program import ALPHA, BETA, CallPlan, FunctionPlan, Program, Step, Steps, Variants, chained, scalar_type
from .strided_copy import StridedCopy


def op_tensor(problem: OpTensorProblem) -> Plan:
    """Return a plan of ``cudnnOpTensor``, also for factors of 0."""
    return _with_zeros(
        [spec for spec in (problem.a, problem.b) if spec],
        lambda *operands: op_tensor_of(problem.op, *operands, problem.c, propagate_nan=problem.propagate_nan),
    )


def op_tensor_of(
    op: OpTensorOp, *specs: TensorSpec, alpha1: float = 1.0, alpha2: float = 1.0, propagate_nan: bool = True
) -> Plan:
    """Return a plan of ``cudnnOpTensor`` on alpha1 a and alpha2 b; with one operand, b is a."""
    spec = OpTensorSpec(op, DTYPES[specs[0].dtype].accumulate, propagate_nan)
    return tile(partial(_op_tensor_call, spec, alpha1, alpha2), *specs)


def cast_plan(x: TensorSpec, y: TensorSpec) -> Plan:
    """Return a plan of ``cudnnOpTensor`` with two dtypes: the maximum of x and x."""
    # float16 and bfloat16 are converted to each other through float32, which is exact.
    if not x.representable:
        return _on_packed(x, lambda packed: cast_plan(packed, y))
    halves = {x.dtype, y.dtype} - {"float32"}
    if halves in ({"float16"}, {"bfloat16"}):
        return op_tensor_of("max", x, y)
    between = TensorSpec.packed(x.shape, "float32")
    if halves != {"float16", "bfloat16"}:
        raise NotSupportedError(f"cudnnOpTensor cannot convert {x.dtype} to {y.dtype}")
    return chained([between], [Step(cast_plan(x, between), (0, 2)), Step(cast_plan(between, y), (2, 1))])


def cast_or_copy_plan(x: TensorSpec, y: TensorSpec) -> Plan:
    """Return a plan of a copy, or of a conversion if the dtypes differ."""
    return copy_plan(x, y) if x.dtype == y.dtype else cast_plan(x, y)


def transform_plan(x: TensorSpec, y: TensorSpec) -> Plan:
    """Return a plan of a copy or a conversion, also for a factor of 0."""
    if x.dtype == "int8":
        return cast_or_copy_plan(x, y)
    return _with_zeros([x], lambda operand: cast_or_copy_plan(operand, y))


def scale_plan(x: TensorSpec) -> Plan:
    return tile(_scale_call, x)


def fill_plan(x: TensorSpec, value: float | None = None) -> Plan:
    """Return a plan that writes a constant; if ``value`` is None, each run takes it from ``context.state``.

    The driver fills a dense x: ``cudnnSetTensor`` writes 5 GB/s of a tensor of one axis. It writes the
    others, and numbers of eight bytes, which the driver has no call for. Without that call, the driver fills
    one element, which it copies to all places.
    """
    if value == 0:  # cudnnSetTensor does not take all integers
        x = x._replace(dtype=_SAME_ZERO.get(x.dtype, x.dtype))
    if x.is_dense and (DTYPES[x.dtype].itemsize < 8 or value == 0):
        return _memset(x, value)
    if not load().lacks("ops"):
        return tile(partial(_fill_call, value), x)
    if x.is_dense:
        return _memset(x, value)
    one = TensorSpec.packed((1,) * len(x.shape), x.dtype)
    repeated = TensorSpec(x.shape, (0,) * len(x.shape), x.dtype)
    return chained([one], [Step(_memset(one, value), (1,)), Step(StridedCopy(repeated, x), (1, 0))])


def _with_zeros(operands: Sequence[TensorSpec], plan_for: Callable[..., Plan]) -> Program:
    """Return a plan whose operands with a factor of 0 are copied and multiplied by it before.

    cuDNN 9.19 does not read operands if all factors are 0, and so misses infinity and NaN. ``plan_for`` makes
    the plan for operands.
    """
    count, plan = len(operands), plan_for(*operands)
    workspace = plan.workspace
    for spec in operands:
        _, workspace = program.append(workspace, spec)

    def factors(_: Sequence[int], alpha: Any, beta: float) -> Any:  # noqa: ARG001
        if type(alpha) is OpTensorScales:
            return alpha if 0 in alpha[:count] else ()
        return () if alpha else (0.0,) * count

    def steps(factors: Any) -> Steps:
        places, specs, kept = list(range(count + 1)), list(operands), list(factors)
        copies, before = list[TensorSpec](), list[Step]()
        for place, spec in enumerate(operands):
            if factors[place] == 0:
                packed = TensorSpec.packed(spec.shape, spec.dtype)
                zeros = count + 1 + len(copies)
                copies.append(packed)
                before += [
                    Step(copy_plan(spec, packed), (place, zeros)),
                    Step(op_tensor_of("max", packed, packed), (zeros, zeros), 0.0),
                ]
                places[place], specs[place], kept[place] = zeros, packed, 1.0
        alpha = OpTensorScales(*kept) if isinstance(factors, OpTensorScales) else 1.0
        return Steps(copies, [*before, Step(plan_for(*specs), tuple(places), alpha, BETA)])

    variants = Variants(factors, steps, workspace)
    return Program(Steps((), [Step(plan, None, ALPHA, BETA)]), variants=variants, about="{}", main=plan)


def _op_tensor_call(spec: OpTensorSpec, alpha1: float, alpha2: float, *specs: TensorSpec) -> FunctionPlan:
    """Return one ``cudnnOpTensor``: c = op(alpha alpha1 a, alpha alpha2 b) + beta c; alpha may be a pair.

    The result is the last pointer, and may equal another one. With one operand, b is a.
    """
    call, compute, scalar = OpTensorDescriptor.cached(spec), spec.compute, scalar_type(spec.compute)
    operands = tuple(map(TensorDescriptor.cached, specs))
    a_, b_, c_ = operands[0], operands[1 if len(specs) == 3 else 0], operands[-1]

    def run(context: Context, pointers: Sequence[int], alpha: float | OpTensorScales, beta: float) -> None:
        operation, c = call, pointers[-1]
        of_a, of_b = alpha if isinstance(alpha, OpTensorScales) else (alpha, alpha)
        of_a, of_b = of_a * alpha1, of_b * alpha2
        if spec.op == "max" and of_a == of_b == 0 and len(pointers) == 2:
            factor = _SMALLEST[compute] if beta else 1.0
            operation, of_a, of_b = _difference(compute), factor, -factor
        first = scalar(of_a), a_, pointers[0]
        second = scalar(of_b), b_, pointers[1 if len(pointers) == 3 else 0]
        if second[2] == c != first[2]:  # cuDNN overwrites b only if a is b; each op commutes
            first, second = second, first
        context.library.cudnnOpTensor(context.handle, operation, *first, *second, scalar(beta), c_, c)

    return FunctionPlan(f"cudnnOpTensor, {spec.op}", run)


# The smallest normal numbers; smaller ones may count as 0.
_SMALLEST = {"float32": 2.0**-126, "float64": 2.0**-1022}


def _difference(compute: str) -> OpTensorDescriptor:
    """Return the operation that computes x times 0 as x - x."""
    # cuDNN 9.19 does not read x for a factor of 0, and so misses infinity and NaN. The sum with beta y may be
    # rounded before x is subtracted, so x is as small as a factor makes it.
    return OpTensorDescriptor.cached(OpTensorSpec("add", compute, True))


def _scale_call(x: TensorSpec) -> FunctionPlan:
    x_, compute = TensorDescriptor.cached(x), DTYPES[x.dtype].accumulate
    scalar = scalar_type(compute)

    def run(context: Context, pointers: Sequence[int], alpha: float, _: float) -> None:
        pointer = pointers[-1]
        if alpha == 0:
            operands = (scalar(1.0), x_, pointer), (scalar(-1.0), x_, pointer)
            kept = scalar(0.0), x_, pointer
            context.library.cudnnOpTensor(
                context.handle, _difference(compute), *operands[0], *operands[1], *kept
            )
            return
        context.library.cudnnScaleTensor(context.handle, x_, pointer, scalar(alpha))

    return FunctionPlan("cudnnScaleTensor", run)


def _fill_call(value: float | None, x: TensorSpec) -> FunctionPlan:
    """Return one ``cudnnSetTensor`` to a value, or if that is None to ``context.state.value``."""
    x_ = TensorDescriptor.cached(x)
    given = None if value is None else program.scalar_bytes(x.dtype, value)

    def run(context: Context, pointers: Sequence[int], *_: float) -> None:
        number = given or program.scalar_bytes(x.dtype, context.state.value)
        context.library.cudnnSetTensor(context.handle, x_, pointers[-1], number)

    return FunctionPlan("cudnnSetTensor", run)


def _memset(x: TensorSpec, value: float | None) -> FunctionPlan:
    given = b"" if value is None else program.element_bytes(x.dtype, value)

    def run(context: Context, pointers: Sequence[int], *_: float) -> None:
        pattern = given or program.element_bytes(x.dtype, context.state.value)
        memories.fill(pointers[-1], pattern, x.size, context.stream)

    return FunctionPlan("cuMemsetAsync", run)


def alpha_plan() -> FunctionPlan:
    """Return a plan that writes alpha to the device as float32."""

    def run(context: Context, pointers: Sequence[int], alpha: float, _: float) -> None:
        memories.fill(pointers[-1], bytes(ctypes.c_float(alpha)), 1, context.stream)

    return FunctionPlan("cuMemsetAsync", run)


def copy_plan(x: TensorSpec, y: TensorSpec, factor: float = 1) -> Plan:
    """Return a plan of ``cudnnTransformTensor``: y = alpha factor x + beta y for one shape and dtype.

    It does not support integers of several bytes, which are copied as int8 with one more axis, nor float8
    and bool, which are copied as int8. None of them is ever scaled. An x with strides of 0 or negative ones
    is copied by its bytes first. Without that call, the driver copies.
    """
    if factor == 1 and load().lacks("ops"):
        return StridedCopy(x, y)
    return scaled_copy_plan(x, y, factor)


def scaled_copy_plan(x: TensorSpec, y: TensorSpec, factor: float = 1) -> Plan:
    """Return the plan of :func:`copy_plan` for runs with factors."""
    if not x.representable:
        scaled = _on_packed(x, lambda packed: scaled_copy_plan(packed, y, factor))
        if not y.is_dense or factor != 1:
            return scaled
        made = StridedCopy(x, y)  # applies no factors
        steps = Steps((), [Step(scaled, None, ALPHA, BETA)])
        variants = program.unscaled([Step(made, None)], made.workspace)
        return Program(steps, variants=variants, about="{}", main=made)
    if x.dtype == y.dtype and x.dtype in _BYTES:
        x, y = (_in_bytes(spec) for spec in (x, y))
    return tile(lambda a, b: CallPlan("cudnnTransformTensor", (), [(0, a)], b, factor), x, y)


def expand_plan(x: TensorSpec, y: TensorSpec) -> Plan:
    """Return a plan of ``cudnnAddTensor``: y = alpha x + beta y, with axes of length 1 of x repeated.

    The dtypes are equal, and floating-point ones. Without that call, the driver copies.
    """
    missing = len(y.shape) - len(x.shape)
    x = TensorSpec((1,) * missing + x.shape, (1,) * missing + x.strides, x.dtype)
    if load().lacks("ops"):
        strides = [0 if n == 1 < m else step for n, m, step in zip(x.shape, y.shape, x.strides, strict=True)]
        return StridedCopy(TensorSpec(y.shape, tuple(strides), x.dtype), y)

    def call(full: TensorSpec, small: TensorSpec) -> Plan:
        return _exchanged(CallPlan("cudnnAddTensor", (), [(0, small)], full))

    return _exchanged(tile(call, y, x))  # the first tensor has all axes


def _exchanged(plan: Plan) -> Plan:
    """Return a plan that takes its two pointers in the other order."""
    return chained([], [Step(plan, (1, 0))])


def into_copy(x: TensorSpec, y: TensorSpec) -> Plan:
    """Return a plan that copies x to y, which may have another layout, more elements, or another dtype."""
    if x.shape != y.shape:
        return expand_plan(x, y)
    return cast_or_copy_plan(x, y)


# Dtypes that cudnnTransformTensor does not support.
_SAME_ZERO = {"int32": "float32", "int64": "float64"}  # dtypes whose 0 has the same bits
_BYTES = ("bool", "float8_e4m3", "float8_e5m2", "int32", "int64")


def _in_bytes(spec: TensorSpec) -> TensorSpec:
    """Return the bytes of a tensor, in one more axis if an element has several."""
    size = DTYPES[spec.dtype].itemsize
    if size == 1:
        return spec._replace(dtype="int8")
    return TensorSpec((*spec.shape, size), (*[size * step for step in spec.strides], 1), "int8")


def duplicate_plan(spec: TensorSpec) -> Plan:
    """Return a plan that copies a tensor to other memory with the same strides; runs have no factors."""
    # The bytes of a dense tensor are copied by the driver, which takes every dtype and address.
    return _memcpy(spec) if spec.is_dense else copy_plan(spec, spec)


def scaled_duplicate_plan(spec: TensorSpec) -> Plan:
    """Return the plan of :func:`duplicate_plan` for runs that may have factors."""
    copied = duplicate_plan(spec)
    if not spec.is_dense:
        return copied
    # By cuDNN, and made when needed: not every cuDNN has the call.
    variants = Variants(
        lambda _, alpha, beta: alpha != 1 or beta != 0,
        lambda _: Steps((), [Step(scaled_copy_plan(spec, spec), None, ALPHA, BETA)]),
    )
    return Program(Steps((), [Step(copied, None)]), variants=variants, about="{}", main=copied)


def _on_packed(x: TensorSpec, make: Callable[[TensorSpec], Plan]) -> Plan:
    """Return the plan of ``make`` on a packed copy of x."""
    packed = TensorSpec.packed(x.shape, x.dtype, nearest_layout(x))
    return chained([packed], [Step(StridedCopy(x, packed), (0, 2)), Step(make(packed), (2, 1))])


def _memcpy(spec: TensorSpec) -> FunctionPlan:
    nbytes = program.nbytes_of(spec)

    def run(context: Context, pointers: Sequence[int], *_: float) -> None:
        source, target = pointers
        if target != source:  # a result may be its operand
            memories.copy_device(target, source, nbytes, context.stream)

    return FunctionPlan("cuMemcpyDtoDAsync", run)
