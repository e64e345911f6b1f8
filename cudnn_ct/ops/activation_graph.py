"""Activations of large arrays as graphs: engines that reach the speed of the memory; legacy calls reach half.

Such an engine is compiled when its plan is made, which takes a fifth of a second.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from .._config import config
from ..context import Context
from ..graph.operations import Graph, Node, Tensor, node
from ..graph.pixels import in_pixels
from ..graph.plan import GraphPlan, first_plan
from ..plans.axes import INT_MAX
from ..plans.base import Plan, tensors_of
from ..plans.chain import ChainPlan, Step
from ..shapes.activation import ActivationProblem
from ..shapes.specs import ActivationSpec, TensorSpec, equivalent_strides
from .conv.fused_graph import MODES

__all__ = ["activation", "activation_graph"]

MIN_ELEMENTS = 2**24  # elements; with fewer, a call has less to win than its plan costs
ORDER = (1, 0)  # the second of the heuristics' answers is quicker by 5 to 10 % in all dtypes


def activation(problem: ActivationProblem, context: Context) -> Plan | None:
    """A plan for large arrays that lie alike without gaps, in a run without factors; otherwise none."""
    tensors = list(tensors_of(problem).values())
    first, spec = tensors[0], problem.activation
    alike = first.layouts and all(
        equivalent_strides(first.shape, one.strides, first.strides) for one in tensors
    )
    if not alike or not spec.propagate_nan or not config.runtime_compiled:
        return None
    if not MIN_ELEMENTS <= first.size <= INT_MAX:
        return None
    row = (_GRADIENTS if problem.dx else _FORWARD).get(spec.mode)
    steep = spec.mode == "elu" and spec.coef != 1  # engines have its coefficient as the slope at 0
    if row is None or first.dtype not in row.dtypes or (problem.dx and steep):
        return None
    plan = in_pixels(partial(_plan, spec, context), *(tensors[place] for place in row.places))
    return ChainPlan([], [Step(plan, row.places)])


def _plan(spec: ActivationSpec, context: Context, *tensors: TensorSpec) -> GraphPlan:
    return first_plan(activation_graph(spec, *tensors), context, ORDER)


def activation_graph(spec: ActivationSpec, *tensors: TensorSpec) -> Graph:
    """Make the graph of an activation, of x and y; or of the gradient of one, of x or y, dy and dx."""
    operands = tuple(Tensor(uid, tensor) for uid, tensor in enumerate(tensors, 1))
    nodes = _forward(spec, *operands) if len(operands) == 2 else _gradient(spec, *operands)
    return Graph(nodes, operands)


class ActivationSupport(NamedTuple):
    """What there is for a mode: in which dtypes, of which of x and y, or of x, y, dy and dx."""

    dtypes: tuple[str, ...]
    places: tuple[int, ...]


_HALF = ("float16", "bfloat16")
_ALL = (*_HALF, "float32")
_FORWARD = {
    mode: ActivationSupport(_ALL, (0, 1)) for mode in ("relu", "clipped_relu", "sigmoid", "elu", "swish")
}
_FORWARD["tanh"] = ActivationSupport(_HALF, (0, 1))  # that of engines has 17 bits
# In float32, 1 - y would be lost in y - y y; and the legacy call is nearly as quick.
_GRADIENTS = {
    "relu": ActivationSupport(_ALL, (0, 2, 3)),
    "elu": ActivationSupport(_ALL, (0, 2, 3)),
    "swish": ActivationSupport(_ALL, (0, 2, 3)),
    "sigmoid": ActivationSupport(_HALF, (1, 2, 3)),
    "tanh": ActivationSupport(_HALF, (1, 2, 3)),
}


def _forward(spec: ActivationSpec, x: Tensor, y: Tensor) -> tuple[Node, ...]:
    mode, parameter = MODES[spec.mode]
    parameter = "swish_beta" if spec.mode == "swish" else parameter
    return (_pointwise(mode, xdesc=x, ydesc=y, **({parameter: spec.coef} if parameter else {})),)


def _gradient(spec: ActivationSpec, given: Tensor, dy: Tensor, dx: Tensor) -> tuple[Node, ...]:
    """Sigmoid's is dy (y - y y), tanh's dy - dy y y: from y, as cuDNN's legacy calls have it."""
    mode = spec.mode
    if mode not in ("sigmoid", "tanh"):
        parameter = {"elu": "elu_alpha", "swish": "swish_beta"}.get(mode)
        coef = {parameter: spec.coef} if parameter else {}
        return (_pointwise(f"{mode}_bwd", xdesc=given, dydesc=dy, dxdesc=dx, **coef),)
    square, slope = (Tensor(uid, dy.spec._replace(dtype="float32"), virtual=True) for uid in (4, 5))
    first = _pointwise("mul", xdesc=given, bdesc=given, ydesc=square)
    if mode == "sigmoid":
        second = _pointwise("sub", xdesc=given, bdesc=square, ydesc=slope)
        return (first, second, _pointwise("mul", xdesc=slope, bdesc=dy, ydesc=dx))
    second = _pointwise("mul", xdesc=square, bdesc=dy, ydesc=slope)
    return (first, second, _pointwise("sub", xdesc=dy, bdesc=slope, ydesc=dx))


def _pointwise(mode: str, **attributes: object) -> Node:
    return node("pointwise", mode=mode, math_prec="float32", **attributes)
