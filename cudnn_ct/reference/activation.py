"""The meaning of activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.activation import activation_spec
from ..shapes.checks import one_dtype, same_shape
from ..shapes.parse import as_bool
from ..shapes.specs import ActivationSpec
from ._cast import Array, Float64, deliver, wide

__all__ = ["CURVES", "activation", "activation_backward"]


def activation(
    x: npt.ArrayLike,
    *,
    mode: Any = "relu",
    coefficient: float = 0,
    propagate_nan: bool = True,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * act(x) + beta * out``. See :func:`cudnn_ct.activation`."""
    x, spec = np.asarray(x), activation_spec(mode, coefficient, as_bool(propagate_nan, "propagate_nan"))
    one_dtype("an activation", x=x.dtype)
    return deliver(_activated(wide(x), spec), x.dtype, alpha, beta, out)


def activation_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    mode: Any = "relu",
    coefficient: float = 0,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * dy * act'(x) + beta * out``. See :func:`cudnn_ct.activation_backward`."""
    x, y, dy = np.asarray(x), np.asarray(y), np.asarray(dy)
    spec = activation_spec(mode, coefficient)
    one_dtype("the gradient of an activation", x=x.dtype, y=y.dtype, dy=dy.dtype)
    same_shape(x=x.shape, y=y.shape, dy=dy.shape)
    return deliver(_gradient(wide(x), wide(y), wide(dy), spec), x.dtype, alpha, beta, out)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(v: Float64) -> Float64:
    e = np.exp(-np.abs(v))  # never too large
    return np.asarray(np.where(v >= 0, 1, e) / (1 + e))


# The value at v, with the parameter c.
CURVES: dict[str, Callable[[Float64, float], Any]] = {
    "identity": lambda v, _: v,
    "relu": lambda v, _: np.maximum(v, 0),
    "clipped_relu": lambda v, c: np.minimum(np.maximum(v, 0), c),
    "sigmoid": lambda v, _: _sigmoid(v),
    "tanh": lambda v, _: np.tanh(v),
    "elu": lambda v, c: np.where(v > 0, v, c * np.expm1(np.minimum(v, 0))),
    "gelu": lambda v, _: v * (1 + _erf(v / math.sqrt(2))) / 2,
    "swish": lambda v, c: v * _sigmoid(c * v),
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
    "swish": lambda v, _, c: _sigmoid(c * v) * (1 + c * v * _sigmoid(-c * v)),
}


@np.errstate(all="ignore")
def _activated(v: Float64, spec: ActivationSpec) -> Float64:
    if not spec.propagate_nan and spec.mode.endswith("relu"):
        v = np.where(np.isnan(v), 0, v)
    return np.asarray(CURVES[spec.mode](v, spec.coefficient))


@np.errstate(all="ignore")
def _gradient(v: Float64, y: Float64, dy: Float64, spec: ActivationSpec) -> Float64:
    slope = _SLOPES[spec.mode](v, y, spec.coefficient)
    return np.asarray(np.where(slope, dy, 0) if slope.dtype == bool else slope * dy)
