"""Pointwise operations of graphs in float64: all modes of `PointwiseMode`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ._cast import Float64
from .layers import CURVES, activated, erf, sigmoid

_ROOT = math.sqrt(2 / math.pi)


def pointwise(mode: str, operands: dict[str, Any], attributes: dict[str, Any]) -> Float64:
    """Return the result of a mode: of x, of x and b, of x, b and t, or of x and dy."""
    x, b, t, dy = (operands.get(name) for name in ("x", "b", "t", "dy"))
    if mode == "gen_index":
        axis, shape = attributes["axis"], np.asarray(x).shape
        index = np.arange(shape[axis]).reshape([-1 if one == axis else 1 for one in range(len(shape))])
        return np.broadcast_to(index, shape).astype(np.float64)
    if mode == "binary_select":
        return np.asarray(np.where(np.asarray(t) != 0, x, b), np.float64)
    if dy is not None:
        return np.asarray(dy * SLOPES[mode](x, attributes), np.float64)
    if b is not None:
        return np.asarray(BINARY[mode](x, b), np.float64)
    return np.asarray(UNARY[mode](x, attributes), np.float64)


def _relu(x: Any, p: dict[str, Any]) -> Any:
    lower, slope = p.get("relu_lower_clip", 0.0), p.get("relu_lower_clip_slope", 0.0)
    upper = p.get("relu_upper_clip")
    below = lower + slope * (x - lower) if slope else lower * np.ones_like(x)
    y = np.where(x > lower, x, np.where(np.isnan(x), x, below))
    return y if upper is None else np.minimum(y, upper)


def _relu_slope(x: Any, p: dict[str, Any]) -> Any:
    upper = p.get("relu_upper_clip", np.inf)
    inside = (x > p.get("relu_lower_clip", 0.0)) & (x < (np.inf if upper is None else upper))
    below = p.get("relu_lower_clip_slope", 0.0) * (x <= p.get("relu_lower_clip", 0.0))
    return inside + below


def _softplus(x: Any, p: dict[str, Any]) -> Any:
    beta = p.get("softplus_beta", 1.0)
    return np.logaddexp(0, beta * x) / beta


def _swish_slope(x: Any, p: dict[str, Any]) -> Any:
    beta = p.get("swish_beta", 1.0)
    s = sigmoid(beta * x)
    return s + beta * x * s * (1 - s)


def _elu_slope(x: Any, p: dict[str, Any]) -> Any:
    return np.where(x > 0, 1.0, p.get("elu_alpha", 1.0) * np.exp(np.minimum(x, 0)))


def _gelu_slope(x: Any, _: dict[str, Any]) -> Any:
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return (1 + erf(x / math.sqrt(2))) / 2 + x * density


def _approximate_slope(x: Any, _: dict[str, Any]) -> Any:
    t = np.tanh(_ROOT * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x * (1 - t * t) * _ROOT * (1 + 3 * 0.044715 * x * x) / 2


def _plain(function: Callable[..., Any]) -> Callable[[Any, dict[str, Any]], Any]:
    return lambda x, _: function(x)


UNARY: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    **{name: _plain(getattr(np, name)) for name in ("abs", "ceil", "cos", "exp", "floor", "log", "sin")},
    **{name: _plain(getattr(np, name)) for name in ("sqrt", "tan", "reciprocal", "logical_not")},
    "neg": _plain(np.negative),
    "rsqrt": _plain(lambda x: 1 / np.sqrt(x)),
    "erf": _plain(erf),
    "identity": _plain(lambda x: x),
    "relu_fwd": _relu,
    "tanh_fwd": _plain(np.tanh),
    "sigmoid_fwd": _plain(sigmoid),
    "elu_fwd": lambda x, p: CURVES["elu"](x, p.get("elu_alpha", 1.0)),
    "gelu_fwd": _plain(lambda x: activated(x, "gelu")),
    "gelu_approx_tanh_fwd": _plain(lambda x: activated(x, "gelu_tanh")),
    "softplus_fwd": _softplus,
    "swish_fwd": lambda x, p: CURVES["swish"](x, p.get("swish_beta", 1.0)),
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "add_square": lambda x, b: x + b * b,
    "atan2": np.arctan2,
    "div": np.divide,
    "floor_mod": np.mod,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "mul": np.multiply,
    "pow": np.power,
    "sub": np.subtract,
    "cmp_eq": np.equal,
    "cmp_neq": np.not_equal,
    "cmp_gt": np.greater,
    "cmp_ge": np.greater_equal,
    "cmp_lt": np.less,
    "cmp_le": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}

SLOPES: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "relu_bwd": _relu_slope,
    "tanh_bwd": _plain(lambda x: 1 - np.tanh(x) ** 2),
    "sigmoid_bwd": _plain(lambda x: sigmoid(x) * (1 - sigmoid(x))),
    "elu_bwd": _elu_slope,
    "gelu_bwd": _gelu_slope,
    "gelu_approx_tanh_bwd": _approximate_slope,
    "softplus_bwd": lambda x, p: sigmoid(p.get("softplus_beta", 1.0) * x),
    "swish_bwd": _swish_slope,
}
