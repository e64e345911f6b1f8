"""Instance normalisation and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import as_dtype
from ..shapes.checks import same_shape
from ..shapes.norm import (
    INSTANCE,
    WITHOUT_DZ,
    BatchNormGradients,
    BatchNormResult,
    check_norm_parameters,
    norm_parameter_dtype,
)
from ._cast import Array, Float64, Outs, deliver_each, operands, present, required, wide
from .norm import batch_norm_backward, batch_norm_training


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
    out: Outs | None = None,
) -> BatchNormResult[Array]:
    """Compute ``scale * (x - mean) * invstd + bias`` of each image. See :func:`cudnn_ct.instance_norm`."""
    parameters = required(x=x, scale=scale, bias=bias)
    x = parameters.pop("x")
    shape = check_norm_parameters(x, INSTANCE, **parameters)
    scale, bias = (np.tile(wide(array), x.shape[0]) for array in parameters.values())
    step = batch_norm_training(_one_image(wide(x)), scale, bias, epsilon=epsilon)
    dtype = as_dtype(norm_parameter_dtype(x.dtype)).numpy
    statistics = [(array.reshape(shape), dtype) for array in step[1:]]
    results = ((step.y.reshape(x.shape), x.dtype), *statistics)
    return deliver_each(BatchNormResult[Array], results, alpha, beta, out)


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
    out: Outs | None = None,
) -> BatchNormGradients[Array]:
    """Compute ``scale * invstd * (dy - E(dy) - n E(dy n))``. See :func:`cudnn_ct.instance_norm_backward`."""
    dtype, (values, gradient) = operands("instance normalisation", x=x, dy=dy)
    same_shape(x=values.shape, dy=gradient.shape)
    arrays = required(scale=scale) | present(mean=mean, invstd=invstd)
    check_norm_parameters(np.asarray(x), INSTANCE, **arrays)
    tiled = np.tile(wide(arrays.pop("scale")), values.shape[0])
    statistics: dict[str, Any] = {name: wide(array).reshape(-1) for name, array in arrays.items()}
    step = batch_norm_backward(_one_image(gradient), _one_image(values), tiled, **statistics, epsilon=epsilon)
    kind = as_dtype(norm_parameter_dtype(dtype)).numpy
    sums = [(array.reshape(values.shape[:2]).sum(0), kind) for array in (step.dscale, step.dbias)]
    results = ((step.dx.reshape(values.shape), dtype), *sums)
    return deliver_each(BatchNormGradients[Array], results, alpha, beta, out, absent=WITHOUT_DZ)


def _one_image(x: Float64) -> Float64:
    n, channels, *size = x.shape
    return x.reshape(1, n * channels, *size)
