"""Rules of batch normalisation: reduced axes, and the shape and dtype of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

from ..dtypes import as_dtype
from .checks import one_dtype
from .parse import as_choice, as_float
from .specs import Shape, check_shape

T = TypeVar("T")

NORM_MODES = ("per_activation", "spatial")
NORM_ACTIVATIONS = ("relu",)
_SYNONYMS = {"spatial_persistent": "spatial"}  # cuDNN's name of a faster algorithm with the same result

NORM_MIN_EPSILON = 0.0  # CUDNN_BN_MIN_EPSILON


class BatchNormResult(NamedTuple, Generic[T]):
    """Result of a training step of batch normalisation, and the statistics of the batch.

    ``mean`` and ``invstd`` (``1 / sqrt(variance + epsilon)``) have the shape :func:`norm_parameter_shape`
    and are inputs of the backward pass.
    """

    y: T
    mean: T
    invstd: T


class BatchNormGradients(NamedTuple, Generic[T]):
    """Gradients of the input, of scale and bias, and, if an activation is fused, of the residual."""

    dx: T
    dscale: T
    dbias: T
    dz: T | None


def norm_mode(mode: Any) -> str:
    """Return the mode as one of :data:`NORM_MODES`.

    >>> norm_mode("spatial")
    'spatial'
    """
    name = as_choice(mode, (*NORM_MODES, *_SYNONYMS), "mode")
    return _SYNONYMS.get(name, name)


def norm_axes(x_shape: Iterable[int], mode: Any) -> Shape:
    """Return the axes that statistics are computed over: the batch, and for ``"spatial"`` the spatial axes.

    >>> norm_axes((8, 64, 7, 7), "spatial")
    (0, 2, 3)
    """
    x = check_shape(x_shape, "x_shape")
    if not 1 <= len(x) <= 6:
        raise ValueError(f"x has shape {x}; batch normalisation takes 1 to 6 axes")
    return (0, *range(2, len(x))) if norm_mode(mode) == "spatial" else (0,)


def norm_parameter_shape(x_shape: Iterable[int], mode: Any) -> Shape:
    """Return the shape of scale, bias and statistics: the shape of x, with reduced axes of length 1.

    >>> norm_parameter_shape((8, 64, 7, 7), "spatial")
    (1, 64, 1, 1)
    >>> norm_parameter_shape((8, 64, 7, 7), "per_activation")
    (1, 64, 7, 7)
    """
    x = check_shape(x_shape, "x_shape")
    axes = norm_axes(x, mode)
    return tuple(1 if axis in axes else n for axis, n in enumerate(x))


def norm_samples(x_shape: Iterable[int], mode: Any) -> int:
    """Return the number of elements that one mean is computed from.

    >>> norm_samples((8, 64, 7, 7), "spatial")
    392
    """
    x = check_shape(x_shape, "x_shape")
    return prod(x[axis] for axis in norm_axes(x, mode))


def norm_parameter_dtype(x_dtype: Any) -> str:
    """Return the name of the dtype of parameters and statistics for data of ``x_dtype``.

    >>> norm_parameter_dtype("float16")
    'float32'
    """
    return as_dtype(one_dtype("batch normalisation", x=x_dtype)).accumulate


def check_norm_parameters(x: Any, mode: Any, **parameters: Any) -> Shape:
    """Return the shape in which parameters broadcast to ``x``; raise unless all of them match ``x``.

    ``x`` and the parameters need a shape and a dtype. For ``"spatial"``, the shape (C,) is accepted as well.
    """
    shape, dtype = norm_parameter_shape(x.shape, mode), norm_parameter_dtype(x.dtype)
    allowed = [shape]
    if norm_mode(mode) == "spatial" and len(shape) > 1:
        allowed.append(shape[1:2])
    for name, parameter in parameters.items():
        if tuple(parameter.shape) not in allowed:
            raise ValueError(
                f"{name} has shape {tuple(parameter.shape)}; x of shape {tuple(x.shape)} with "
                f"mode={norm_mode(mode)!r} needs {' or '.join(map(str, allowed))}"
            )
        if as_dtype(parameter.dtype).name != dtype:
            raise TypeError(
                f"{name} is {as_dtype(parameter.dtype).name}; x of {as_dtype(x.dtype).name} needs {dtype}"
            )
    return shape


def check_running_statistics(x_shape: Iterable[int], mode: Any, mean: Any, var: Any, momentum: Any) -> bool:
    """Return whether running statistics are updated; raise if they cannot be."""
    if (mean is None) != (var is None):
        missing, given = ("running_mean", "running_var") if mean is None else ("running_var", "running_mean")
        raise ValueError(f"{given} is given without {missing}; both are updated, or neither")
    if not 0 <= as_float(momentum, "momentum") <= 1:
        raise ValueError(f"momentum must be between 0 and 1: got {momentum}")
    if mean is None:
        return False
    x = check_shape(x_shape, "x_shape")
    if norm_samples(x, mode) == 1:
        raise ValueError(
            f"running_var takes the unbiased variance, which one sample does not have: x of shape {x} with "
            f"mode={norm_mode(mode)!r} has one sample per parameter"
        )
    return True


def check_epsilon(epsilon: Any) -> float:
    """Return epsilon, the term added to a variance, as a float."""
    value = as_float(epsilon, "epsilon")
    if not NORM_MIN_EPSILON <= value < math.inf:
        raise ValueError(f"epsilon must be at least {NORM_MIN_EPSILON:g} and finite: got {epsilon}")
    return value


def norm_activation(activation: Any) -> str | None:
    """Return the activation fused into batch normalisation, one of :data:`NORM_ACTIVATIONS`, or None."""
    return None if activation is None else as_choice(activation, NORM_ACTIVATIONS, "activation")
