"""Sums and means of contiguous arrays by calls with another purpose, which are ten times as fast.

``cudnnConvolutionBackwardBias`` sums over images and pixels per channel; rows, columns and whole arrays can
be viewed as such images. It lacks bfloat16, and its thread block per channel is wasted on many short rows.
These cases, and the columns of a batch of matrices, are poolings with a window over all summed elements.
cuDNN's average divides by the window size. The window is padded to a power of 2, so that sums of integers
stay exact.
"""

from __future__ import annotations

from math import gcd, prod

from ...descriptors import PoolingDescriptor
from ...plans.axes import coalesce, is_contiguous
from ...plans.base import Plan
from ...plans.call import CallPlan
from ...plans.program import Program, Step, chained
from ...shapes.reduction import ReduceProblem
from ...shapes.specs import INT_MAX, PoolingSpec, TensorSpec
from ...typing import Layout

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
    """Return a plan for a sum that is faster than a graph at any size, or None.

    These are sums over rows, and sums over images per channel except for half precision.
    """
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
