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
    """Normalise a batch by its own mean and variance, then scale and shift it; each result is rounded once.

    With ``mean`` and ``var`` (divided by the number of samples m, not m - 1) of the batch ::

        y = alpha * act(scale * (x - mean) / sqrt(var + epsilon) + bias + z) + beta * out
        running_mean = running_mean * (1 - momentum) + mean * momentum
        running_var = running_var * (1 - momentum) + m / (m - 1) * var * momentum

    Parameters
    ----------
    x : array, 1 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
    scale, bias : array, shape (C,) or (1, C, 1, ...); (1, C, ...) for "per_activation"
        float32 for half types, else of the dtype of ``x``.
    mode : "spatial" or "per_activation"
        Whether a mean is over the batch and all that follows the channels, or over the batch alone.
    epsilon : float, at least 0
    running_mean, running_var : array, shape and dtype of ``scale``, both or neither
        Updated in place, if there is a sample at all.
    momentum : float, 0 to 1
    activation : "relu", optional
    z : array, shape and dtype of ``x``, optional
        A residual, added before the activation.
    alpha, beta : float
    out : array, shape and dtype of ``x``, optional
        Written and returned as y. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    BatchNormResult
        ``y``, as ``x``; ``mean`` and ``invstd = 1 / sqrt(var + epsilon)``, in the dtype of the parameters,
        with the axes of ``x``, those that the mean is over of length 1. The mean of no samples is NaN.

    Raises
    ------
    TypeError
        A dtype is not the one that is needed.
    ValueError
        Shapes or parameters do not fit; the message has the numbers. Also where a running variance is asked
        for of one sample, which has no unbiased variance.

    Examples
    --------
    >>> x = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> y, mean, invstd = batch_norm_training(x, np.ones(2), np.array([0.0, 5.0]), epsilon=0)
    >>> y
    array([[-1.,  4.],
           [ 1.,  6.]])
    >>> mean, invstd
    (array([[ 2., 20.]]), array([[1. , 0.1]]))
    """
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
    """Compute ``alpha * (scale * (x - mean) / sqrt(var + epsilon) + bias) + beta * out``, rounded once.

    Parameters
    ----------
    x : array, 1 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
    scale, bias, mean, var : array, shape (C,) or (1, C, 1, ...); (1, C, ...) for "per_activation"
        float32 for half types, else of the dtype of ``x``.
    mode, epsilon, alpha, beta, out
        As in :func:`batch_norm_training`.

    Returns
    -------
    array, shape and dtype of ``x``

    Raises
    ------
    TypeError, ValueError
        As in :func:`batch_norm_training`.

    Examples
    --------
    >>> one = np.ones(1)
    >>> batch_norm_inference(np.array([[7.0], [9.0]]), 4 * one, one, 5 * one, 4 * one, epsilon=0)
    array([[5.],
           [9.]])
    """
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
    """Compute the gradients of :func:`batch_norm_training`, in float64, each rounded once at the end.

    With ``n`` for ``(x - mean) * invstd``, sums and means over the samples, and ``dz`` for ``dy`` where the
    activation let something through, ``dy`` without activation ::

        dbias = sum(dz)        dscale = sum(dz * n)
        dx = alpha * scale * invstd * (dz - mean(dz) - n * mean(dz * n)) + beta * out

    Parameters
    ----------
    dy : array, shape and dtype of ``x``
    x : array, 1 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
    scale : array, shape (C,) or (1, C, 1, ...); (1, C, ...) for "per_activation"
        float32 for half types, else of the dtype of ``x``.
    mean, invstd : array, as ``scale``, both or neither
        What the forward step gave; by default reckoned from ``x`` with ``epsilon``.
    y : array, shape and dtype of ``x``
        What the forward step gave, not scaled; needed for an activation, which was off where it is 0.
    mode, epsilon, activation
        As in :func:`batch_norm_training`.
    alpha, beta, out
        As there, for dx.

    Returns
    -------
    BatchNormGradients
        ``dx``, as ``x``; ``dscale`` and ``dbias``, as ``scale``; ``dz``, as ``x``: the gradient of the
        residual, None without activation, where it is ``dy``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`batch_norm_training`; also where only one of ``mean`` and ``invstd`` is given, or an
        activation without ``y``.

    Examples
    --------
    >>> x, dy = np.array([[1.0], [3.0], [5.0]]), np.array([[0.0], [0.0], [6.0]])
    >>> dx, dscale, dbias, dz = batch_norm_backward(dy, x, np.ones(1))
    >>> dbias, dz
    (array([6.]), None)
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
    """Compute the gradients of :func:`batch_norm_inference`, in float64, each rounded once at the end.

    With sums over the samples ::

        dbias = sum(dy)        dscale = sum(dy * (x - mean) / sqrt(var + epsilon))
        dx = alpha * scale * dy / sqrt(var + epsilon) + beta * out

    Parameters
    ----------
    dy : array, shape and dtype of ``x``
    x : array, 1 to 6 axes, shape (N, C, ...), float16 | bfloat16 | float32 | float64
    scale, mean, var : array, shape (C,) or (1, C, 1, ...); (1, C, ...) for "per_activation"
        float32 for half types, else of the dtype of ``x``.
    mode, epsilon, alpha, beta, out
        As in :func:`batch_norm_inference`, the last three for dx.

    Returns
    -------
    BatchNormGradients
        ``dx``, as ``x``; ``dscale`` and ``dbias``, as ``scale``; ``dz`` is None.

    Raises
    ------
    TypeError, ValueError
        As in :func:`batch_norm_inference`.

    Examples
    --------
    >>> x, one = np.array([[7.0], [9.0]]), np.ones(1)
    >>> batch_norm_inference_backward(np.ones((2, 1)), x, one, 5 * one, 4 * one, epsilon=0).dscale
    array([3.])
    """
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
