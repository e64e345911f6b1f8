"""Sums and means of arrays without gaps, by calls that are for something else: ten times as quick.

The gradient of a bias sums images to their channels; rows, columns and whole arrays are such images too. It
has no bfloat16, and a block of threads for each channel is too much for many short rows. Those, and the
columns of several matrices, are poolings with a window over all that is summed. cuDNN's average divides by
the size of the window: here a power of 2, which zeros around the image fill up, so that sums of integers
stay exact.
"""

from __future__ import annotations

from math import gcd, prod

from ...descriptors import PoolingDescriptor
from ...plans.base import Plan
from ...plans.call import CallPlan
from ...plans.chain import ChainPlan, Step
from ...plans.tiling import coalesce, is_contiguous
from ...shapes.reduction import ReduceProblem
from ...shapes.specs import INT_MAX, PoolingSpec, TensorSpec

__all__ = ["channel_sum", "fast_sum"]

MANY = 2**14  # rows, and
SHORT = 64  # the length of one, up to which pooling is quicker than a block of threads for each row
LONG = 2**15  # elements, from which a block of threads alone takes longer than other ways
FEW = 64  # images, whose sums to their channels take a call one after the other
WARP = 64  # elements that are quickly read side by side
PART = (8, 64)  # how many elements of a long column are joined first, at least and at most
LONGEST = {"float16": 256, "bfloat16": 256, "float32": 128, "float64": 128}  # columns that one pooling joins

_HALF = ("float16", "bfloat16")  # which calls one after the other would round in between


def fast_sum(problem: ReduceProblem) -> Plan | None:
    """A sum for which a graph takes longer, however large: of rows, or of images but of half types."""
    kept, lengths = _matrices(problem)
    if kept == (True, False):
        quick = lengths[1] <= (SHORT if problem.x.dtype == "bfloat16" else 2 * LONG)
    else:
        quick = kept == (False, True, False) and problem.x.dtype not in _HALF
    return channel_sum(problem) if quick else None


def channel_sum(problem: ReduceProblem) -> Plan | None:
    """A sum or mean of an array, of rows, columns, images to their channels, columns of several matrices."""
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


def _to_channels(shape: tuple[int, ...], dtype: str, layout: str, factor: float) -> CallPlan:
    """``cudnnConvolutionBackwardBias`` for the sum of images to their channels."""
    dy, db = TensorSpec.packed(shape, dtype, layout), TensorSpec.packed((1, shape[1], 1, 1), dtype)
    return CallPlan("cudnnConvolutionBackwardBias", (), [(0, dy)], db, factor)


def _pooled(shape: tuple[int, ...], dtype: str, layout: str, factor: float) -> CallPlan:
    """``cudnnPoolingForward`` for the sum of each channel of each image."""
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
    """In one call, which takes the images in turn, or each image first and then all of them."""
    if images <= FEW and images * length <= LONG:
        return _to_channels((images, channels, length, 1), dtype, "nchw", factor)
    if dtype in _HALF:
        return None
    first = _rows(images * channels, length, dtype, 1.0)
    again = _to_channels((1, channels, images, 1), dtype, "nhwc", factor)
    return _in_two(first, images * channels, again, dtype)


def _columns(images: int, length: int, channels: int, dtype: str, factor: float) -> Plan | None:
    """Channels last: in parts where they are long, which half types would round."""
    if length <= LONGEST[dtype]:
        return _pooled((images, channels, length, 1), dtype, "nhwc", factor)
    least, most = PART
    part = next((n for n in range(most, least - 1, -1) if length % n == 0), None)
    if part is None or dtype in _HALF:
        return None
    parts = length // part
    again = _columns(images, parts, channels, dtype, factor)
    if again is None:
        return None
    first = _pooled((images * parts, channels, part, 1), dtype, "nhwc", 1.0)
    return _in_two(first, images * parts * channels, again, dtype)


def _in_two(first: Plan, count: int, again: Plan, dtype: str) -> ChainPlan:
    """Sums of ``count`` parts, and the sums of those."""
    return ChainPlan([TensorSpec.packed((count,), dtype)], [Step(first, (0, 2)), Step(again, (2, 1))])


# --- what an array is --------------------------------------------------------------------------------------


def _matrices(problem: ReduceProblem) -> tuple[tuple[bool, ...], list[int]]:
    """Which axes are kept, and their lengths, joined and in the order of memory; nothing of other arrays."""
    x, y = problem.x, problem.kept
    if problem.op not in ("add", "avg") or x.dtype not in LONGEST or not 0 < x.size <= INT_MAX:
        return (), []
    axes = coalesce([x, y])
    if not (is_contiguous(axes, 0) and is_contiguous(axes, 1)):
        return (), []
    return tuple(axis.lengths[1] > 1 for axis in axes), [axis.lengths[0] for axis in axes]
