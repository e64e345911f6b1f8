"""The meaning of batch normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import as_dtype
from ..shapes.checks import one_dtype, same_shape
from ..shapes.norm import (
    BatchNormGradients,
    BatchNormResult,
    check_epsilon,
    check_norm_parameters,
    check_running_statistics,
    norm_activation,
    norm_axes,
    norm_parameter_dtype,
    norm_samples,
)
from ..shapes.parse import as_float
from ._cast import Array, Float64, deliver, round_once, wide

__all__ = ["batch_norm_backward", "batch_norm_inference", "batch_norm_training"]


def batch_norm_training(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    mode: Any = "spatial",
    epsilon: float = 1e-5,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    momentum: float = 0.1,
    activation: Any = None,
    z: npt.ArrayLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> BatchNormResult[Array]:
    """Compute ``act(scale * (x - mean) * invstd + bias + z)``. See :func:`cudnn_ct.batch_norm_training`."""
    x, scale, bias = np.asarray(x), np.asarray(scale), np.asarray(bias)
    epsilon, activation = check_epsilon(epsilon), norm_activation(activation)
    running = {"running_mean": running_mean, "running_var": running_var}
    updates = check_running_statistics(x.shape, mode, running_mean, running_var, momentum)
    given = {name: array for name, array in running.items() if array is not None}
    for name, array in given.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} is updated in place; it must be an array, not {array!r}")
    shape = check_norm_parameters(x, mode, scale=scale, bias=bias, **given)
    residual = None if z is None else _residual(x, np.asarray(z))

    mean, var = _statistics(x, mode)
    invstd = _inverse_root(var, epsilon)
    s, b = wide(scale).reshape(shape), wide(bias).reshape(shape)
    y = _finished(_normalised(x, mean, invstd), s, b, residual, activation)
    result = deliver(y, x.dtype, alpha, beta, out)
    samples = norm_samples(x.shape, mode)
    if updates and samples:
        momentum, unbiased = as_float(momentum, "momentum"), samples / (samples - 1)
        for array, new, factor in zip(given.values(), (mean, var), (1, unbiased), strict=True):
            deliver(new.reshape(array.shape), array.dtype, momentum * factor, 1 - momentum, array)
    dtype = as_dtype(norm_parameter_dtype(x.dtype)).numpy
    return BatchNormResult(result, round_once(mean, dtype), round_once(invstd, dtype))


def batch_norm_inference(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    bias: npt.ArrayLike,
    mean: npt.ArrayLike,
    var: npt.ArrayLike,
    *,
    mode: Any = "spatial",
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute :func:`batch_norm_training` by given statistics. See :func:`cudnn_ct.batch_norm_inference`."""
    x, epsilon = np.asarray(x), check_epsilon(epsilon)
    given = {"scale": scale, "bias": bias, "mean": mean, "var": var}
    arrays = {name: np.asarray(array) for name, array in given.items()}
    shape = check_norm_parameters(x, mode, **arrays)
    s, b, m, v = (wide(array).reshape(shape) for array in arrays.values())
    y = _finished(_normalised(x, m, _inverse_root(v, epsilon)), s, b)
    return deliver(y, x.dtype, alpha, beta, out)


def batch_norm_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    mean: npt.ArrayLike | None = None,
    invstd: npt.ArrayLike | None = None,
    *,
    mode: Any = "spatial",
    epsilon: float = 1e-5,
    activation: Any = None,
    y: npt.ArrayLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> BatchNormGradients[Array]:
    """Compute the gradients of a training step. See :func:`cudnn_ct.batch_norm_backward`.

    With ``n`` for ``(x - mean) * invstd``, and ``dz`` for ``dy`` where the activation is on ::

        dbias = sum(dz)        dscale = sum(dz * n)
        dx = alpha * scale * invstd * (dz - mean(dz) - n * mean(dz * n)) + beta * out
    """
    x, dy, scale = np.asarray(x), np.asarray(dy), np.asarray(scale)
    epsilon, activation = check_epsilon(epsilon), norm_activation(activation)
    one_dtype("batch normalisation", x=x.dtype, dy=dy.dtype)
    same_shape(x=x.shape, dy=dy.shape)
    if (mean is None) != (invstd is None):
        raise ValueError("mean and invstd must both be given, or neither")
    saved = {} if mean is None else {"mean": np.asarray(mean), "invstd": np.asarray(invstd)}
    shape = check_norm_parameters(x, mode, scale=scale, **saved)
    passed = wide(dy)
    if activation is not None:
        if y is None:
            raise ValueError(f"activation={activation!r} needs y, the result of the forward step")
        passed = np.where(_residual(x, np.asarray(y), "y") > 0, passed, 0)
    if saved:
        center, inverse = (wide(array).reshape(shape) for array in saved.values())
    else:
        center, var = _statistics(x, mode)
        inverse = _inverse_root(var, epsilon)

    dx, dscale, dbias = _gradients(x, passed, wide(scale).reshape(shape), center, inverse, mode)
    return BatchNormGradients(
        deliver(dx, x.dtype, alpha, beta, out),
        round_once(dscale.reshape(scale.shape), scale.dtype),
        round_once(dbias.reshape(scale.shape), scale.dtype),
        None if activation is None else round_once(passed, x.dtype),
    )


def batch_norm_inference_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    mean: npt.ArrayLike,
    var: npt.ArrayLike,
    *,
    mode: Any = "spatial",
    epsilon: float = 1e-5,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> BatchNormGradients[Array]:
    """Compute the gradients of inference. See :func:`cudnn_ct.batch_norm_inference_backward`."""
    x, dy, epsilon = np.asarray(x), np.asarray(dy), check_epsilon(epsilon)
    one_dtype("batch normalisation", x=x.dtype, dy=dy.dtype)
    same_shape(x=x.shape, dy=dy.shape)
    arrays = {name: np.asarray(a) for name, a in {"scale": scale, "mean": mean, "var": var}.items()}
    shape = check_norm_parameters(x, mode, **arrays)
    s, m, v = (wide(array).reshape(shape) for array in arrays.values())
    dx, dscale, dbias = _gradients_of_constants(x, wide(dy), s, m, _inverse_root(v, epsilon), mode)
    given = arrays["scale"]
    dscale, dbias = (round_once(total.reshape(given.shape), given.dtype) for total in (dscale, dbias))
    return BatchNormGradients(deliver(dx, x.dtype, alpha, beta, out), dscale, dbias, None)


def _residual(x: Array, z: Array, name: str = "z") -> Float64:
    one_dtype("batch normalisation", **{"x": x.dtype, name: z.dtype})
    same_shape(**{"x": x.shape, name: z.shape})
    return wide(z)


# NaN and infinities are data like any other, and so are means of nothing.
@np.errstate(all="ignore")
def _statistics(x: Array, mode: Any) -> tuple[Float64, Float64]:
    """Mean and variance, the latter divided by the number of samples."""
    values, axes, samples = wide(x), norm_axes(x.shape, mode), norm_samples(x.shape, mode)
    mean = values.sum(axis=axes, keepdims=True) / samples
    return mean, ((values - mean) ** 2).sum(axis=axes, keepdims=True) / samples


@np.errstate(all="ignore")
def _inverse_root(var: Float64, epsilon: float) -> Float64:
    return np.asarray(1 / np.sqrt(var + epsilon))


@np.errstate(all="ignore")
def _normalised(x: Array, mean: Float64, invstd: Float64) -> Float64:
    return np.asarray((wide(x) - mean) * invstd)


@np.errstate(all="ignore")
def _finished(
    n: Float64, scale: Float64, bias: Float64, residual: Float64 | None = None, activation: str | None = None
) -> Float64:
    y = n * scale + bias + (0 if residual is None else residual)
    return y if activation is None else np.maximum(y, 0)


@np.errstate(all="ignore")
def _gradients(
    x: Array, dy: Float64, scale: Float64, mean: Float64, invstd: Float64, mode: Any
) -> tuple[Float64, Float64, Float64]:
    axes, samples = norm_axes(x.shape, mode), norm_samples(x.shape, mode)
    n = _normalised(x, mean, invstd)
    dbias, dscale = (terms.sum(axis=axes, keepdims=True) for terms in (dy, dy * n))
    return scale * invstd * (dy - dbias / samples - n * (dscale / samples)), dscale, dbias


@np.errstate(all="ignore")
def _gradients_of_constants(
    x: Array, dy: Float64, scale: Float64, mean: Float64, invstd: Float64, mode: Any
) -> tuple[Float64, Float64, Float64]:
    axes, n = norm_axes(x.shape, mode), _normalised(x, mean, invstd)
    dbias, dscale = (terms.sum(axis=axes, keepdims=True) for terms in (dy, dy * n))
    return scale * invstd * dy, dscale, dbias
