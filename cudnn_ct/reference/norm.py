"""Batch, instance and group normalisation, and their gradients."""

from __future__ import annotations

from math import prod
from typing import Any, Literal, Never

import numpy as np
from numpy.typing import ArrayLike

from .._hints import UNSET, corrected, known_keywords
from ..dtypes import as_dtype
from ..shapes import norm as rules
from ..shapes.checks import same_shape
from ..shapes.group_norm import check_groups
from ..shapes.norm import BatchNormGradients, BatchNormResult
from ..shapes.parse import as_float
from ..typing import NormMode
from ._cast import Array, Float64, Outs, Result, deliver, deliver_each, operands, present, required, wide


@known_keywords
def batch_norm_training(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *more: Never,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    momentum: float = 0.1,
    activation: Literal["relu"] | None = None,
    residual: ArrayLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: Outs | None = None,
    **unknown: Never,
) -> BatchNormResult[Array]:
    """Normalise by batch statistics, add and activate. See :func:`cudnn_ct.batch_norm_training`."""
    if more or unknown or x is UNSET or scale is UNSET or bias is UNSET:
        return corrected(batch_norm_training, locals())
    x = required(x=x)["x"]
    epsilon, function = rules.check_epsilon(epsilon), rules.norm_activation(activation)
    updates = rules.check_running_statistics(x.shape, mode, running_mean, running_var, momentum)
    running = {"running_mean": running_mean, "running_var": running_var} if updates else {}
    for name, array in running.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} is updated in place; it must be an array, not {array!r}")
    s, b, *_ = _parameters(x, mode, scale=scale, bias=bias, **running)
    added = 0 if residual is None else _like(x, residual=residual)

    mean, var = _statistics(x, mode)
    invstd = 1 / np.sqrt(var + epsilon)
    y = (wide(x) - mean) * invstd * s + b + added
    dtype = as_dtype(rules.norm_parameter_dtype(x.dtype)).numpy
    results = (y if function is None else np.maximum(y, 0), x.dtype), (mean, dtype), (invstd, dtype)
    step = deliver_each(BatchNormResult[Array], results, alpha, beta, out)
    samples = rules.norm_samples(x.shape, mode)
    if running_mean is not None and running_var is not None and samples:
        momentum = as_float(momentum, "momentum")
        for array, new in ((running_mean, mean), (running_var, var * samples / (samples - 1))):
            deliver(new.reshape(array.shape), array.dtype, momentum, 1 - momentum, array)
    return step


def batch_norm_inference(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    *,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute :func:`batch_norm_training` by given statistics. See :func:`cudnn_ct.batch_norm_inference`."""
    x, scale = required(x=x, scale=scale).values()
    kind, epsilon = rules.inference_parameter_dtype(x.dtype, scale.dtype), rules.check_epsilon(epsilon)
    s, b, m, v = _parameters(x, mode, kind, scale=scale, bias=bias, mean=mean, var=var)
    return deliver((wide(x) - m) / np.sqrt(v + epsilon) * s + b, x.dtype, alpha, beta, out)


def batch_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike | None = None,
    invstd: ArrayLike | None = None,
    *,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    activation: Literal["relu"] | None = None,
    y: ArrayLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: Outs | None = None,
) -> BatchNormGradients[Array]:
    """Compute ``scale * invstd * (dy - E(dy) - n * E(dy * n))``. See :func:`cudnn_ct.batch_norm_backward`."""
    _, x, scale = required(dy=dy, x=x, scale=scale).values()
    epsilon, function = rules.check_epsilon(epsilon), rules.norm_activation(activation)
    dz = _like(x, dy=dy)
    if (mean is None) != (invstd is None):
        raise ValueError("mean and invstd must both be given, or neither")
    if mean is None:
        (s,) = _parameters(x, mode, scale=scale)
        m, var = _statistics(x, mode)
        i = 1 / np.sqrt(var + epsilon)
    else:
        s, m, i = _parameters(x, mode, scale=scale, mean=mean, invstd=invstd)
    if function is not None:
        if y is None:
            raise ValueError(f"activation={activation!r} needs y, the result of the forward step")
        dz = np.where(_like(x, y=y) > 0, dz, 0)

    n, samples = (wide(x) - m) * i, rules.norm_samples(x.shape, mode)
    dscale, dbias = _parameter_gradients(dz, n, mode)
    dx = s * i * (dz - dbias / samples - n * (dscale / samples))
    results = ((dx, x.dtype), *_like_scale(scale, dscale, dbias), (dz, x.dtype))
    absent = rules.WITHOUT_DZ if function is None else ""
    return deliver_each(BatchNormGradients[Array], results, alpha, beta, out, absent=absent)


def batch_norm_inference_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    *,
    mode: NormMode = "spatial",
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: Outs | None = None,
) -> BatchNormGradients[Array]:
    """Compute the gradients of inference. See :func:`cudnn_ct.batch_norm_inference_backward`."""
    _, x, scale = required(dy=dy, x=x, scale=scale).values()
    epsilon = rules.check_epsilon(epsilon)
    dz = _like(x, dy=dy)
    s, m, v = _parameters(x, mode, scale=scale, mean=mean, var=var)
    i = 1 / np.sqrt(v + epsilon)
    dscale, dbias = _parameter_gradients(dz, (wide(x) - m) * i, mode)
    results = ((s * i * dz, x.dtype), *_like_scale(scale, dscale, dbias))
    return deliver_each(BatchNormGradients[Array], results, alpha, beta, out, absent=rules.WITHOUT_DZ)


def _like_scale(scale: Array, *sums: Float64) -> list[Result]:
    """Return the gradients of parameters with the shape of scale, and its dtype."""
    return [(one.reshape(scale.shape), scale.dtype) for one in sums]


def _like(x: Array, **named: ArrayLike) -> Float64:
    """Return an operand that must have the dtype and shape of x."""
    _, (_, array) = operands("batch normalisation", x=x, **named)
    same_shape(x=x.shape, **dict.fromkeys(named, array.shape))
    return array


def _parameters(x: Array, mode: Any, dtype: str = "", /, **parameters: ArrayLike | None) -> list[Float64]:
    """Return parameters in shapes that broadcast to x."""
    arrays = required(**parameters)
    shape = rules.check_norm_parameters(x, rules.norm_mode(mode), dtype, **arrays)
    return [wide(array).reshape(shape) for array in arrays.values()]


def _statistics(x: Array, mode: Any) -> tuple[Float64, Float64]:
    """Return mean and variance, the latter divided by the number of samples."""
    values, axes, samples = wide(x), rules.norm_axes(x.shape, mode), rules.norm_samples(x.shape, mode)
    mean = values.sum(axis=axes, keepdims=True) / samples
    return mean, ((values - mean) ** 2).sum(axis=axes, keepdims=True) / samples


def _parameter_gradients(dz: Float64, n: Float64, mode: Any) -> tuple[Float64, Float64]:
    axes = rules.norm_axes(dz.shape, mode)
    return (dz * n).sum(axis=axes, keepdims=True), dz.sum(axis=axes, keepdims=True)


# --- instance normalisation and its gradients --------------------------------------------------------------


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
    shape = rules.check_norm_parameters(x, rules.INSTANCE, **parameters)
    scale, bias = (np.tile(wide(array), x.shape[0]) for array in parameters.values())
    step = batch_norm_training(_one_image(wide(x)), scale, bias, epsilon=epsilon)
    dtype = as_dtype(rules.norm_parameter_dtype(x.dtype)).numpy
    statistics = [(array.reshape(shape), dtype) for array in step[1:]]
    results = ((step.y.reshape(x.shape), x.dtype), *statistics)
    return deliver_each(BatchNormResult[Array], results, alpha, beta, out)


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
    rules.check_norm_parameters(np.asarray(x), rules.INSTANCE, **arrays)
    tiled = np.tile(wide(arrays.pop("scale")), values.shape[0])
    statistics: dict[str, Any] = {name: wide(array).reshape(-1) for name, array in arrays.items()}
    step = batch_norm_backward(_one_image(gradient), _one_image(values), tiled, **statistics, epsilon=epsilon)
    kind = as_dtype(rules.norm_parameter_dtype(dtype)).numpy
    sums = [(array.reshape(values.shape[:2]).sum(0), kind) for array in (step.dscale, step.dbias)]
    results = ((step.dx.reshape(values.shape), dtype), *sums)
    return deliver_each(BatchNormGradients[Array], results, alpha, beta, out, absent=rules.WITHOUT_DZ)


def group_norm(
    x: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *,
    groups: int = 1,
    epsilon: float = 1e-5,
    out: Outs | None = None,
) -> BatchNormResult[Array]:
    """Compute ``scale * (x - mean) * invstd + bias`` of each group. See :func:`cudnn_ct.group_norm`."""
    parameters = required(x=x, scale=scale, bias=bias)
    x = parameters.pop("x")
    count, epsilon = check_groups(x, groups, **parameters), rules.check_epsilon(epsilon)
    n, mean, invstd = _normalised_groups(wide(x), count, epsilon)
    each = (-1, *(1,) * (x.ndim - 2))
    y = n * wide(parameters["scale"]).reshape(each) + wide(parameters["bias"]).reshape(each)
    kind = as_dtype(rules.norm_parameter_dtype(x.dtype)).numpy
    return deliver_each(BatchNormResult[Array], ((y, x.dtype), (mean, kind), (invstd, kind)), 1, 0, out)


def group_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike | None = None,
    invstd: ArrayLike | None = None,
    *,
    groups: int = 1,
    epsilon: float = 1e-5,
    out: Outs | None = None,
) -> BatchNormGradients[Array]:
    """Compute ``invstd * (d - E(d) - n E(d n))`` by groups. See :func:`cudnn_ct.group_norm_backward`."""
    dtype, (values, gradient) = operands("group normalisation", x=x, dy=dy)
    same_shape(x=values.shape, dy=gradient.shape)
    arrays = required(scale=scale) | present(mean=mean, invstd=invstd)
    count, epsilon = check_groups(np.asarray(x), groups, **arrays), rules.check_epsilon(epsilon)
    given = (wide(arrays["mean"]), wide(arrays["invstd"])) if "mean" in arrays else ()
    n, _, invstd = _normalised_groups(values, count, epsilon, *given)
    rows = (len(values), count, prod(values.shape[1:]) // count)
    d = gradient * wide(arrays["scale"]).reshape(-1, *(1,) * (values.ndim - 2))
    d, each = d.reshape(rows), n.reshape(rows)
    means = [one.sum(2, keepdims=True) / np.float64(rows[2]) for one in (d, d * each)]
    dx = d - means[0] - each * means[1]
    dx = (wide(invstd)[:, :, None] * dx).reshape(values.shape)
    axes = (0, *range(2, values.ndim))
    kind = as_dtype(rules.norm_parameter_dtype(dtype)).numpy
    sums = [(one.sum(axes), kind) for one in (gradient * n, gradient)]
    return deliver_each(BatchNormGradients[Array], ((dx, dtype), *sums), 1, 0, out, absent=rules.WITHOUT_DZ)


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


def _one_image(x: Float64) -> Float64:
    n, channels, *size = x.shape
    return x.reshape(1, n * channels, *size)
