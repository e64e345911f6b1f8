"""Causal convolution of sequences with long windows, and its gradients, by FFT in float64.

For float64 it takes the windows that cuDNN takes for the other dtypes, too.
"""

from __future__ import annotations

import numpy as np

from ..shapes.checks import same_shape
from ..shapes.fft_causal_conv import FFTCausalConvGradients, fft_causal_conv_shape
from . import _signatures as signatures
from ._cast import Array, Float64
from ._definition import Arguments, defined


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
