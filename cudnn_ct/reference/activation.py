"""Activations and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.checks import same_shape
from ..shapes.layers import activation_spec
from ..shapes.parse import as_bool
from ..typing import Activation, MatmulActivation
from ._cast import Array, Float64, deliver, operands


@np.errstate(all="ignore")
def activation(
    x: ArrayLike,
    *,
    mode: Activation = "relu",
    coefficient: float = 0,
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * act(x) + beta * out``. See :func:`cudnn_ct.activation`."""
    dtype, (v,) = operands("an activation", x=x)
    spec = activation_spec(mode, coefficient, as_bool(propagate_nan, "propagate_nan"))
    if not spec.propagate_nan and spec.mode.endswith("relu"):
        v = np.where(np.isnan(v), 0, v)
    return deliver(np.asarray(CURVES[spec.mode](v, spec.coefficient)), dtype, alpha, beta, out)


@np.errstate(all="ignore")
def activation_backward(
    dy: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    mode: Activation = "relu",
    coefficient: float = 0,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * dy * act'(x) + beta * out``. See :func:`cudnn_ct.activation_backward`."""
    dtype, (v, y, dy) = operands("the gradient of an activation", x=x, y=y, dy=dy)
    same_shape(x=v.shape, y=y.shape, dy=dy.shape)
    spec = activation_spec(mode, coefficient)
    slope = _SLOPES[spec.mode](v, y, spec.coefficient)
    dx = np.where(slope, dy, 0) if slope.dtype == bool else slope * dy
    return deliver(np.asarray(dx), dtype, alpha, beta, out)


def activated(v: Float64, name: MatmulActivation) -> Float64:
    """Return the activation of a product or a convolution with an epilogue."""
    if name == "gelu_tanh":
        return np.asarray(v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))) / 2)
    return np.asarray(CURVES["swish" if name == "silu" else name](v, 1.0))


erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(v: Float64) -> Float64:
    """Return ``1 / (1 + exp(-v))`` without overflow."""
    e = np.exp(-np.abs(v))
    return np.asarray(np.where(v >= 0, 1, e) / (1 + e))


# The value at v, with the parameter c.
CURVES: dict[str, Callable[[Float64, float], Any]] = {
    "identity": lambda v, _: v,
    "relu": lambda v, _: np.maximum(v, 0),
    "clipped_relu": lambda v, c: np.minimum(np.maximum(v, 0), c),
    "sigmoid": lambda v, _: sigmoid(v),
    "tanh": lambda v, _: np.tanh(v),
    "elu": lambda v, c: np.where(v > 0, v, c * np.expm1(np.minimum(v, 0))),
    "gelu": lambda v, _: v * (1 + erf(v / math.sqrt(2))) / 2,
    "swish": lambda v, c: v * sigmoid(c * v),
}

# The slope at v, where the value is y: a number, or whether the gradient passes. At the bends of relu and
# clipped relu, and for NaN, nothing passes; at the bend of elu everything does. Graphs of cuDNN, which the
# device uses for large arrays, let relu pass the gradient of a NaN.
_SLOPES: dict[str, Callable[[Float64, Float64, float], Any]] = {
    "identity": lambda v, *_: np.ones(v.shape, bool),
    "relu": lambda v, *_: v > 0,
    "clipped_relu": lambda v, _, c: (v > 0) & (v < c),
    "sigmoid": lambda _, y, __: y * (1 - y),
    "tanh": lambda _, y, __: 1 - y * y,
    "elu": lambda v, _, c: np.where(v >= 0, 1, c * np.exp(np.minimum(v, 0))),
    "swish": lambda v, _, c: sigmoid(c * v) * (1 + c * v * sigmoid(-c * v)),
}
