"""Causal convolutions of sequences, also by FFT and in pairs with gates, and their gradients."""

from __future__ import annotations

import numpy as np

from ..dtypes import as_dtype
from ..shapes.causal_conv import (
    WITHOUT_BIAS,
    B2BCausalConvGradients,
    B2BCausalConvResult,
    CausalConvGradients,
    FFTCausalConvGradients,
    b2b_causal_conv_shape,
    causal_activation,
    causal_conv_shape,
    causal_gradient_dtype,
    fft_causal_conv_shape,
)
from ..shapes.checks import same_shape
from . import _signatures as signatures
from ._definition import Arguments, Array, Float64, defined


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


# --- by FFT, in float64 for the windows that cuDNN takes for the other dtypes, too -------------------------


@defined(signatures.fft_causal_conv1d)
def fft_causal_conv1d(p: Arguments) -> Array:
    """Compute ``sum(x[t - i] * w[i])``. See :func:`cudnn_ct.fft_causal_conv1d`."""
    dtype, (xs, ws) = p.operands("fft_causal_conv1d", "x", "w")
    fft_causal_conv_shape(xs.shape, ws.shape)
    return p.deliver(_convolved(xs, ws), dtype)


@defined(signatures.fft_causal_conv1d_backward)
def fft_causal_conv1d_backward(p: Arguments) -> FFTCausalConvGradients[Array]:
    """Compute the gradients of the input and the weights. See :func:`cudnn_ct.fft_causal_conv1d_backward`."""
    dtype, (gradient, xs, ws) = p.operands("fft_causal_conv1d", "dy", "x", "w")
    fft_causal_conv_shape(xs.shape, ws.shape)
    same_shape(x=xs.shape, dy=gradient.shape)
    later = gradient[..., ::-1]  # a sum over later time steps is one over earlier time steps in reverse
    dx = _convolved(later, ws)[..., ::-1]
    dw = _convolved(later, xs)[..., ::-1][..., : ws.shape[1]].sum(0)
    return p.deliver_each(FFTCausalConvGradients, [(dx, dtype), (dw, dtype)])


def _convolved(x: Float64, w: Float64) -> Float64:
    """Return the first results of a convolution along the last axis, as many as x has time steps."""
    length = x.shape[-1]
    points = length + w.shape[-1]
    spectrum = np.fft.rfft(x, points) * np.fft.rfft(w, points)
    return np.asarray(np.fft.irfft(spectrum, points)[..., :length])


# --- two convolutions with gates ---------------------------------------------------------------------------

_OPERANDS = ("x", "w_proj", "w_mixer", "skip_bias")


@defined(signatures.b2b_causal_conv1d)
def b2b_causal_conv1d(p: Arguments) -> B2BCausalConvResult[Array]:
    """Compute ``gate * (conv(a * b) + skip_bias * a * b)``. See :func:`cudnn_ct.b2b_causal_conv1d`."""
    dtype, (xs, projection, mixer, bias) = p.operands("b2b_causal_conv1d", *_OPERANDS)
    b2b_causal_conv_shape(xs.shape, projection.shape, mixer.shape, bias.shape)
    gate, a, b = _projected(xs, projection)
    mixed = causal_sums(a * b, mixer) + bias[:, None] * a * b
    return p.deliver_each(B2BCausalConvResult, [(gate * mixed, dtype), (mixed, dtype)])


@defined(signatures.b2b_causal_conv1d_backward)
def b2b_causal_conv1d_backward(p: Arguments) -> B2BCausalConvGradients[Array]:
    """Compute the gradients of all operands. See :func:`cudnn_ct.b2b_causal_conv1d_backward`."""
    dtype, arrays = p.operands("b2b_causal_conv1d", *_OPERANDS, "mixed", "dy")
    xs, projection, mixer, bias, before, gradient = arrays
    shape = b2b_causal_conv_shape(xs.shape, projection.shape, mixer.shape, bias.shape)
    for name, array in (("mixed", before), ("dy", gradient)):
        if array.shape != shape:
            raise ValueError(f"{name} has a wrong shape: got {array.shape}, expected {shape}")
    gate, a, b = _projected(xs, projection)
    dmixed = gradient * gate
    dproduct, dmixer = causal_gradients(dmixed, a * b, mixer)
    dproduct += bias[:, None] * dmixed
    dprojected = np.stack([gradient * before, dproduct * b, dproduct * a], axis=2)
    dx, dprojection = causal_gradients(_joined(dprojected), _joined(xs), _windows(projection))
    wide = as_dtype(causal_gradient_dtype(as_dtype(dtype).name)).numpy
    dbias = (dmixed * a * b).sum((0, 2))
    parameters = [(one, wide) for one in (dprojection.reshape(projection.shape), dmixer, dbias)]
    return p.deliver_each(B2BCausalConvGradients, [(dx.reshape(xs.shape), dtype), *parameters])


def _projected(x: Float64, w: Float64) -> tuple[Float64, Float64, Float64]:
    """Return the three projections, each of shape (N, channels, length)."""
    gate, a, b = np.moveaxis(causal_sums(_joined(x), _windows(w)).reshape(x.shape), 2, 0)
    return gate, a, b


def _joined(x: Float64) -> Float64:
    """Return sequences (N, channels, 3, length) as (N, 3 * channels, length)."""
    n, channels, parts, length = x.shape
    return x.reshape(n, channels * parts, length)


def _windows(w: Float64) -> Float64:
    """Return windows (channels, 3, width) as (3 * channels, width)."""
    return w.reshape(w.shape[0] * w.shape[1], w.shape[2])
