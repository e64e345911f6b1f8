"""Reductions over any axes, and sums and means of contiguous arrays by calls with another purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import Literal, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...descriptors import PoolingDescriptor
from ...plans.axes import coalesce, is_contiguous
from ...plans.base import Plan
from ...plans.program import CallPlan, Program, Step, chained
from ...plans.wrappers import on_float32
from ...shapes.checks import result_slots
from ...shapes.specs import INT_MAX, PoolingSpec, TensorSpec
from ...shapes.tensor import IndexedReduction, ReduceProblem, indexed_reduce_problem, reduce_problem
from ...typing import ArrayLike, Layout, OutLike, ReduceOp, StreamLike
from .._call import execute
from .._documented import documented
from .._fallback import Implementation, by_engines, of_problem
from .._operation import Operation
from .._pieces import Split
from .graph import reduction as graph_reduction
from .graph import reduction_by_formulas
from .legacy import reduction as legacy_reduction

# Thresholds from measurements on GPUs.
MANY = 2**14  # rows; above this, pooling is faster for rows of up to SHORT elements
SHORT = 64  # elements per row
LONG = 2**15  # elements; above this, a single thread block is slower than the alternatives
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
            return _to_channels((1, 1, length, 1), dtype, "nchw", factor) if length <= LONG else None
        case (False, True), (length, channels):
            return _to_channels((1, channels, length, 1), dtype, "nhwc", factor)
        case (False, True, False), (images, channels, length):
            return _channels(images, channels, length, dtype, factor)
    return None


# --- one call ----------------------------------------------------------------------------------------------


def _to_channels(shape: tuple[int, ...], dtype: str, layout: Layout, factor: float) -> CallPlan:
    """``cudnnConvolutionBackwardBias``: per-channel sums."""
    dy, db = TensorSpec.packed(shape, dtype, layout), TensorSpec.packed((1, shape[1], 1, 1), dtype)
    return CallPlan("cudnnConvolutionBackwardBias", (), [(0, dy)], db, factor)


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
        return _to_channels((1, rows, length, 1), dtype, "nchw", factor)
    channels = gcd(rows, WARP)
    if length <= SHORT:
        return _pooled((rows // channels, channels, length, 1), dtype, "nchw", factor)
    sides = (1, length) if length % WARP else (length // WARP, WARP)
    return _pooled((rows // channels, channels, *sides), dtype, "nchw", factor)


def _channels(images: int, channels: int, length: int, dtype: str, factor: float) -> Plan | None:
    """Sum per channel in one call, or each image first and then over images."""
    if images <= FEW and images * length <= LONG:
        return _to_channels((images, channels, length, 1), dtype, "nchw", factor)
    if dtype in _HALF:
        return None
    first = _rows(images * channels, length, dtype, 1.0)
    second = _to_channels((1, channels, images, 1), dtype, "nhwc", factor)
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
    """Chain a plan with ``count`` partial sums and the plan that sums them."""
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
    params, outs = (op, axis, keepdims, propagate_nan), result_slots(out, IndexedReduction._fields)
    return IndexedReduction(*execute(_INDEXED, ("x",), (x,), params, alpha, beta, outs, stream))
