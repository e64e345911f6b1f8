"""Local response normalisation and its gradient."""

from __future__ import annotations

from functools import partial
from typing import Never

from .._bindings.enums import LRNMode
from .._hints import UNSET, corrected
from ..array import DeviceArray
from ..context import Context
from ..descriptors import LRNDescriptor
from ..graph.operations import Graph, Tensor, node
from ..plans.axes import images
from ..plans.base import Plan, tensors_of
from ..plans.program import CallPlan
from ..shapes.layers import lrn_problem, lrn_window
from ..shapes.specs import LayerProblem, LRNSpec, TensorSpec
from ..typing import ArrayLike, StreamLike
from ._call import execute
from ._documented import documented
from ._formulas import Formulas, Matrix, first_plan, matrix_of, pointwise
from ._implementations import along, by_engines, of_problem, with_bfloat16
from ._operation import Operation


@documented()
def lrn(
    x: ArrayLike,
    *more: Never,
    n: int = 5,
    lrn_alpha: float = 1e-4,
    lrn_beta: float = 0.75,
    k: float = 2,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Divide each element by a power of the squares around it in other channels.

    The sum is over the ``n`` channels around c, ``(n - 1) // 2`` of them before it, without channels that do
    not exist ::

        y[c] = alpha * x[c] / (k + lrn_alpha / n * sum(x[i] ** 2)) ** lrn_beta + beta * out[c]

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
        1 to 3 spatial axes.
    n : int, 1 to 16
    lrn_alpha : float
    lrn_beta : float, at least 0.01
    k : float, at least 1e-5

    Notes
    -----
    ``cudnnLRNCrossChannelForward``. The formula is that of Krizhevsky et al., ImageNet Classification with
    Deep Convolutional Neural Networks, 2012, except that lrn_alpha is divided by n.

    Examples
    --------
    >>> x = ct.asarray([[[1], [2], [3]]], "float32")
    >>> ct.lrn(x, n=1, lrn_alpha=1, lrn_beta=1, k=1).numpy().ravel()
    array([0.5, 0.4, 0.3], dtype=float32)
    """
    if more or unknown or x is UNSET:
        return corrected(lrn, locals())
    return execute(_LRN, ("x",), (x,), (n, lrn_alpha, lrn_beta, k), alpha, beta, (out,), stream)[0]


@documented(lrn)
def lrn_backward(
    dy: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *more: Never,
    n: int = 5,
    lrn_alpha: float = 1e-4,
    lrn_beta: float = 0.75,
    k: float = 2,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute the gradient of :func:`lrn` with regard to x: ``alpha * gradient + beta * out``.

    Parameters
    ----------
    y : device array, shape and dtype of x
        The unscaled result of :func:`lrn` for x.

    Notes
    -----
    ``cudnnLRNCrossChannelBackward``.

    Examples
    --------
    >>> x, dy = ct.asarray([[[2]]], "float32"), ct.asarray([[[25]]], "float32")
    >>> factors = {"n": 1, "lrn_alpha": 1, "lrn_beta": 1, "k": 1}
    >>> ct.lrn_backward(dy, x, ct.lrn(x, **factors), **factors).numpy()
    array([[[-3.]]], dtype=float32)
    """
    if more or unknown or dy is UNSET or x is UNSET or y is UNSET:
        return corrected(lrn_backward, locals())
    arguments = (n, lrn_alpha, lrn_beta, k)
    return execute(_GRADIENT, ("x", "y", "dy"), (x, y, dy), arguments, alpha, beta, (out,), stream)[0]


def _plan(problem: LayerProblem[LRNSpec]) -> CallPlan:
    head = (LRNDescriptor.cached(problem.params), LRNMode.CROSS_CHANNEL_DIM1)
    x, y, *gradients = images(*tensors_of(problem).values())
    if not gradients:
        return CallPlan("cudnnLRNCrossChannelForward", head, [(0, x)], y)
    dy, dx = gradients
    return CallPlan("cudnnLRNCrossChannelBackward", head, [(1, y), (2, dy), (0, x)], dx)


def lrn_by_graphs(problem: LayerProblem[LRNSpec], context: Context) -> Plan | None:
    """Return a plan by graphs of pixels with channels last, for a cuDNN without legacy calls."""
    # A sum over channels is an average pooling of an image whose rows are the pixels.
    tensors = list(tensors_of(problem).values())
    shape = tuple(n if axis == 1 else 1 for axis, n in enumerate(tensors[0].shape))
    matrix = matrix_of(tensors, [TensorSpec.packed(shape, layout="nhwc")])
    if matrix and tensors[0].shape[1] == 1:
        matrix = Matrix(tensors[0].size, 1, "columns")
    if matrix is None or matrix.number > 1 or matrix.kept != "columns":
        return None
    n, factor, power, k = problem.params
    before, after = lrn_window(n)
    image = TensorSpec.packed((1, 1, *matrix[:2]), layout="nhwc")
    x, y = (Tensor(uid, image) for uid in (1, 2))

    def averaged(before: int, after: int) -> Plan:
        window = {"window_dims": (1, n), "pre_paddings": (0, before), "post_paddings": (0, after)}
        how = {"mode": "avgpool_include_padding", "comp_type": "float32", "padding_mode": "zero_pad"}
        row = node("resample_forward", xdesc=x, ydesc=y, spatial_dims=2, strides=(1, 1), **window, **how)
        return first_plan(Graph((row,), (x, y)), context)

    last = len(tensors) - 1
    one = Formulas(matrix, len(tensors), context)
    given, *others = (one.tensor(place, tensors[place].dtype) for place in range(last))
    sums = one.through(averaged(before, after), given * given) * factor + k
    if others:
        result, dy = others
        around = one.through(averaged(after, before), dy * result / sums)
        gradient = dy * pointwise("pow", sums, -power) - given * around * (2 * factor * power)
        one.store(gradient, last, tensors[last].dtype)
    else:
        one.store(given * pointwise("pow", sums, -power), last, tensors[last].dtype)
    return one.program()


_IMPLEMENTATIONS = (*with_bfloat16(of_problem(_plan)), by_engines(lrn_by_graphs))
_LRN, _GRADIENT = (
    Operation(name, lrn_problem, _IMPLEMENTATIONS, independent=partial(along, axes=(0,)))
    for name in ("a local response normalisation", "the gradient of a local response normalisation")
)
