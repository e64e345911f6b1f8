"""Activations, softmax, local response normalisation, CTC loss, and gradients; pointwise modes of graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..shapes.checks import as_bool, as_choice, check_images, one_dtype, same_shape
from ..shapes.ctc import CTCLoss, check_ctc_operands, ctc_min_steps, ctc_outs, ctc_spec
from ..shapes.layers import SOFTMAX_ALGOS, activation_spec, check_lrn_factors, lrn_window, softmax_fold
from ..typing import MatmulActivation
from . import _signatures as signatures
from ._definition import Arguments, Array, Float64, check_out, defined, round_once, wide

# --- activations -------------------------------------------------------------------------------------------


@defined(signatures.activation)
def activation(p: Arguments) -> Array:
    """Compute ``alpha * act(x) + beta * out``. See :func:`cudnn_ct.activation`."""
    dtype, (v,) = p.operands("an activation", "x")
    spec = activation_spec(p.mode, p.coefficient, as_bool(p.propagate_nan, "propagate_nan"))
    if not spec.propagate_nan and spec.mode.endswith("relu"):
        v = np.where(np.isnan(v), 0, v)
    return p.deliver(np.asarray(CURVES[spec.mode](v, spec.coefficient)), dtype)


@defined(signatures.activation_backward)
def activation_backward(p: Arguments) -> Array:
    """Compute ``alpha * dy * act'(x) + beta * out``. See :func:`cudnn_ct.activation_backward`."""
    dtype, (v, y, dy) = p.operands("the gradient of an activation", "x", "y", "dy")
    same_shape(x=v.shape, y=y.shape, dy=dy.shape)
    spec = activation_spec(p.mode, p.coefficient)
    slope = _SLOPES[spec.mode](v, y, spec.coefficient)
    dx = np.where(slope, dy, 0) if slope.dtype == bool else slope * dy
    return p.deliver(np.asarray(dx), dtype)


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

# The slope at v, where the value is y: a number, or whether the gradient passes. At 0, the bend of relu and
# clipped relu, and for NaN, nothing passes; at the ceiling and the bend of elu everything does. Graphs of
# cuDNN, which the device uses for large arrays, let relu pass the gradient of a NaN.
_SLOPES: dict[str, Callable[[Float64, Float64, float], Any]] = {
    "identity": lambda v, *_: np.ones(v.shape, bool),
    "relu": lambda v, *_: v > 0,
    "clipped_relu": lambda v, _, c: (v > 0) & (v <= c),
    "sigmoid": lambda _, y, __: y * (1 - y),
    "tanh": lambda _, y, __: 1 - y * y,
    "elu": lambda v, _, c: np.where(v >= 0, 1, c * np.exp(np.minimum(v, 0))),
    "swish": lambda v, _, c: sigmoid(c * v) * (1 + c * v * sigmoid(-c * v)),
}


# --- local response normalisation across channels, and its gradient ----------------------------------------


@defined(signatures.lrn)
def lrn(p: Arguments) -> Array:
    """Compute ``x / (k + lrn_alpha / n * sum(x ** 2)) ** lrn_beta``. See :func:`cudnn_ct.lrn`."""
    dtype, (x,) = p.operands("lrn", "x")
    check_images(x.shape)
    before, after = lrn_window(p.n)
    lrn_alpha, lrn_beta, k = check_lrn_factors(p.lrn_alpha, p.lrn_beta, p.k)
    s = k + lrn_alpha / p.n * _channel_sums(x * x, before, after)
    return p.deliver(x * s**-lrn_beta, dtype)


@defined(signatures.lrn_backward)
def lrn_backward(p: Arguments) -> Array:
    """Compute ``dy / s ** b - 2 * a * b / n * x * sum(dy * y / s)``. See :func:`cudnn_ct.lrn_backward`."""
    dtype, (x, y, dy) = p.operands("the gradient of lrn", "x", "y", "dy")
    check_images(same_shape(x=x.shape, y=y.shape, dy=dy.shape))
    before, after = lrn_window(p.n)
    lrn_alpha, lrn_beta, k = check_lrn_factors(p.lrn_alpha, p.lrn_beta, p.k)
    s = k + lrn_alpha / p.n * _channel_sums(x * x, before, after)
    # x counts in the windows of the channels around it, so the sides are exchanged.
    through_sums = _channel_sums(dy * y / s, after, before)
    return p.deliver(dy * s**-lrn_beta - 2 * lrn_alpha / p.n * lrn_beta * x * through_sums, dtype)


def _channel_sums(terms: Float64, before: int, after: int) -> Float64:
    padded = np.pad(terms, [(0, 0), (before, after), *[(0, 0)] * (terms.ndim - 2)])
    channels = terms.shape[1]
    return sum((padded[:, i : i + channels] for i in range(before + 1 + after)), np.zeros_like(terms))


# --- softmax -----------------------------------------------------------------------------------------------


@defined(signatures.softmax)
def softmax(p: Arguments) -> Array:
    """Compute ``alpha * exp(x) / sum(exp(x)) + beta * out``. See :func:`cudnn_ct.softmax`."""
    is_log = as_choice(p.algo, SOFTMAX_ALGOS, "algo") == "log"
    dtype, (x,) = p.operands("softmax", "x")
    v = x.reshape(softmax_fold(x.shape, p.mode, p.axis))
    v = v - v.max(axis=1, keepdims=True, initial=-np.inf)
    total = np.exp(v).sum(axis=1, keepdims=True)
    y = v - np.log(total) if is_log else np.exp(v) / total
    return p.deliver(y.reshape(x.shape), dtype)


@defined(signatures.softmax_backward)
def softmax_backward(p: Arguments) -> Array:
    """Compute ``alpha * y * (dy - sum(y * dy)) + beta * out``. See :func:`cudnn_ct.softmax_backward`."""
    is_log = as_choice(p.algo, SOFTMAX_ALGOS, "algo") == "log"
    dtype, (y, dy) = p.operands("the gradient of softmax", "y", "dy")
    folded = softmax_fold(same_shape(y=y.shape, dy=dy.shape), p.mode, p.axis)
    v, dv = y.reshape(folded), dy.reshape(folded)
    if is_log:
        dx = dv - np.exp(v) * dv.sum(axis=1, keepdims=True)
    else:
        dx = v * (dv - (v * dv).sum(axis=1, keepdims=True))
    return p.deliver(dx.reshape(y.shape), dtype)


# --- pointwise operations of graphs ------------------------------------------------------------------------


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
    upper = p.get("relu_upper_clip")
    inside = (x > p.get("relu_lower_clip", 0.0)) & (True if upper in (None, np.inf) else x < upper)
    below = p.get("relu_lower_clip_slope", 0.0) * (x <= p.get("relu_lower_clip", 0.0))
    return inside + below


def _softplus(x: Any, p: dict[str, Any]) -> Any:
    beta = p.get("softplus_beta", 1.0)
    return np.logaddexp(0, beta * x) / beta


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
    "elu_bwd": lambda x, p: np.where(x > 0, 1.0, p.get("elu_alpha", 1.0) * np.exp(np.minimum(x, 0))),
    "gelu_bwd": _gelu_slope,
    "gelu_approx_tanh_bwd": _approximate_slope,
    "softplus_bwd": lambda x, p: sigmoid(p.get("softplus_beta", 1.0) * x),
    "swish_bwd": lambda x, p: _SLOPES["swish"](x, x, p.get("swish_beta", 1.0)),
}


# --- the loss of sequences (Graves et al., Connectionist temporal classification, 2006) --------------------


@defined(signatures.ctc_loss)
def ctc_loss(p: Arguments) -> CTCLoss[Array]:
    """Compute ``-log sum(prod(p))`` over alignments, and its gradient. See :func:`cudnn_ct.ctc_loss`.

    The gradient is ``p - q`` for the probability p of a symbol at a step, and the probability q that an
    alignment has the symbol at that step. If all alignments have probability 0, the gradient is NaN, unless
    there are no labels.
    """
    logits, spec = p.required("logits")["logits"], ctc_spec(p.normalization, p.out_of_bound, p.blank)
    one_dtype("ctc_loss", logits=logits.dtype)
    given = (p.labels, p.label_lengths, p.input_lengths)
    rows, steps = check_ctc_operands(logits.shape, *given, spec.blank)
    outs = ctc_outs(p.out)
    made = np.zeros(logits.shape[1:2], logits.dtype), np.zeros_like(logits)
    for new, one, name in zip(made, outs, ("loss", "gradient"), strict=True):
        check_out(one, new.shape, new.dtype, name)
    result = CTCLoss(*(new if one is None else one for new, one in zip(made, outs, strict=True)))

    losses, gradient, values = np.empty(len(rows)), wide(result.gradient), wide(logits)
    for n, (row, end) in enumerate(zip(rows, steps, strict=True)):
        enough = end >= ctc_min_steps(row)
        if enough or spec.out_of_bound == "zero":
            gradient[:, n] = 0
        if not enough:
            losses[n] = np.inf
            continue
        logs = _log_probabilities(values[:end, n], spec.normalization)
        losses[n], gradient[:end, n] = _loss(logs, row, spec.blank)
    result.loss[...] = round_once(losses, logits.dtype)
    result.gradient[...] = round_once(gradient, logits.dtype)
    return result


@np.errstate(divide="ignore", invalid="ignore")
def _log_probabilities(values: Float64, normalization: str) -> Float64:
    if normalization == "none":
        return np.asarray(np.log(values))
    shifted = values - values.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


# -inf is the logarithm of an impossible event.
@np.errstate(invalid="ignore", divide="ignore")
def _loss(logs: Float64, labels: Sequence[int], blank: int) -> tuple[float, Float64]:
    """Return loss and gradient of one sequence from log-probabilities of shape (steps, symbols)."""
    if not len(logs):  # no step and no label: the only alignment is empty
        return 0.0, logs
    if not len(labels):  # the only alignment has the blank at each step, however probable that is
        return -logs[:, blank].sum(), np.exp(logs) - (np.arange(logs.shape[1]) == blank)
    symbols = np.array([blank, *(s for label in labels for s in (label, blank))])
    emitted = logs[:, symbols]
    forwards = _sums(emitted, _may_skip(symbols))
    backwards = _sums(emitted[::-1, ::-1], _may_skip(symbols[::-1]))[::-1, ::-1]
    # Both contain the emission at their own step, so one of the two is subtracted.
    through = forwards + np.where(np.isneginf(emitted), 0, backwards - emitted)
    loss = -np.logaddexp.reduce(through[0])
    posterior = np.zeros_like(logs)
    for place, symbol in enumerate(symbols):
        posterior[:, symbol] += np.exp(through[:, place] + loss)
    return loss, np.exp(logs) - posterior


def _sums(emitted: Float64, may_skip: Array) -> Float64:
    """Return the logarithms of the sums over all partial alignments that end at each place and step.

    An alignment starts at the first place (the blank) or at the second (the first label). At each step it
    stays, moves by one place, or moves by two if that skips a blank between different labels.
    """
    sums = np.full(emitted.shape, -np.inf)
    sums[0, :2] = emitted[0, :2]
    for t in range(1, len(emitted)):
        before = sums[t - 1]
        one, two = (np.concatenate([np.full(n, -np.inf), before])[: len(before)] for n in (1, 2))
        two = np.where(may_skip, two, -np.inf)
        sums[t] = emitted[t] + np.logaddexp(np.logaddexp(before, one), two)
    return sums


def _may_skip(symbols: Array) -> Array:
    """Return which places can be reached from two places before: labels that differ from the label before.

    A blank equals the blank before it.
    """
    before = np.concatenate([symbols[:2], symbols])[: len(symbols)]
    return np.asarray((symbols != before) & (np.arange(len(symbols)) >= 2))
