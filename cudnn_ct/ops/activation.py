"""Activations and their gradients."""

from __future__ import annotations

from typing import Never

import numpy as np

from .._config import config
from .._hints import UNSET, corrected
from .._lib import load
from ..array import DeviceArray
from ..context import Context
from ..descriptors import ActivationDescriptor
from ..errors import NotSupportedError
from ..graph.operations import Graph
from ..graph.pixels import in_pixels
from ..plans.axes import tile
from ..plans.base import Plan, tensors_of
from ..plans.elementwise import duplicate_plan, op_tensor_of
from ..plans.program import CallPlan, Step, chained
from ..shapes.layers import activation_problem
from ..shapes.specs import INT_MAX, ActivationSpec, LayerProblem, TensorSpec
from ..typing import Activation, ArrayLike, StreamLike
from ._call import execute
from ._documented import documented
from ._formulas import (
    DTYPES_OF_ENGINES,
    MIN_ELEMENTS,
    ORDER,
    Formulas,
    first_plan,
    formula_graph,
    in_one_order,
    matrix_of,
    pointwise,
)
from ._implementations import IGNORES_NAN, Implementation, by_engines, every_axis, of_problem
from ._operation import Operation
from .conv.graph import MODES


@documented()
def activation(
    x: ArrayLike,
    *more: Never,
    mode: Activation = "relu",
    coefficient: float = 0,
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute ``alpha * act(x) + beta * out`` element by element.

    Relu is max(x, 0); clipped relu min(max(x, 0), coefficient); sigmoid 1 / (1 + exp(-x)); elu x where it is
    positive and coefficient * (exp(x) - 1) elsewhere; swish x * sigmoid(coefficient * x).

    Parameters
    ----------
    x : device array, any shape, float16 | bfloat16 | float32 | float64
    mode : {"relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "silu", "identity"}
    coefficient : float
        Ceiling of a clipped relu, alpha of elu, beta of swish, for which 0 stands for 1. With the default, a
        clipped relu is 0 everywhere, and elu is relu.
    propagate_nan : bool
        Whether relu and clipped relu of NaN are NaN, or 0. The other modes always propagate NaN.
    out : device array, shape and dtype of x, optional
        Destination of the result. It may be x itself.

    Notes
    -----
    ``cudnnActivationForward``; ``cudnnOpTensor`` for the identity. From 2**24 elements, a graph of the same
    mathematics is tried first.

    Examples
    --------
    >>> x = ct.asarray([-1, 2, 9], "float32")
    >>> ct.activation(x, mode="clipped_relu", coefficient=6).numpy()
    array([0., 2., 6.], dtype=float32)
    """
    if more or unknown or x is UNSET:
        return corrected(activation, locals())
    return execute(
        _ACTIVATION, ("x",), (x,), (mode, coefficient, propagate_nan), alpha, beta, (out,), stream
    )[0]


@documented(activation)
def activation_backward(
    dy: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *more: Never,
    mode: Activation = "relu",
    coefficient: float = 0,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute the gradient of :func:`activation` with regard to x: ``alpha * gradient + beta * out``.

    Parameters
    ----------
    y : device array, shape and dtype of x
        The result of :func:`activation` for x.
    coefficient : float
        The coefficient of the activation; at least 0 for elu.
    out : device array, shape and dtype of x, optional
        Destination of the result. It may be one of the operands.

    Notes
    -----
    ``cudnnActivationBackward``; ``cudnnOpTensor`` for the identity. From 2**24 elements, a graph of the same
    mathematics is tried first.

    cuDNN takes the slope of elu from y: it is 1 where y is 0, also for negative x so small that y is rounded
    to 0. With ``coefficient`` 0 elu is relu, whose slope at 0 is 0. The slope of clipped_relu is 1 at its
    ceiling, where that of PyTorch's ``relu6`` is 0.

    Examples
    --------
    >>> x, dy = ct.asarray([-1, 2], "float32"), ct.asarray([10, 20], "float32")
    >>> ct.activation_backward(dy, x, ct.activation(x)).numpy()
    array([ 0., 20.], dtype=float32)
    """
    if more or unknown or dy is UNSET or x is UNSET or y is UNSET:
        return corrected(activation_backward, locals())
    return execute(
        _GRADIENT, ("x", "y", "dy"), (x, y, dy), (mode, coefficient, True), alpha, beta, (out,), stream
    )[0]


def legacy_plan(problem: LayerProblem[ActivationSpec]) -> Plan:
    """Return the plan of ``cudnnActivationForward`` or ``...Backward``."""
    head, tensors = (ActivationDescriptor.cached(problem.params),), list(tensors_of(problem).values())
    if problem.params.mode == "identity":
        place = len(tensors) - 2  # of x, or of dy
        return chained([], [Step(op_tensor_of("max", *tensors[place:]), (place, place + 1))])

    def forward(x: TensorSpec, y: TensorSpec) -> Plan:
        return CallPlan("cudnnActivationForward", head, [(0, x)], y)

    def backward(x: TensorSpec, y: TensorSpec, dy: TensorSpec, dx: TensorSpec) -> Plan:
        return CallPlan("cudnnActivationBackward", head, [(1, y), (2, dy), (0, x)], dx)

    return tile(backward if problem.dx else forward, *tensors)


def graph_plan(problem: LayerProblem[ActivationSpec], context: Context) -> Plan | None:
    """Return a graph plan for large contiguous operands of one memory order; None for others."""
    # Its engine reaches the memory bandwidth, the C functions half of it. It is compiled when the plan is
    # made, which takes 0.2 s. Without C functions, all sizes are computed so.
    tensors = list(tensors_of(problem).values())
    first, spec, legacy = tensors[0], problem.params, not load().lacks("ops")
    if not spec.propagate_nan and spec.mode in ("relu", "clipped_relu"):
        if legacy:
            return None
        raise NotSupportedError(IGNORES_NAN)
    if not in_one_order(*tensors) or not config.allow_runtime_compilation:
        return None
    if not (MIN_ELEMENTS if legacy else 1) <= first.size <= INT_MAX:
        return None
    if spec.mode == "identity" and not legacy:
        place = len(tensors) - 2  # of x, or of dy
        return chained([], [Step(duplicate_plan(first), (place, place + 1))])
    places = _graph_places(spec, problem.dx is not None, first.dtype, accurate=legacy)
    if places is None:
        return None
    plan = in_pixels(
        lambda *pixels: first_plan(activation_graph(spec, *pixels), context, ORDER),
        *(tensors[place] for place in places),
    )
    return chained([], [Step(plan, places)])


def activation_graph(spec: ActivationSpec, *tensors: TensorSpec) -> Graph:
    """Make the graph of an activation, of x and y; or of the gradient of one, of x or y, dy and dx."""
    # In cuDNN's legacy calls, too, the gradients of sigmoid and tanh are computed from y.
    mode, parameter = MODES[spec.mode]
    coefficient = {parameter: spec.coefficient} if parameter else {}
    if len(tensors) > 2 and spec.mode == "sigmoid":
        return formula_graph(lambda y, dy: (y - y * y) * dy, *tensors)
    if len(tensors) > 2 and spec.mode == "tanh":
        return formula_graph(lambda y, dy: dy - y * y * dy, *tensors)
    mode = f"{spec.mode}_bwd" if len(tensors) > 2 else mode
    return formula_graph(lambda *operands: pointwise(mode, *operands, **coefficient), *tensors)


def _graph_places(
    spec: ActivationSpec, gradient: bool, dtype: str, *, accurate: bool
) -> tuple[int, ...] | None:
    """Return the indices of a graph's tensors among those of the problem, or None if no graph is right.

    If ``accurate`` is set, also None if the C functions have more correct digits.
    """
    accurate &= dtype == "float32"
    if dtype not in DTYPES_OF_ENGINES or spec.mode == "identity":
        return None
    if not gradient:
        return None if spec.mode == "tanh" and accurate else (0, 1)  # their tanh has 17 bits
    if spec.mode in ("sigmoid", "tanh"):  # in float32, 1 - y would be lost in y - y y
        return None if accurate else (1, 2, 3)
    # Engines have no gradient of a clipped relu, and use the coefficient of elu as the slope at 0.
    differs = spec.mode == "clipped_relu" or (spec.mode == "elu" and spec.coefficient != 1)
    return None if differs else (0, 2, 3)


def gradient_by_formulas(problem: LayerProblem[ActivationSpec], context: Context) -> Plan | None:
    """Return a plan of a gradient that engines have no node for, for a cuDNN without legacy calls."""
    tensors, (mode, coefficient, _) = list(tensors_of(problem).values()), problem.params
    if problem.dx is None or mode not in ("clipped_relu", "elu") or tensors[0].size < 2:
        return None
    matrix = matrix_of(tensors, [TensorSpec.packed((1,) * len(tensors[0].shape))])
    if matrix is None:
        return None
    one, dtype = Formulas(matrix, len(tensors), context), tensors[0].dtype
    x, y, dy = (one.tensor(place, dtype) for place in range(3))
    if mode == "clipped_relu":
        # At the ceiling, the slope is 1.
        above = float(np.nextafter(np.float32(coefficient), np.float32(np.inf)))
        result = pointwise("relu_bwd", x * -1.0 + above, pointwise("relu_bwd", x, dy))
    else:
        below = pointwise("relu_fwd", y * -1.0)  # not y itself: the product of 0 and an infinite one is NaN
        result = dy * (pointwise("cmp_ge", y, 0.0) + pointwise("cmp_lt", y, 0.0) * coefficient - below)
    one.store(result, 3, dtype)
    return one.program()


_IMPLEMENTATIONS = (
    Implementation(graph_plan, aligned=True, scales=False),
    of_problem(legacy_plan),
    by_engines(gradient_by_formulas),
)
_ACTIVATION, _GRADIENT = (
    Operation(name, activation_problem, _IMPLEMENTATIONS, in_place=True, independent=every_axis)
    for name in ("an activation", "the gradient of an activation")
)
