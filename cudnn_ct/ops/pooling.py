"""Pooling and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, prod
from typing import Any, Never

from .._hints import UNSET, corrected
from ..array import DeviceArray
from ..context import Context
from ..descriptors import PoolingDescriptor
from ..dtypes import DTYPES
from ..errors import NotSupportedError
from ..graph.offline import target_of
from ..graph.operations import Graph, Tensor, node
from ..graph.pixels import in_pixels
from ..legal.conditions import applying
from ..legal.subjects import Pooling
from ..plans.axes import images, sliced
from ..plans.base import Plan, packed_of, tensors_of
from ..plans.elementwise import copy_plan, fill_plan
from ..plans.program import CallPlan, Program, Step, chained
from ..plans.wrappers import on_copies
from ..shapes.layers import PoolParams, pool_problem
from ..shapes.specs import LayerProblem, PoolingMode, PoolingSpec, TensorSpec, nearest_layout
from ..typing import ArrayLike, Padding, PerAxis, PoolMode, StreamLike
from ._call import execute
from ._documented import documented
from ._formulas import DTYPES_OF_ENGINES, elementwise_graph, first_plan, formula_graph, pointwise
from ._implementations import along, by_engines, of_problem
from ._operation import Operation


@documented()
def pool(
    x: ArrayLike,
    *more: Never,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    mode: PoolMode = "max",
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
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

    Examples
    --------
    >>> x = ct.asarray([[[1, 5, 2, 4, 3]]], "float32")
    >>> ct.pool(x, window=2).numpy()
    array([[[5., 4.]]], dtype=float32)
    >>> ct.pool(x, window="global", mode="average").numpy()
    array([[[3.]]], dtype=float32)
    """
    if more or unknown or x is UNSET or window is UNSET:
        return corrected(pool, locals())
    return execute(
        _POOL, ("x",), (x,), (window, stride, padding, mode, propagate_nan), alpha, beta, (out,), stream
    )[0]


@documented(pool)
def pool_backward(
    dy: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *more: Never,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    mode: PoolMode = "max",
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute the gradient of :func:`pool` with regard to x: ``alpha * gradient + beta * out``.

    Parameters
    ----------
    dy : device array, shape of y, dtype of x
    x : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    y : device array, shape :func:`pool_output_shape`, dtype of x
        The result of :func:`pool` for x.

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
    if more or unknown or dy is UNSET or x is UNSET or y is UNSET or window is UNSET:
        return corrected(pool_backward, locals())
    arguments = (window, stride, padding, mode, propagate_nan)
    return execute(_GRADIENT, ("x", "y", "dy"), (x, y, dy), arguments, alpha, beta, (out,), stream)[0]


LARGE = 2**18  # elements, from which a kernel takes longer than calls that copy

# The modes of C functions and of graphs. cuDNN has no sums: they are averages times the size of the window.
_MODES: dict[str, tuple[PoolingMode, str]] = {
    "max": ("max", "maxpool"),
    "max_deterministic": ("max_deterministic", "maxpool"),
    "average_inc_pad": ("average_count_include_padding", "avgpool_include_padding"),
    "average_exc_pad": ("average_count_exclude_padding", "avgpool_exclude_padding"),
    "sum": ("average_count_include_padding", "avgpool_include_padding"),
}

Problem = LayerProblem[PoolParams]


def pooling(problem: Problem) -> CallPlan:
    """Return the plan of ``cudnnPoolingForward`` or ``cudnnPoolingBackward``."""
    (window, padding, stride), mode, propagate_nan = problem.params
    if any(before != after for before, after in padding):
        raise NotSupportedError(f"cuDNN pads both sides of an axis alike: got {padding}")
    befores = tuple(before for before, _ in padding)
    if len(window) == 1:
        window, befores, stride = (1, *window), (0, *befores), (1, *stride)
    spec = PoolingSpec(window, befores, stride, _MODES[mode][0], propagate_nan)
    head = (PoolingDescriptor.cached(spec),)
    factor = prod(window) if mode == "sum" else 1
    x, y, *gradients = images(*tensors_of(problem).values())
    if not gradients:
        return CallPlan("cudnnPoolingForward", head, [(0, x)], y, factor)
    dy, dx = gradients
    return CallPlan("cudnnPoolingBackward", head, [(1, y), (2, dy), (0, x)], dx, factor)


def broadcast_gradient(problem: Problem) -> CallPlan | None:
    """Return a plan of ``cudnnAddTensor`` for the gradient of a global average or sum."""
    (window, padding, _), mode, _ = problem.params
    x, *_ = tensors_of(problem).values()
    whole = window == x.shape[2:] and not any(before or after for before, after in padding)
    if problem.dx is None or mode.startswith("max") or not whole:
        return None
    _, _, dy, dx = images(*tensors_of(problem).values())
    return CallPlan("cudnnAddTensor", (), [(2, dy)], dx, 1.0 if mode == "sum" else 1 / prod(window))


def gradient_in_c_order(problem: Problem) -> Program | None:
    """Return a plan on copies in C order for large images with channels last and windows that do not overlap.

    cuDNN's kernels for channels last take more than twice as long as the copies and the kernel in C order.
    """
    (window, _, stride), mode, _ = problem.params
    tensors = list(tensors_of(problem).values())
    last = all("nhwc" in spec.layouts and "nchw" not in spec.layouts for spec in tensors)
    apart = len(window) == 2 and all(step >= size for step, size in zip(stride, window, strict=True))
    if problem.dx is None or not last or not apart or tensors[0].size < LARGE:
        return None
    packed = packed_of(problem, "nchw")
    read = mode.startswith("max")  # the gradient of an average reads neither x nor y
    moves = [
        (spec, copy if read or place >= 2 else None)
        for place, (spec, copy) in enumerate(zip(tensors, tensors_of(packed).values(), strict=True))
    ]
    return on_copies(pooling(packed), moves)


def padded_pooling(problem: Problem) -> Program:
    """Return a plan on a padded copy, if the padding differs between the two sides of an axis."""
    # A gradient is computed for the padded copy, and its part inside of the padding is copied.
    geometry, mode, _ = problem.params
    x, y, *_ = tensors_of(problem).values()
    if x.dtype == "int8":
        raise NotSupportedError("a padded copy is made for floats only: got int8")
    if mode == "average_exc_pad":
        raise NotSupportedError("an average over a padded copy cannot leave the padding out")
    padding = geometry.padding
    sizes = [n + before + after for n, (before, after) in zip(x.shape[2:], padding, strict=True)]
    padded = TensorSpec.packed((*x.shape[:2], *sizes), x.dtype, nearest_layout(y))
    inside = x._replace(strides=padded.strides)
    steps = zip(padding, padded.strides[2:], strict=True)
    start = sum(before * step for (before, _), step in steps) * DTYPES[x.dtype].itemsize
    params = problem.params._replace(geometry=geometry._replace(padding=((0, 0),) * len(padding)))
    plan = pooling(problem._replace(x=padded, dx=problem.dx and padded, params=params))
    edge = fill_plan(padded, -inf if mode.startswith("max") else 0.0)
    into = sliced([(copy_plan(x, inside), (0, start))])
    if problem.dx is None:  # pointers: x, y and the padded copy
        return chained([padded], [Step(edge, (2,)), Step(into, (0, 2)), Step(plan, (2, 1))])
    # Pointers: x, y, dy, dx, the padded copy and its gradient.
    out_of = sliced([(copy_plan(inside, problem.dx), (start, 0))])
    chain = [Step(edge, (4,)), Step(into, (0, 4)), Step(plan, (4, 1, 2, 5)), Step(out_of, (5, 3))]
    return chained([padded, padded], chain, scaled=2)


LARGEST = 127  # elements of a window, whose places are int8


def pooling_by_graphs(problem: Problem, context: Context) -> Plan | None:
    """Return a plan by graphs of images with channels last, for a cuDNN without legacy calls."""
    # The gradient of a maximum runs the pooling again for the places of the maxima.
    tensors = images(*tensors_of(problem).values())
    (window, padding, stride), mode, propagate_nan = problem.params
    if not all("nhwc" in spec.layouts for spec in tensors) or tensors[0].dtype not in DTYPES_OF_ENGINES:
        return None
    largest = mode.startswith("max")
    if largest and problem.dx and prod(window) > LARGEST:
        raise NotSupportedError(
            f"window has {prod(window)} elements; without legacy functions, gradients of maxima have at most "
            f"{LARGEST}"
        )
    if len(window) == 1:
        window, padding, stride = (1, *window), ((0, 0), *padding), (1, *stride)
    before, after = zip(*padding, strict=True)
    if prod(window) == 1 and not largest:
        mode = "average_exc_pad"  # the same, and compiles for bfloat16, too
    how: dict[str, Any] = {
        "mode": _MODES[mode][1], "comp_type": "float32", "spatial_dims": len(window),
        "padding_mode": "neg_inf_pad" if largest else "zero_pad",  # only a maximum obeys NaN
        "nan_propagation": ("propagate_nan" if propagate_nan else "not_propagate_nan") if largest else None,
        "window_dims": window, "strides": stride, "pre_paddings": before, "post_paddings": after,
    }  # fmt: skip
    packed = [TensorSpec.packed(spec.shape, spec.dtype, "nhwc") for spec in tensors]
    x, y, *gradients = (Tensor(uid, spec) for uid, spec in enumerate(packed, 1))
    place = Tensor(5, packed[1]._replace(dtype="int8"))
    factor = float(prod(window)) if mode == "sum" else 1.0
    if not gradients:
        plan = first_plan(_scaled("resample_forward", {"xdesc": x}, "ydesc", y, factor, how), context)
        skips = largest and propagate_nan and _skips_nan(x.spec.dtype, context)
        return _with_nan(plan, x, y, how, context) if skips else plan
    dy, dx = gradients
    given = {"dydesc": dy, "idxdesc": place} if largest else {"dydesc": dy}
    second = first_plan(_scaled("resample_backward", given, "dxdesc", dx, factor, how), context)
    if not largest:
        return chained([], [Step(second, (2, 3))])
    again = Graph((node("resample_forward", xdesc=x, ydesc=y, idxdesc=place, **how),), (x, y, place))
    steps = [Step(first_plan(again, context), (0, 4, 5)), Step(second, (2, 5, 3))]
    return chained([packed[1], place.spec], steps)


_SKIPS_NAN = "pool-nan-jit"  # a fact


def _skips_nan(dtype: str, context: Context) -> bool:
    facts = applying("rewrite", ("resample", Pooling(dtype, "maxpool")), target_of(context))
    return any(fact.name == _SKIPS_NAN for fact in facts)


def _with_nan(plan: Plan, x: Tensor, y: Tensor, how: dict[str, Any], context: Context) -> Plan:
    """Return a plan of maxima that skip NaN, and of what propagates it."""
    # The average of magnitudes is NaN only if one of them is, and its tanh is finite: times 0 it is 0 or NaN.
    average = how | {
        "mode": _MODES["average_exc_pad"][1],
        "padding_mode": "zero_pad",
        "nan_propagation": None,
    }
    magnitudes, means = Tensor(3, x.spec), Tensor(4, y.spec)
    mean = Graph((node("resample_forward", xdesc=magnitudes, ydesc=means, **average),), (magnitudes, means))

    def each(graph: Callable[..., Graph], *specs: TensorSpec) -> Plan:
        return in_pixels(lambda *pixels: first_plan(graph(*pixels), context), *specs)

    steps = [
        Step(plan, (0, 4)),
        Step(each(partial(elementwise_graph, "abs"), x.spec, x.spec), (0, 2)),
        Step(first_plan(mean, context), (2, 3)),
        Step(each(_nan_of, y.spec, y.spec, y.spec), (3, 4, 1)),
    ]
    return chained([x.spec, y.spec, y.spec], steps, about="{}, then NaN", main=plan)


def _nan_of(*specs: TensorSpec) -> Graph:
    """Return the graph that adds 0 or NaN to a maximum: 0 times the hyperbolic tangent of a mean."""
    return formula_graph(lambda mean, most: pointwise("tanh_fwd", mean) * 0.0 + most, *specs)


def _scaled(
    row: str, given: dict[str, Tensor], name: str, result: Tensor, factor: float, how: dict[str, Any]
) -> Graph:
    """Return the graph of a node, and of the product of its result with a factor other than 1."""
    operands = (*given.values(), result)
    if factor == 1:
        return Graph((node(row, **given, **{name: result}, **how),), operands)
    between = Tensor(6, result.spec._replace(dtype="float32"), virtual=True)
    number = Tensor(7, TensorSpec.packed((1,) * len(result.spec.shape)), value=factor)
    product = node("pointwise", mode="mul", math_prec="float32", xdesc=between, bdesc=number, ydesc=result)
    return Graph((node(row, **given, **{name: between}, **how), product), operands)


_IMPLEMENTATIONS = (
    of_problem(broadcast_gradient, aligned=True),
    of_problem(gradient_in_c_order),
    of_problem(pooling),
    of_problem(padded_pooling),
    by_engines(pooling_by_graphs),
)
_POOL, _GRADIENT = (
    Operation(name, pool_problem, _IMPLEMENTATIONS, independent=partial(along, axes=(0, 1)))
    for name in ("a pooling", "the gradient of a pooling")
)
