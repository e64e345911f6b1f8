"""Convolutions with the operations around them that cuDNN fuses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import as_dtype
from ..shapes.conv import conv_problem
from ..shapes.scaled_conv import scaled_conv_problem
from ..shapes.specs import TensorSpec
from ..typing import FusedActivation, Padding, PerAxis
from ._cast import Array, Float64, deliver, wide
from .activation import CURVES
from .conv import conv


# Infinities and NaN are valid data.
@np.errstate(all="ignore")
def conv_scale_bias_activation(
    x: ArrayLike,
    w: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *,
    z: ArrayLike | None = None,
    activation: FusedActivation = "relu",
    coefficient: float = 0,
    padding: Padding = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    out: Array | None = None,
) -> Array:
    """Compute ``act(conv(x, w) * scale + bias + z)``. See :func:`cudnn_ct.conv_scale_bias_activation`."""
    given = {"x": x, "w": w, "scale": scale, "bias": bias} | ({} if z is None else {"z": z})
    arrays = {name: np.asarray(array) for name, array in given.items()}
    specs = {name: _spec(array) for name, array in arrays.items()}
    geometry: dict[str, Any] = {
        "padding": padding, "stride": stride, "dilation": dilation, "groups": groups,
    }  # fmt: skip
    of_conv = conv_problem("forward", specs["x"], specs["w"], **geometry)
    problem = scaled_conv_problem(of_conv, specs, activation, coefficient)
    sums = conv(wide(arrays["x"]), wide(arrays["w"]), **geometry)
    values = sums * _per_channel(arrays["scale"], sums) + _per_channel(arrays["bias"], sums)
    if "z" in arrays:
        values = values + wide(arrays["z"])
    y = CURVES[problem.activation](values, 1 if activation == "swish" else problem.coefficient)
    return deliver(np.asarray(y), arrays["x"].dtype, 1, 0, out)


def _per_channel(array: Array, images: Array) -> Float64:
    """Return an operand of channels in float64, with the rank of images."""
    return wide(array).reshape(1, -1, *[1] * (images.ndim - 2))


def _spec(array: Array) -> TensorSpec:
    return TensorSpec.packed(array.shape, as_dtype(array.dtype).name)
