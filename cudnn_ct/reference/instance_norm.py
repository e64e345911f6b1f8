"""Instance normalisation and its gradients."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import as_dtype
from ..shapes.checks import same_shape
from ..shapes.norm import (
    INSTANCE,
    BatchNormGradients,
    BatchNormResult,
    check_epsilon,
    check_norm_parameters,
    norm_parameter_dtype,
)
from ._cast import Array, Float64, deliver, operands, round_once, wide


# Infinities and NaN are valid data, and so are the means of empty images.
@np.errstate(all="ignore")
def instance_norm(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *,
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> BatchNormResult[Array]:
    """Compute ``scale * (x - mean) * invstd + bias`` of each image. See :func:`cudnn_ct.instance_norm`."""
    x = np.asarray(x)
    s, b = _parameters(x, scale=scale, bias=bias)
    mean, invstd = _statistics(wide(x), epsilon)
    y = deliver((wide(x) - mean) * invstd * s + b, x.dtype, alpha, beta, out)
    dtype = as_dtype(norm_parameter_dtype(x.dtype)).numpy
    return BatchNormResult(y, round_once(mean, dtype), round_once(invstd, dtype))


@np.errstate(all="ignore")
def instance_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike | None = None,
    invstd: ArrayLike | None = None,
    *,
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> BatchNormGradients[Array]:
    """Compute ``scale * invstd * (dy - E(dy) - n E(dy n))``. See :func:`cudnn_ct.instance_norm_backward`."""
    dtype, (values, gradient) = operands("instance normalisation", x=x, dy=dy)
    same_shape(x=values.shape, dy=gradient.shape)
    if (mean is None) != (invstd is None):
        raise ValueError("mean and invstd must both be given, or neither")
    if mean is not None and invstd is not None:
        s, m, i = _parameters(np.asarray(x), scale=scale, mean=mean, invstd=invstd)
    else:
        (s,) = _parameters(np.asarray(x), scale=scale)
        m, i = _statistics(values, epsilon)
    axes = tuple(range(2, values.ndim))
    n = (values - m) * i
    mean_dy, mean_product = (part.mean(axes, keepdims=True) for part in (gradient, gradient * n))
    parameters = as_dtype(norm_parameter_dtype(dtype)).numpy
    return BatchNormGradients(
        deliver(s * i * (gradient - mean_dy - n * mean_product), dtype, alpha, beta, out),
        round_once((gradient * n).sum((0, *axes)), parameters),
        round_once(gradient.sum((0, *axes)), parameters),
        None,
    )


def _parameters(x: Array, **parameters: ArrayLike) -> list[Float64]:
    """Return parameters in shapes that broadcast to x."""
    arrays = {name: np.asarray(array) for name, array in parameters.items()}
    check_norm_parameters(x, INSTANCE, **arrays)
    of_channels = (-1, *(1 for _ in x.shape[2:]))
    return [wide(array).reshape(of_channels) if array.ndim == 1 else wide(array) for array in arrays.values()]


def _statistics(x: Float64, epsilon: float) -> tuple[Float64, Float64]:
    """Return the mean of each channel of each image, and the inverse of its standard deviation."""
    axes = tuple(range(2, x.ndim))
    mean = x.mean(axes, keepdims=True)
    return mean, 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + check_epsilon(epsilon))
