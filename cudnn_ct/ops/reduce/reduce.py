"""Reductions over any axes; those of contiguous arrays by calls with another purpose, or by formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import Literal, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...certify.certificates import why_varying
from ...context import Context
from ...descriptors import PoolingDescriptor
from ...errors import NotSupportedError
from ...plans.axes import coalesce, is_contiguous
from ...plans.base import Plan
from ...plans.program import CallPlan, Program, Step, chained
from ...plans.wrappers import on_float32
from ...shapes.specs import INT_MAX, PoolingSpec, TensorSpec, equivalent_strides
from ...shapes.tensor import IndexedReduction, ReduceProblem, indexed_reduce_problem, reduce_problem
from ...typing import ArrayLike, Layout, OutLike, ReduceOp, StreamLike
from .._call import execute, execute_as
from .._documented import documented
from .._formulas import DTYPES_OF_ENGINES, Formulas, Matrix, Term, in_slices, matrix_of, pointwise, total
from .._implementations import IGNORES_NAN, Implementation, Split, by_engines, of_problem
from .._operation import Operation
from .plans import LONG, graph_reduction, legacy_reduction, to_channels

# Thresholds from measurements on GPUs.
MANY = 2**14  # rows; above this, pooling is faster for rows of up to SHORT elements
SHORT = 64  # elements per row
FEW = 64  # images; cudnnConvolutionBackwardBias reads the images of a channel one after another
WARP = 64  # elements; adjacent elements of this number are read fast
PART = (8, 64)  # min and max number of elements of a long column that are summed in a first pass
LONGEST = {"float16": 256, "bfloat16": 256, "float32": 128, "float64": 128}  # column length of one pooling

_HALF = ("float16", "bfloat16")  # two passes would round in between


def fast_sum(problem: ReduceProblem) -> Plan | None:
    """Return a plan for a sum that is faster than a graph at any size, or None."""
    # These are sums over rows, and sums over images per channel except for half precision.
    kept, lengths = _matrices(problem)
    if kept == (True, False):
        faster = lengths[1] <= (SHORT if problem.x.dtype == "bfloat16" else 2 * LONG)
    else:
        faster = kept == (False, True, False) and problem.x.dtype not in _HALF
    return channel_sum(problem) if faster else None


def channel_sum(problem: ReduceProblem) -> Plan | None:
    """Return a plan for the sum or mean of an array, of rows or columns, or per channel, or None."""
    kept, lengths = _matrices(problem)
    dtype, factor = problem.x.dtype, 1 / problem.terms if problem.op == "avg" else 1.0
    match kept, lengths:
        case (True, False), (rows, length):
            return _rows(rows, length, dtype, factor)
        case (True, False, True), (images, length, channels):
            return _columns(images, length, channels, dtype, factor)
        case _ if dtype == "bfloat16":
            return None
        case (False,), (length,):
            return to_channels((1, 1, length, 1), dtype, "nchw", factor) if length <= LONG else None
        case (False, True), (length, channels):
            return to_channels((1, channels, length, 1), dtype, "nhwc", factor)
        case (False, True, False), (images, channels, length):
            return _channels(images, channels, length, dtype, factor)
    return None


# --- one call ----------------------------------------------------------------------------------------------


def _pooled(shape: tuple[int, ...], dtype: str, layout: Layout, factor: float) -> CallPlan:
    """``cudnnPoolingForward``: the sum of each channel of each image."""
    sides = shape[2:]
    window = tuple(1 << (side - 1).bit_length() for side in sides)
    padding = tuple((whole - side + 1) // 2 for whole, side in zip(window, sides, strict=True))
    image = TensorSpec.packed(shape, dtype, layout)
    result = TensorSpec.packed((*shape[:2], 1, 1), dtype, layout)
    head = (PoolingDescriptor.cached(PoolingSpec(window, padding, window, "average_count_include_padding")),)
    return CallPlan("cudnnPoolingForward", head, [(0, image)], result, factor * prod(window))


# --- rows, channels and columns ---------------------------------------------------------------------------


def _rows(rows: int, length: int, dtype: str, factor: float) -> Plan:
    if dtype != "bfloat16" and (length > SHORT or rows <= MANY):
        return to_channels((1, rows, length, 1), dtype, "nchw", factor)
    channels = gcd(rows, WARP)
    if length <= SHORT:
        return _pooled((rows // channels, channels, length, 1), dtype, "nchw", factor)
    sides = (1, length) if length % WARP else (length // WARP, WARP)
    return _pooled((rows // channels, channels, *sides), dtype, "nchw", factor)


def _channels(images: int, channels: int, length: int, dtype: str, factor: float) -> Plan | None:
    """Sum per channel in one call, or each image first and then over images."""
    if images <= FEW and images * length <= LONG:
        return to_channels((images, channels, length, 1), dtype, "nchw", factor)
    if dtype in _HALF:
        return None
    first = _rows(images * channels, length, dtype, 1.0)
    second = to_channels((1, channels, images, 1), dtype, "nhwc", factor)
    return _two_pass(first, images * channels, second, dtype)


def _columns(images: int, length: int, channels: int, dtype: str, factor: float) -> Plan | None:
    """Sum columns; long ones in parts, except for half precision, which would round the partial sums."""
    if length <= LONGEST[dtype]:
        return _pooled((images, channels, length, 1), dtype, "nhwc", factor)
    shortest, longest = PART
    part = next((n for n in range(longest, shortest - 1, -1) if length % n == 0), None)
    if part is None or dtype in _HALF:
        return None
    parts = length // part
    second = _columns(images, parts, channels, dtype, factor)
    if second is None:
        return None
    first = _pooled((images * parts, channels, part, 1), dtype, "nhwc", 1.0)
    return _two_pass(first, images * parts * channels, second, dtype)


def _two_pass(first: Plan, count: int, second: Plan, dtype: str) -> Program:
    return chained([TensorSpec.packed((count,), dtype)], [Step(first, (0, 2)), Step(second, (2, 1))])


# --- array as matrix ---------------------------------------------------------------------------------------


def _matrices(problem: ReduceProblem) -> tuple[tuple[bool, ...], list[int]]:
    """Return which coalesced axes are kept, in memory order, and their lengths; empty if not contiguous."""
    x, y = problem.x, problem.kept
    if problem.op not in ("add", "avg") or not 0 < x.size <= INT_MAX:
        return (), []
    axes = coalesce([x, y])
    if not (is_contiguous(axes, 0) and is_contiguous(axes, 1)):
        return (), []
    return tuple(axis.lengths[1] > 1 for axis in axes), [axis.lengths[0] for axis in axes]


# --- reductions by graphs alone, for a cuDNN that has no legacy calls --------------------------------------

MAX_POSITIONS = 2**24  # float32 has all whole numbers below
_SUMS = ("add", "avg", "norm1", "norm2")  # engines have no products
_EXTREMES = ("max", "min", "amax")

# The reductions of the inner axes and of the outer ones, if they differ from that of all.
_PASSES: dict[str, tuple[ReduceOp, ReduceOp]] = {"norm1": ("norm1", "add"), "amax": ("amax", "max")}


def reduction_by_formulas(problem: ReduceProblem, context: Context) -> Plan | None:
    """Return a plan for contiguous arrays whose reduced axes are rows or columns of matrices, or both."""
    x, y, indices = problem.x, problem.kept, problem.indices
    most = MAX_POSITIONS if indices else INT_MAX
    if not 1 <= problem.terms <= most or problem.op not in (*_SUMS, *_EXTREMES):
        return None
    if problem.op in _EXTREMES and not problem.propagate_nan:
        # If all elements are NaN, engines return the value that their search begins with.
        raise NotSupportedError(IGNORES_NAN)
    of_run = [(x.dtype, False), (y.dtype, True)]
    if indices:
        steps = [x.strides[axis] for axis in problem.axes if x.shape[axis] > 1]
        if steps != sorted(steps, reverse=True):
            return None  # positions along the reduced axes are not those in memory
        if not equivalent_strides(problem.y.shape, indices.strides, problem.y.strides):
            return None
        of_run.append(("int32", True))
    matrix = matrix_of([x], [y])
    if matrix is None:
        return None if indices else _in_two_passes(problem, context)
    one = Formulas(matrix, len(of_run), context)
    given = one.tensor(0, x.dtype)
    one.store(_reduced(given, problem.op, problem.terms), 1, y.dtype)
    if indices:
        one.store(_position(given, problem.op, matrix), 2, "int32")
    plan = in_slices(matrix, one.program(), of_run)
    varying = why_varying(problem, "graphs", plan, context) if problem.deterministic else ""
    if varying:
        raise NotSupportedError(varying)
    return plan


def _reduced(x: Term, op: ReduceOp, terms: int) -> Term:
    if op in _EXTREMES:
        # They skip NaN. The sum of magnitudes is NaN only if an element is, and its tanh is finite.
        return total(x, op) + pointwise("tanh_fwd", total(pointwise("abs", x))) * 0.0
    if op == "norm2":
        return pointwise("sqrt", total(x * x))
    sums = total(pointwise("abs", x) if op == "norm1" else x)
    return sums * (1 / terms) if op == "avg" else sums


def _position(x: Term, op: ReduceOp, matrix: Matrix) -> Term:
    """Return the first position of an extreme, or of a NaN if there are any."""
    row, column = (pointwise("gen_index", x, axis=axis) for axis in (0, 1))
    place = {"rows": column, "columns": row}.get(matrix.kept, row * float(matrix.columns) + column)
    unequal = pointwise("cmp_neq", x, x)
    only_numbers = pointwise("cmp_eq", total(unequal), 0.0)
    found = pointwise("cmp_eq", x, total(x, op)) * only_numbers + unequal
    first = total(place - found * float(MAX_POSITIONS), "min")
    return pointwise("identity", first + float(MAX_POSITIONS))


def _in_two_passes(problem: ReduceProblem, context: Context) -> Plan | None:
    """Return a plan for axes that are reduced on both sides of those that are kept: the inner ones first."""
    axes = coalesce([problem.x, problem.kept])
    kept = [axis.lengths[1] > 1 for axis in axes]
    if kept != [False, True, False] or problem.x.dtype not in DTYPES_OF_ENGINES:
        return None
    lengths, strides = zip(*((axis.lengths[0], axis.strides[0]) for axis in axes), strict=True)
    parts = TensorSpec.packed((*lengths[:2], 1))
    sums = TensorSpec((1, lengths[1], 1), (lengths[1], axes[1].strides[1], 1), problem.y.dtype)
    first, again = _PASSES.get(problem.op, (problem.op, problem.op))
    whole = TensorSpec(lengths, strides, problem.x.dtype)
    inner = reduction_by_formulas(problem._replace(x=whole, y=parts, axes=(2,), op=first), context)
    outer = reduction_by_formulas(problem._replace(x=parts, y=sums, axes=(0,), op=again), context)
    if inner is None or outer is None:
        return None
    return chained([parts], [Step(inner, (0, 2)), Step(outer, (2, 1))])


# --- the operation -----------------------------------------------------------------------------------------

IMPLEMENTATIONS = (
    of_problem(fast_sum, aligned=True),
    Implementation(graph_reduction, aligned=True),
    of_problem(channel_sum, aligned=True),
    Implementation(on_float32(lambda problem, _: channel_sum(problem), *_HALF)),
    Implementation(legacy_reduction),
    Implementation(on_float32(legacy_reduction, *_HALF)),
    by_engines(reduction_by_formulas),
)


def kept_axes(problem: ReduceProblem) -> Iterator[Split]:
    """Return the splits along the axes that are not reduced; the result may lack the other axes."""
    kept = [axis for axis in range(len(problem.x.shape)) if axis not in problem.axes]
    for place, axis in enumerate(kept):
        of_result = axis if len(problem.y.shape) == len(problem.x.shape) else place
        yield {"x": axis, "y": of_result} | ({"indices": of_result} if problem.indices else {})


_REDUCE = Operation("a reduction", reduce_problem, IMPLEMENTATIONS, independent=kept_axes)
_INDEXED = Operation(
    "a reduction",
    indexed_reduce_problem,
    IMPLEMENTATIONS,
    independent=kept_axes,
    written=("out", "indices of out"),
)


@documented()
def reduce(
    x: ArrayLike,
    *more: Never,
    op: ReduceOp = "add",
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    propagate_nan: bool = True,
    deterministic: bool | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute ``alpha * (op over some axes of x) + beta * out``.

    Norm1 is the sum of absolute values, norm2 the root of the sum of squares, amax the largest absolute
    value, mul_no_zeros the product of all elements except zeros, which is 1 if all are 0.

    Parameters
    ----------
    x : device array, at most 8 axes of any strides, float16 | bfloat16 | float32 | float64
        Half precision is computed in float32.
    op : {"add", "mul", "min", "max", "amax", "average", "norm1", "norm2", "mul_no_zeros"}
    axis : int or tuple of int, optional
        Reduced axes, counted from the end if negative; by default all. Over axes of length 1, and over none,
        the result is x itself, absolute for amax, norm1 and norm2, with 1 for 0 for mul_no_zeros. Over an
        axis of length 0, sums are 0 and products 1.
    keepdims : bool
        Whether the reduced axes stay, with length 1.
    propagate_nan : bool
        Whether min, max and amax return NaN if an element is NaN, or only if all are. The other operations
        always propagate NaN.
    deterministic : bool, optional
        Reject implementations whose bits differ from run to run; by default ``ct.config.deterministic``.

    Returns
    -------
    DeviceArray, shape :func:`cudnn_ct.shapes.tensor.reduced_shape`, dtype of x; or ``out`` as one

    Notes
    -----
    ``cudnnReduceTensor``; ``cudnnTransformTensor``, or ``cudnnOpTensor`` for absolute values, if nothing is
    reduced. Sums and means of contiguous arrays are ``cudnnConvolutionBackwardBias`` or
    ``cudnnPoolingForward``, which are faster; docs/layer-calls.md lists the implementations for large arrays.

    Sums of large arrays by a graph may differ in their last bits from run to run. With ``deterministic``, 20
    runs on random numbers are compared when a shape is new, and a legacy call takes the place of a graph
    whose bits differ; ``cudnnReduceTensor`` is deterministic.

    Examples
    --------
    >>> x = ct.asarray([[1, -4, 3], [2, 0, -2]], "float32")
    >>> ct.reduce(x, op="norm1", axis=1).numpy()
    array([8., 4.], dtype=float32)
    """
    if more or unknown or x is UNSET:
        return corrected(reduce, locals())
    params = (op, axis, keepdims, propagate_nan, deterministic)
    return execute(_REDUCE, ("x",), (x,), params, alpha, beta, (out,), stream)[0]


@documented(reduce)
def reduce_with_indices(
    x: ArrayLike,
    *more: Never,
    op: Literal["min", "max"],
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> IndexedReduction[DeviceArray]:
    """Compute :func:`reduce` for the smallest or largest elements, and return their positions as well.

    Parameters
    ----------
    op : {"min", "max"}
    axis : int or tuple of int, optional
        Reduced axes, counted from the end if negative; by default all. Over axes of length 1, and over none,
        the elements are those of x, and their positions 0.

    Returns
    -------
    IndexedReduction
        ``y``, DeviceArray of the dtype of x; ``indices``, DeviceArray of int32 and of the same shape:
        positions in C order of the reduced axes. New arrays are in C order, as cuDNN writes them, for x of
        any layout.

    Notes
    -----
    ``cudnnReduceTensor``. The elements are the same bits from run to run. If several of them are equal, the
    position of any may be returned.

    Examples
    --------
    >>> x = ct.asarray([[1, -4, 3], [2, 0, -2]], "float32")
    >>> smallest, indices = ct.reduce_with_indices(x, op="min", axis=-1)
    >>> smallest.numpy(), indices.numpy()
    (array([-4., -2.], dtype=float32), array([1, 2], dtype=int32))
    """
    if more or unknown or x is UNSET or op is UNSET:
        return corrected(reduce_with_indices, locals())
    params = (op, axis, keepdims, propagate_nan)
    return execute_as(IndexedReduction, _INDEXED, {"x": x}, params, out, stream, alpha=alpha, beta=beta)
