"""Pooling and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from ..array import DeviceArray
from ..context import Context
from ..descriptors import PoolingDescriptor, TensorDescriptor
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..plans.axes import images
from ..plans.base import packed_of, tensors_of
from ..plans.call import CallPlan
from ..plans.elementwise import copy_plan
from ..plans.scalars import scalar_bytes
from ..plans.workspace import append
from ..plans.wrappers import RelayoutPlan
from ..shapes.pooling import PoolProblem, pool_output_shape, pool_problem
from ..shapes.specs import PoolingSpec, TensorSpec, nearest_layout
from ..typing import ArrayLike, Padding, PerAxis, PoolMode, StreamLike
from ._call import Operation, execute
from ._documented import documented
from ._fallback import of_problem

__all__ = ["pool", "pool_backward", "pool_output_shape"]


@documented()
def pool(
    x: ArrayLike,
    *,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    mode: PoolMode = "max",
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Compute ``alpha * (largest element, average or sum of each window) + beta * out``.

    Parameters
    ----------
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64; int8 for a maximum
        1 to 3 spatial axes, any strides.
    window : int, one int per spatial axis, or "global" for the whole image
    stride : int or one int per spatial axis, optional
        By default that of the window: windows are adjacent.
    padding : int, one int per axis, one pair (before, after) per axis, "valid", "half" or "full"
        Less than the window on each side. A maximum ignores the padding; averages and sums take it as zeros.
    mode : {"max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum"}
        The averages count the padding, or do not; ``"average"`` is ``"average_inc_pad"``. The gradient of
        ``"max_deterministic"`` is the same in each run.
    propagate_nan : bool
        Whether a NaN is the largest element of its window.

    Returns
    -------
    DeviceArray, shape (N, C, *out) of :func:`pool_output_shape`, dtype of x; or ``out`` as one

    Notes
    -----
    ``cudnnPoolingForward``, on a padded copy if the padding differs between the two sides of an axis, which
    ``"average_exc_pad"`` does not allow. cuDNN has no sums: they are averages times the size of the window.

    By cuDNN's manual the same bits from run to run, on GPUs of one architecture.

    Examples
    --------
    >>> x = ct.asarray([[[1, 5, 2, 4, 3]]], "float32")
    >>> ct.pool(x, window=2).numpy()
    array([[[5., 4.]]], dtype=float32)
    >>> ct.pool(x, window="global", mode="average").numpy()
    array([[[3.]]], dtype=float32)
    """
    return execute(
        _POOL, ("x",), (x,), (window, stride, padding, mode, propagate_nan), alpha, beta, (out,), stream
    )[0]


@documented(pool)
def pool_backward(
    dy: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    mode: PoolMode = "max",
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Compute the gradient of :func:`pool` with regard to x: ``alpha * gradient + beta * out``.

    Parameters
    ----------
    dy : device array, shape of y, dtype of x
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    y : device array, shape :func:`pool_output_shape`, dtype of x
        The result of :func:`pool` for x.

    Returns
    -------
    DeviceArray, shape and dtype of x; or ``out`` as one

    Notes
    -----
    ``cudnnPoolingBackward``, on a padded copy as in :func:`pool`. If several elements of a window are the
    largest, one of them gets the gradient: with ``"max_deterministic"`` always the same.

    With ``"max"`` cuDNN's manual promises no fixed order of the sums if windows overlap, so that results may
    vary from run to run, also with ``ct.config.deterministic``; with the other modes they do not.

    Examples
    --------
    >>> x, dy = ct.asarray([[[1, 5, 2, 4]]], "float32"), ct.asarray([[[1, 10]]], "float32")
    >>> ct.pool_backward(dy, x, ct.pool(x, window=2), window=2).numpy()
    array([[[ 0.,  1.,  0., 10.]]], dtype=float32)
    """
    arguments = (window, stride, padding, mode, propagate_nan)
    return execute(_GRADIENT, ("x", "y", "dy"), (x, y, dy), arguments, alpha, beta, (out,), stream)[0]


LARGE = 2**18  # elements, from which a kernel takes longer than calls that copy

# cuDNN has no sums: they are averages times the size of the window.
_MODES = {
    "average_inc_pad": "average_count_include_padding",
    "average_exc_pad": "average_count_exclude_padding",
    "sum": "average_count_include_padding",
}


def pooling(problem: PoolProblem) -> CallPlan:
    """``cudnnPoolingForward``, or ``cudnnPoolingBackward``."""
    window, padding, stride = problem.geometry
    if any(before != after for before, after in padding):
        raise NotSupportedError("the legacy calls pad both sides of an axis alike")
    befores = tuple(before for before, _ in padding)
    if len(window) == 1:
        window, befores, stride = (1, *window), (0, *befores), (1, *stride)
    mode = _MODES.get(problem.mode, problem.mode)
    spec = PoolingSpec(window, befores, stride, mode, problem.propagate_nan)
    head = (PoolingDescriptor.cached(spec),)
    factor = prod(window) if problem.mode == "sum" else 1
    x, y, *gradients = images(*tensors_of(problem).values())
    if not gradients:
        return CallPlan("cudnnPoolingForward", head, [(0, x)], y, factor)
    dy, dx = gradients
    return CallPlan("cudnnPoolingBackward", head, [(1, y), (2, dy), (0, x)], dx, factor)


def broadcast_gradient(problem: PoolProblem) -> CallPlan | None:
    """``cudnnAddTensor`` for the gradient of an average of all there is: every element has the same."""
    window, padding, _ = problem.geometry
    whole = window == problem.x.shape[2:] and not any(before or after for before, after in padding)
    if problem.dx is None or problem.mode not in _MODES or not whole:
        return None
    _, _, dy, dx = images(*tensors_of(problem).values())
    factor = 1.0 if problem.mode == "sum" else 1 / prod(window)
    return CallPlan("cudnnAddTensor", (), [(2, dy)], dx, factor)


def gradient_in_c_order(problem: PoolProblem) -> RelayoutPlan | None:
    """The gradient of large images with channels last on copies in C order, where windows do not overlap.

    There, what cuDNN has for channels last takes more than twice as long as that and the copies.
    """
    window, _, stride = problem.geometry
    tensors = list(tensors_of(problem).values())
    last = all("nhwc" in spec.layouts and "nchw" not in spec.layouts for spec in tensors)
    apart = len(window) == 2 and all(step >= size for step, size in zip(stride, window, strict=True))
    if problem.dx is None or not last or not apart or problem.x.size < LARGE:
        return None
    packed = packed_of(problem, "nchw")
    read = problem.mode.startswith("max")  # of an average, neither x nor y is
    moves = [
        (spec, copy if read or place >= 2 else None)
        for place, (spec, copy) in enumerate(zip(tensors, tensors_of(packed).values(), strict=True))
    ]
    return RelayoutPlan(pooling(packed), moves)


def padded_pooling(problem: PoolProblem) -> PaddedPooling:
    """A pooling on a copy that is padded, for what pads the two sides of an axis differently.

    Raises
    ------
    NotSupportedError
        An average counts the elements without the padding, which a copy does not tell from others; or the
        elements are no floats.
    """
    if problem.x.dtype == "int8":
        raise NotSupportedError("a padded copy is made for floats only")
    if problem.mode == "average_exc_pad":
        raise NotSupportedError("on a padded copy, an average cannot leave the padding out")
    return PaddedPooling(problem)


class PaddedPooling:
    """Copy x into a larger image in scratch memory, pool that; of a gradient, copy what is inside back."""

    __slots__ = ("_edge", "_image", "_inner", "_into", "_out_of", "_places", "workspace")

    def __init__(self, problem: PoolProblem) -> None:
        padding, x = problem.geometry.padding, problem.x
        sizes = [n + before + after for n, (before, after) in zip(x.shape[2:], padding, strict=True)]
        layout = nearest_layout(problem.y)
        padded = TensorSpec.packed((*x.shape[:2], *sizes), x.dtype, layout)
        inside = x._replace(strides=padded.strides)
        steps = zip(padding, padded.strides[2:], strict=True)
        start = sum(before * step for (before, _), step in steps) * DTYPES[x.dtype].itemsize
        unpadded = problem.geometry._replace(padding=((0, 0),) * len(padding))
        gradient = padded if problem.dx else None
        self._inner = pooling(problem._replace(x=padded, dx=gradient, geometry=unpadded))
        self._image = TensorDescriptor.cached(*images(padded))
        self._edge = scalar_bytes(x.dtype, -inf if problem.mode.startswith("max") else 0.0)
        self._into = copy_plan(x, inside)
        self._out_of = copy_plan(inside, problem.dx) if problem.dx else None
        image, self.workspace = append(self._inner.workspace, padded)
        result, self.workspace = append(self.workspace, gradient)
        self._places = image, image + start, result, result + start

    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:
        """Pad, pool, and of a gradient copy what is inside."""
        base = context.workspace(self.workspace)
        image, inside, result, result_inside = (base + place for place in self._places)
        x, *others, out = pointers
        context.library.cudnnSetTensor(context.handle, self._image, image, self._edge)
        self._into.run(context, (x, inside), 1.0, 0.0)
        if self._out_of is None:
            self._inner.run(context, [image, out], alpha, beta)
            return
        self._inner.run(context, [image, *others, result], alpha, 0.0)
        self._out_of.run(context, (result_inside, out), 1.0, beta)

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"{self._inner.describe()} on a padded copy"


_IMPLEMENTATIONS = (
    of_problem(broadcast_gradient, aligned=True),
    of_problem(gradient_in_c_order),
    of_problem(pooling),
    of_problem(padded_pooling),
)
_POOL = Operation("a pooling", pool_problem, _IMPLEMENTATIONS)
_GRADIENT = Operation("the gradient of a pooling", pool_problem, _IMPLEMENTATIONS)
