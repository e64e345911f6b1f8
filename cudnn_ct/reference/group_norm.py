"""Group normalisation and its gradient."""

from __future__ import annotations

from math import prod

import numpy as np

from ..dtypes import as_dtype
from ..shapes.checks import same_shape
from ..shapes.group_norm import check_groups
from ..shapes.norm import WITHOUT_DZ, BatchNormGradients, BatchNormResult, check_epsilon, norm_parameter_dtype
from . import _signatures as signatures
from ._definition import Arguments, Array, Float64, defined, wide


@defined(signatures.group_norm)
def group_norm(p: Arguments) -> BatchNormResult[Array]:
    """Compute ``scale * (x - mean) * invstd + bias`` of each group. See :func:`cudnn_ct.group_norm`."""
    parameters = p.required("x", "scale", "bias")
    x = parameters.pop("x")
    count, epsilon = check_groups(x, p.groups, **parameters), check_epsilon(p.epsilon)
    n, mean, invstd = _normalised_groups(wide(x), count, epsilon)
    each = (-1, *(1,) * (x.ndim - 2))
    y = n * wide(parameters["scale"]).reshape(each) + wide(parameters["bias"]).reshape(each)
    kind = as_dtype(norm_parameter_dtype(x.dtype)).numpy
    return p.deliver_each(BatchNormResult[Array], ((y, x.dtype), (mean, kind), (invstd, kind)))


@defined(signatures.group_norm_backward)
def group_norm_backward(p: Arguments) -> BatchNormGradients[Array]:
    """Compute ``invstd * (d - E(d) - n E(d n))`` by groups. See :func:`cudnn_ct.group_norm_backward`."""
    dtype, (values, gradient) = p.operands("group normalisation", "x", "dy")
    same_shape(x=values.shape, dy=gradient.shape)
    arrays = p.required("scale") | p.present("mean", "invstd")
    count, epsilon = check_groups(np.asarray(p.x), p.groups, **arrays), check_epsilon(p.epsilon)
    given = (wide(arrays["mean"]), wide(arrays["invstd"])) if "mean" in arrays else ()
    n, _, invstd = _normalised_groups(values, count, epsilon, *given)
    rows = (len(values), count, prod(values.shape[1:]) // count)
    d = gradient * wide(arrays["scale"]).reshape(-1, *(1,) * (values.ndim - 2))
    d, each = d.reshape(rows), n.reshape(rows)
    means = [one.sum(2, keepdims=True) / np.float64(rows[2]) for one in (d, d * each)]
    dx = d - means[0] - each * means[1]
    dx = (wide(invstd)[:, :, None] * dx).reshape(values.shape)
    axes = (0, *range(2, values.ndim))
    kind = as_dtype(norm_parameter_dtype(dtype)).numpy
    sums = [(one.sum(axes), kind) for one in (gradient * n, gradient)]
    return p.deliver_each(BatchNormGradients[Array], ((dx, dtype), *sums), WITHOUT_DZ)


def _normalised_groups(
    x: Float64, groups: int, epsilon: float, mean: Float64 | None = None, invstd: Float64 | None = None
) -> tuple[Float64, Float64, Float64]:
    """Return the normalised x, and the mean and the inverse deviation of each group of each image."""
    rows = x.reshape(len(x), groups, prod(x.shape[1:]) // groups)
    if mean is None or invstd is None:
        count = np.float64(rows.shape[2])  # zero in an empty image, whose mean is NaN without a warning
        mean = rows.sum(2) / count
        invstd = 1 / np.sqrt(np.square(rows - mean[:, :, None]).sum(2) / count + epsilon)
    return ((rows - mean[:, :, None]) * invstd[:, :, None]).reshape(x.shape), mean, invstd
