"""Convolution with bias, residual and activation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..shapes.fused import ACTIVATIONS
from ..shapes.parse import as_choice
from ..typing import ConvMode, FusedActivation, Padding, PerAxis
from ._cast import Array, deliver, wide
from .activation import CURVES
from .conv import conv, conv_operands


def conv_bias_activation(
    x: ArrayLike,
    w: ArrayLike,
    b: ArrayLike | None,
    *,
    z: ArrayLike | None = None,
    activation: FusedActivation = "relu",
    coefficient: float = 0,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: ConvMode = "cross_correlation",
    alpha1: float = 1,
    alpha2: float = 1,
    out: Array | None = None,
) -> Array:
    """Compute ``act(alpha1 * conv(x, w) + alpha2 * z + b)``. See :func:`cudnn_ct.conv_bias_activation`."""
    others = {name: array for name, array in (("b", b), ("z", z)) if array is not None}
    given = conv_operands("fused", x=x, w=w, **others)
    sums = alpha1 * conv(
        wide(given["x"]),
        wide(given["w"]),
        padding=padding,
        stride=stride,
        dilation=dilation,
        groups=groups,
        mode=mode,
    )
    if "z" in given:
        if given["z"].shape != sums.shape:
            raise ValueError(f"z has shape {given['z'].shape}; y has {sums.shape}")
        sums = sums + alpha2 * wide(given["z"])
    if "b" in given:
        channels = sums.shape[1]
        if given["b"].size != channels:
            raise ValueError(f"b has shape {given['b'].shape}; y of shape {sums.shape} needs ({channels},)")
        sums = sums + wide(given["b"]).reshape(1, channels, *[1] * (sums.ndim - 2))
    name = as_choice(activation, ACTIVATIONS, "activation")
    y = CURVES[name](sums, 1 if name == "swish" else coefficient)  # swish has no parameter here
    return deliver(np.asarray(y), given["x"].dtype, 1, 0, out)
