"""Two causal convolutions with gates between and behind them, and their gradients."""

from __future__ import annotations

import numpy as np

from ..dtypes import as_dtype
from ..shapes.b2b_causal_conv import B2BCausalConvGradients, B2BCausalConvResult, b2b_causal_conv_shape
from ..shapes.causal_conv import causal_gradient_dtype
from . import _signatures as signatures
from ._cast import Array, Float64
from ._definition import Arguments, defined
from .causal_conv import causal_gradients, causal_sums

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
