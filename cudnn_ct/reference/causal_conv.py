"""Causal convolution of sequences, one window for each channel, and its gradients."""

from __future__ import annotations

import numpy as np

from ..dtypes import as_dtype
from ..shapes.causal_conv import (
    WITHOUT_BIAS,
    CausalConvGradients,
    causal_activation,
    causal_conv_shape,
    causal_gradient_dtype,
)
from ..shapes.checks import same_shape
from . import _signatures as signatures
from ._cast import Array, Float64
from ._definition import Arguments, defined


@defined(signatures.causal_conv1d)
def causal_conv1d(p: Arguments) -> Array:
    """Compute ``act(bias + sum(x[t - width + 1 + i] * w[i]))``. See :func:`cudnn_ct.causal_conv1d`."""
    dtype, (xs, ws, *biases) = p.operands("causal_conv1d", "x", "w", *p.present("bias"))
    causal_conv_shape(xs.shape, ws.shape, *(one.shape for one in biases))
    silu = causal_activation(p.activation)
    sums = causal_sums(xs, ws, *biases)
    return p.deliver(sums * _sigmoid(sums) if silu else sums, dtype)


@defined(signatures.causal_conv1d_backward)
def causal_conv1d_backward(p: Arguments) -> CausalConvGradients[Array]:
    """Compute the gradients of the input, weights and bias. See :func:`cudnn_ct.causal_conv1d_backward`."""
    dtype, (gradient, xs, ws, *biases) = p.operands("causal_conv1d", "dy", "x", "w", *p.present("bias"))
    causal_conv_shape(xs.shape, ws.shape, *(one.shape for one in biases))
    same_shape(x=xs.shape, dy=gradient.shape)
    if causal_activation(p.activation):
        sums = causal_sums(xs, ws, *biases)
        sigmoid = _sigmoid(sums)
        gradient = gradient * sigmoid * (1 + sums * (1 - sigmoid))
    dx, dw = causal_gradients(gradient, xs, ws)
    wide = as_dtype(causal_gradient_dtype(as_dtype(dtype).name)).numpy
    results = [(dx, dtype), (dw, wide), *[(gradient.sum((0, 2)), wide)] * len(biases)]
    return p.deliver_each(CausalConvGradients, results, "" if biases else WITHOUT_BIAS)


def causal_sums(x: Float64, w: Float64, bias: Float64 | None = None) -> Float64:
    """Return the convolution of each channel with its window."""
    sums = np.zeros_like(x) if bias is None else np.broadcast_to(bias[:, None], x.shape).copy()
    for i, before, after in _taps(w.shape[1], x.shape[2]):
        sums[..., after] += x[..., before] * w[:, i, None]
    return sums


def causal_gradients(gradient: Float64, x: Float64, w: Float64) -> tuple[Float64, Float64]:
    """Return the gradients of x and w for that of the sums."""
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for i, before, after in _taps(w.shape[1], x.shape[2]):
        dx[..., before] += gradient[..., after] * w[:, i, None]
        dw[:, i] = (gradient[..., after] * x[..., before]).sum((0, 2))
    return dx, dw


def _taps(width: int, length: int) -> list[tuple[int, slice, slice]]:
    """Return the weights that meet elements: each with these elements, and with the results they count in."""
    lags = ((i, min(width - 1 - i, length)) for i in range(width))
    return [(i, slice(0, length - lag), slice(lag, length)) for i, lag in lags]


def _sigmoid(x: Float64) -> Float64:
    return 1 / (1 + np.exp(-x))
