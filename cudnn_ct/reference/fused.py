"""The meaning of a convolution with what follows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.fused import ACTIVATIONS
from ..shapes.parse import as_choice
from ._cast import Array, deliver
from .activation import CURVES
from .conv import check_dtypes, conv

__all__ = ["conv_bias_activation"]


def conv_bias_activation(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None,
    *,
    z: npt.ArrayLike | None = None,
    activation: Any = "relu",
    coefficient: float = 0,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: Any = "cross_correlation",
    alpha1: float = 1,
    alpha2: float = 1,
    out: Array | None = None,
) -> Array:
    """Compute ``act(alpha1 * conv(x, w) + alpha2 * z + b)``. See :func:`cudnn_ct.conv_bias_activation`."""
    x, w = np.asarray(x), np.asarray(w)
    others = {name: np.asarray(array) for name, array in (("b", b), ("z", z)) if array is not None}
    for name, array in others.items():
        check_dtypes("fused", **{"x": x, name: array})
    geometry = {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups, "mode": mode}
    check_dtypes("fused", x=x, w=w)
    sums = alpha1 * conv(x.astype(np.float64), w.astype(np.float64), **geometry)
    if "z" in others:
        if others["z"].shape != sums.shape:
            raise ValueError(f"z has shape {others['z'].shape}; y has {sums.shape}")
        sums = sums + alpha2 * others["z"].astype(np.float64)
    if "b" in others:
        bias = others["b"].astype(np.float64).reshape(-1)
        if bias.size != sums.shape[1]:
            raise ValueError(
                f"b has shape {others['b'].shape}; y of shape {sums.shape} needs ({sums.shape[1]},)"
            )
        sums = sums + bias.reshape(1, -1, *[1] * (sums.ndim - 2))
    name = as_choice(activation, ACTIVATIONS, "activation")
    y = CURVES[name](sums, 1 if name == "swish" else coefficient)  # swish has no parameter here
    return deliver(np.asarray(y), x.dtype, 1, 0, out)
