"""Reductions by the legacy calls, and of large contiguous arrays by a graph."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from math import gcd
from typing import NamedTuple

from ..._config import config
from ..._lib import load
from ...certify.certificates import why_varying
from ...context import Context
from ...descriptors import ReduceDescriptor, TensorDescriptor
from ...dtypes import DTYPES
from ...errors import NotSupportedError
from ...graph.operations import Graph
from ...graph.pixels import pixels
from ...plans.axes import coalesce, is_contiguous, pad_axes_to_4d
from ...plans.base import Plan
from ...plans.elementwise import copy_plan, fill_plan, op_tensor_of
from ...plans.program import (
    ALPHA,
    BETA,
    CallPlan,
    FunctionPlan,
    Program,
    Step,
    Steps,
    Variants,
    chained,
    scalar_type,
)
from ...plans.wrappers import scaled_after
from ...shapes.specs import INT_MAX, ReduceSpec, TensorSpec, equivalent_strides, results_of, strides_in_order
from ...shapes.tensor import ReduceProblem
from ...typing import Layout, OpTensorOp, ReduceOp
from .._formulas import Term, first_plan, formula_graph, pointwise, total

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


def legacy_reduction(problem: ReduceProblem, context: Context) -> Plan:
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


def to_channels(shape: tuple[int, ...], dtype: str, layout: Layout, factor: float) -> CallPlan:
    """``cudnnConvolutionBackwardBias``: the sum of each channel."""
    dy, db = TensorSpec.packed(shape, dtype, layout), TensorSpec.packed((1, shape[1], 1, 1), dtype)
    return CallPlan("cudnnConvolutionBackwardBias", (), [(0, dy)], db, factor)


# --- graphs of large contiguous arrays, as reductions of rows or columns of a matrix -----------------------
# The engines are compiled when a plan is built, which takes 0.15 to 0.5 s. The legacy call takes ten times as
# long for rows, and 200 times as long for columns.

MIN_ELEMENTS = 2**20  # with fewer elements, legacy calls take tens of microseconds, except for long sums
LONG = 2**15  # terms; above this, a single thread block is slower than the alternatives
LONG_NORM = 2**13  # terms of other reductions, each of which cudnnReduceTensor computes one after another
FEW = 128  # rows; with fewer, one thread block per row does not fill a GPU
PIECES, PIECE = 1024, 256  # max number of pieces per row, and min elements per piece


class GraphReduction(NamedTuple):
    """Graph form of a reduction: the formula of a matrix, and what follows it."""

    formula: Callable[[Term], Term]
    again: ReduceOp = "add"  # combines partial results
    root: bool = False  # whether a square root follows
    only: str | None = None  # the one axis of a matrix that may be kept; None allows all


# The extremes skip NaN, so NaN is propagated separately. Maxima over columns start from the lowest number.
FORMS = {
    "add": GraphReduction(total),
    "avg": GraphReduction(total),
    "norm1": GraphReduction(lambda x: total(pointwise("abs", x))),
    "norm2": GraphReduction(lambda x: total(x * x), root=True),
    "amax": GraphReduction(lambda x: total(x, "amax"), again="max"),
    "max": GraphReduction(lambda x: total(x, "max"), again="max", only="rows"),
    "min": GraphReduction(lambda x: total(x, "min"), again="min", only="rows"),
}


class MatrixView(NamedTuple):
    """A contiguous matrix, its axis "rows", "columns" or "", and shape and axis of a second pass, if any."""

    rows: int
    columns: int
    kept: str
    again: tuple[tuple[int, int], int] | None = None


# Indices of the heuristics' configurations in the order to try; a bad order costs up to a factor of four.
ORDER = {"rows": (0, 1, 2), "columns": (2, 1, 0), "": (1, 2, 0)}


def graph_reduction(problem: ReduceProblem, context: Context) -> Plan | None:
    """Return a plan for a large contiguous array that is a :class:`MatrixView`, or None."""
    # Without C functions, which apply factors, roots and conversions, formulas take its place.
    x, y, form = problem.x, problem.kept, FORMS.get(problem.op)
    if load().lacks("ops") or form is None or problem.indices or DTYPES[x.dtype].accumulate != "float32":
        return None
    if not (_is_large(problem) and x.size <= INT_MAX and config.allow_runtime_compilation):
        return None
    places = sorted(range(len(x.shape)), key=lambda axis: -x.strides[axis])
    ordered = TensorSpec(y.shape, strides_in_order(y.shape, places), "float32")  # in the memory order of x
    matrix = _matrix(x, ordered)
    if matrix is None or form.only not in (None, matrix.kept):
        return None
    joined = nan_propagating if problem.propagate_nan else nan_ignoring  # of the maximum and the minimum
    if joined is nan_ignoring and problem.op in NAN_GUARDS and matrix.kept != FORMS["max"].only:
        return None

    def made(one: ReduceProblem) -> Plan:
        return _plan(one, matrix, ordered, context)

    if problem.deterministic:
        # Sums are compared before the roots, roundings and further sums that hide most differences: of four
        # norms of 2**18 elements, one in a hundred had other bits.
        graph = reduction_graph(form, x.dtype, matrix)
        terms, found = (tensor.spec for tensor in graph.operands)
        sums = ReduceProblem(terms, found, None, (), problem.op, True)
        plan = first_plan(graph, context, ORDER[matrix.kept])
        varying = why_varying(sums, "a graph of sums", plan, context)
        if varying:
            raise NotSupportedError(varying)
    if problem.op in NAN_GUARDS:
        return joined(problem, ordered, lambda one, _: made(one), context)
    return made(problem)


def _is_large(problem: ReduceProblem) -> bool:
    """Return whether a graph saves more time than its compilation takes, in some hundreds of calls."""
    # An H200 adds two columns of 65,536 float16 numbers in 7 us by a graph, in 85 by
    # cudnnConvolutionBackwardBias, and in 3,000 by cudnnReduceTensor, which adds one column in 6. Norms and
    # extremes have no other call.
    long = LONG if problem.op in ("add", "avg") else LONG_NORM
    return problem.x.size >= MIN_ELEMENTS or (problem.kept.size > 1 and problem.terms > long)


def _plan(problem: ReduceProblem, matrix: MatrixView, ordered: TensorSpec, context: Context) -> Plan:
    """Return a plan for one reduction of a matrix and for the scaling of its results."""
    x, y, form = problem.x, problem.kept, FORMS[problem.op]
    plan = _of_matrix(form, x.dtype, matrix, context)
    factor = 1 / problem.terms if problem.op == "avg" else 1.0
    if not form.root and y.dtype == "float32" and equivalent_strides(y.shape, y.strides, ordered.strides):
        return scaled_after(plan, 1, TensorSpec.packed((y.size,), "float32"), factor)
    # The maximum of x and x scales and converts.
    after = _root(ordered, y) if form.root else op_tensor_of("max", ordered, y, alpha1=factor, alpha2=factor)
    return chained([ordered], [Step(plan, (0, 2)), Step(after, (2, 1))])


def _root(x: TensorSpec, y: TensorSpec) -> Program:
    """Return a plan of square roots, converted to the dtype of y: one call unless alpha multiplies them."""
    direct = op_tensor_of("sqrt", x, y)
    # Alpha would be below the root.
    steps = [Step(op_tensor_of("sqrt", x, x), (0, 0)), Step(op_tensor_of("max", x, y), (0, 1), ALPHA, BETA)]
    variants = Variants(lambda _, alpha, beta: alpha != 1, lambda _: Steps((), steps))  # noqa: ARG005
    return Program(Steps((), [Step(direct, None, beta=BETA)]), variants=variants, about="{}", main=direct)


def _of_matrix(form: GraphReduction, dtype: str, matrix: MatrixView, context: Context) -> Plan:
    """Return a plan that writes contiguous float32 results, with a second pass if the view needs one."""
    plan = first_plan(reduction_graph(form, dtype, matrix), context, ORDER[matrix.kept])
    if matrix.again is None:
        return plan
    shape, axis = matrix.again
    parts = TensorSpec.packed(shape, "float32")
    return chained([parts], [Step(plan, (0, 2)), Step(_joined(form.again, parts, axis, context), (2, 1))])


def _joined(op: ReduceOp, parts: TensorSpec, axis: int, context: Context) -> Plan:
    """Return a plan that reduces one axis of a matrix of partial results."""
    terms, results = parts.shape[axis], parts.shape[1 - axis]
    if op == "add":
        return to_channels((1, results, terms, 1), parts.dtype, "nchw" if axis else "nhwc", 1.0)
    whole = TensorSpec.packed(tuple(1 if i == axis else n for i, n in enumerate(parts.shape)), parts.dtype)
    return reduce_plan(ReduceProblem(parts, whole, None, (axis,), op, True), context)


def reduction_graph(form: GraphReduction, dtype: str, matrix: MatrixView) -> Graph:
    """Return the graph that reduces rows, columns or all elements of a matrix to float32."""
    rows, columns, kept, _ = matrix
    y = pixels(rows if kept == "rows" else 1, columns if kept == "columns" else 1, "float32")
    return formula_graph(form.formula, pixels(rows, columns, dtype), y)


def _matrix(x: TensorSpec, y: TensorSpec) -> MatrixView | None:
    """Return the matrix view of x, if its axes are kept or reduced in an order that has one."""
    axes = coalesce([x, y])
    if not is_contiguous(axes, 0):
        return None
    lengths = [axis.lengths[0] for axis in axes]
    kept = tuple(axis.lengths[1] > 1 for axis in axes)
    if kept == (False,):
        columns = gcd(x.size, PIECE * 16)
        return MatrixView(x.size // columns, columns, "") if columns >= PIECE else None
    if kept == (True, False):
        return _rows(*lengths)
    if kept == (False, True):
        return MatrixView(lengths[0], lengths[1], "columns")
    if kept == (False, True, False):
        parts, rows, columns = lengths
        return MatrixView(parts * rows, columns, "rows", ((parts, rows), 0))
    return None


def _rows(rows: int, columns: int) -> MatrixView | None:
    """Return the view that keeps rows; few long rows are split, because some engines fail with them."""
    if rows >= FEW:
        return MatrixView(rows, columns, "rows")
    pieces = gcd(columns, PIECES)
    while pieces > 1 and columns // pieces < PIECE:
        pieces //= 2
    if rows * pieces < FEW:
        return None
    return MatrixView(rows * pieces, columns // pieces, "rows", ((rows, pieces), 1))
