"""Softmax and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Never

from .._bindings.enums import SoftmaxAlgorithm
from .._bindings.enums import SoftmaxMode as NativeMode
from .._hints import UNSET, corrected
from ..array import DeviceArray
from ..context import Context
from ..errors import NotSupportedError
from ..plans.axes import collapse
from ..plans.base import Plan, tensors_of
from ..plans.program import CallPlan
from ..shapes.layers import SoftmaxParams, softmax_problem
from ..shapes.specs import LAYOUTS, LayerProblem, TensorSpec, nearest_layout
from ..typing import ArrayLike, SoftmaxAlgo, SoftmaxMode, StreamLike
from ._call import execute
from ._documented import documented
from ._formulas import Formulas, in_slices, matrix_of, pointwise, total
from ._implementations import Split, along, by_engines, of_problem
from ._operation import Operation


@documented()
def softmax(
    x: ArrayLike,
    *more: Never,
    algo: SoftmaxAlgo = "accurate",
    mode: SoftmaxMode = "channel",
    axis: int | Sequence[int] | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute ``alpha * exp(x) / sum(exp(x)) + beta * out``.

    Parameters
    ----------
    x : device array, shape (N, C, ...), any with ``axis``; float16 | bfloat16 | float32 | float64
    algo : {"accurate", "fast", "log"}
        ``"accurate"`` subtracts the largest element first, so that no exponential overflows; ``"fast"`` does
        not. ``"log"`` computes the logarithm of the softmax.
    mode : {"channel", "instance"}
        Sum over C at each position, or over all elements of each n.
    axis : int or tuple of adjacent ints, optional
        Axes of the sum, which replace those of ``mode``. Negative axes count from the end.
    out : device array, shape and dtype of x, optional
        Destination of the result. It may be x itself.

    Notes
    -----
    ``cudnnSoftmaxForward``, on a view with the axes of the sum as channels. An array whose axes are not
    adjacent in memory is copied first, on the device.

    Examples
    --------
    >>> x = ct.asarray([[0, 0], [1, 1]], "float32")  # (N, C): over the classes
    >>> ct.softmax(x).numpy()
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    >>> ct.softmax(x, axis=0).numpy()[0]  # any axes of any rank
    array([0.2689414, 0.2689414], dtype=float32)
    """
    if more or unknown or x is UNSET:
        return corrected(softmax, locals())
    return execute(_SOFTMAX, ("x",), (x,), (algo, mode, axis), alpha, beta, (out,), stream)[0]


@documented(softmax)
def softmax_backward(
    dy: ArrayLike,
    y: ArrayLike,
    *more: Never,
    algo: SoftmaxAlgo = "accurate",
    mode: SoftmaxMode = "channel",
    axis: int | Sequence[int] | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute the gradient of :func:`softmax` with regard to its input: ``alpha * gradient + beta * out``.

    Parameters
    ----------
    dy : device array, shape and dtype of y
    y : device array, shape (N, C, ...), any with ``axis``; float16 | bfloat16 | float32 | float64
        The unscaled result of :func:`softmax` with the same ``algo``.
    out : device array, shape and dtype of y, optional
        Destination of the result. It may be dy itself.

    Returns
    -------
    DeviceArray, shape and dtype of y; or ``out`` as one

    Notes
    -----
    ``cudnnSoftmaxBackward``: ``y * (dy - sum(dy * y))``, and ``dy - exp(y) * sum(dy)`` for ``"log"``.

    Examples
    --------
    >>> y, dy = ct.asarray([[0.25, 0.25, 0.5]], "float32"), ct.asarray([[1, 0, 0]], "float32")
    >>> ct.softmax_backward(dy, y).numpy()
    array([[ 0.1875, -0.0625, -0.125 ]], dtype=float32)
    """
    if more or unknown or dy is UNSET or y is UNSET:
        return corrected(softmax_backward, locals())
    return execute(_GRADIENT, ("y", "dy"), (y, dy), (algo, mode, axis), alpha, beta, (out,), stream)[0]


LONG = 3072  # elements of a float32 row, above which the mode that sums whole images is faster


def softmax_plan(problem: LayerProblem[SoftmaxParams]) -> CallPlan:
    """Return the plan of ``cudnnSoftmaxForward`` or ``cudnnSoftmaxBackward``."""
    return _plan(problem, _folded(problem), NativeMode.CHANNEL)


def softmax_of_rows(problem: LayerProblem[SoftmaxParams]) -> CallPlan | None:
    """Return a plan of the mode that sums whole images, if it is faster; the sums of rows are the same."""
    # It is faster for gradients, because the other mode sums a row in one thread, and for long rows.
    tensors = _folded(problem)
    first = tensors[0]
    faster = problem.dx is not None or (first.shape[1] > LONG and first.dtype == "float32")
    if first.shape[2:] != (1, 1) or not faster:
        return None
    return _plan(problem, tensors, NativeMode.INSTANCE)


def softmax_by_formulas(problem: LayerProblem[SoftmaxParams], context: Context) -> Plan | None:
    """Return a plan by graphs of rows or columns, for a cuDNN without legacy calls."""
    tensors, axes = list(tensors_of(problem).values()), problem.params.axes
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(tensors[0].shape))
    layout = nearest_layout(tensors[0]) if 3 <= len(shape) <= 5 else "nchw"
    matrix = matrix_of(tensors, [TensorSpec.packed(shape, layout=layout)])
    if matrix is None:
        return None
    dtype, last, algo = tensors[0].dtype, len(tensors) - 1, problem.params.algo
    one = Formulas(matrix, len(tensors), context)
    first, *others = (one.tensor(place, dtype) for place in range(last))
    if others:
        dy, log = others[0], algo == "log"
        result = dy - pointwise("exp", first) * total(dy) if log else first * (dy - total(dy * first))
    else:
        shifted = first if algo == "fast" else first - total(first, "max")
        powers = pointwise("exp", shifted)
        sums = total(powers)
        result = shifted - pointwise("log", sums) if algo == "log" else powers / sums
    one.store(result, last, dtype)
    return in_slices(matrix, one.program(), [(dtype, False)] * len(tensors))


def _plan(problem: LayerProblem[SoftmaxParams], tensors: list[TensorSpec], mode: NativeMode) -> CallPlan:
    first, *others = tensors
    head = (SoftmaxAlgorithm[problem.params.algo.upper()], mode)
    if problem.dx is None:
        return CallPlan("cudnnSoftmaxForward", head, [(0, first)], others[0])
    dy, dx = others
    return CallPlan("cudnnSoftmaxBackward", head, [(0, first), (1, dy)], dx)


def _folded(problem: LayerProblem[SoftmaxParams]) -> list[TensorSpec]:
    """Return the tensors as images whose channels are the axes of the sum."""
    tensors = list(tensors_of(problem).values())
    rank, axes = len(tensors[0].shape), problem.params.axes
    made = collapse(tensors, [range(axes.start), axes, range(axes.stop, rank)])
    if not any(all(layout in spec.layouts for spec in made) for layout in LAYOUTS):
        # cuDNN 9.19 accepts these, and writes outside of them.
        raise NotSupportedError("the operands are not contiguous in one memory order")
    return made


def _rows(problem: LayerProblem[SoftmaxParams]) -> Iterator[Split]:
    rank = len(problem.results[0].shape)
    return along(problem, (axis for axis in range(rank) if axis not in problem.params.axes))


_IMPLEMENTATIONS = (
    of_problem(softmax_of_rows, aligned=True),
    of_problem(softmax_plan),
    by_engines(softmax_by_formulas),
)
_SOFTMAX, _GRADIENT = (
    Operation(name, softmax_problem, _IMPLEMENTATIONS, in_place=True, independent=_rows)
    for name in ("a softmax", "the gradient of a softmax")
)
