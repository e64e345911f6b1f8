"""Reductions over any axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...plans.wrappers import on_float32
from ...shapes.checks import result_slots
from ...shapes.reduction import IndexedReduction, ReduceProblem, indexed_reduce_problem, reduce_problem
from ...typing import ArrayLike, OutLike, ReduceOp, StreamLike
from .._call import execute
from .._documented import documented
from .._fallback import Implementation, by_engines, of_problem
from .._operation import Operation
from .._pieces import Split
from .fast_sum import channel_sum, fast_sum
from .graph import reduction as graph_reduction
from .graph import reduction_by_formulas
from .legacy import reduction as legacy_reduction

_HALF = ("float16", "bfloat16")

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
    DeviceArray, shape :func:`cudnn_ct.shapes.reduction.reduced_shape`, dtype of x; or ``out`` as one

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
