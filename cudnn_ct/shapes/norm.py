"""The rules of batch normalisation: over which axes, parameters of what shape and dtype."""

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
_SYNONYMS = {"spatial_persistent": "spatial"}  # cuDNN's name of a faster way to the same

NORM_MIN_EPSILON = 0.0  # cuDNN's limit


class BatchNormResult(NamedTuple, Generic[T]):
    """Result of a training step of batch normalisation, and the statistics of the batch.

    ``mean`` and ``invstd``, which is ``1 / sqrt(variance + epsilon)``, have the shape
    :func:`norm_parameter_shape`; the backward step takes them.
    """

    y: T
    mean: T
    invstd: T


class BatchNormGradients(NamedTuple, Generic[T]):
    """Gradients with regard to the input, to scale and bias, and, with an activation, to the residual."""

    dx: T
    dscale: T
    dbias: T
    dz: T | None


def norm_mode(mode: Any) -> str:
    """The mode by its name in :data:`NORM_MODES`.

    >>> norm_mode("spatial")
    'spatial'
    """
    name = as_choice(mode, (*NORM_MODES, *_SYNONYMS), "mode")
    return _SYNONYMS.get(name, name)


def norm_axes(x_shape: Iterable[int], mode: Any) -> Shape:
    """The axes that statistics are taken over: the batch, with ``"spatial"`` also what follows the channels.

    >>> norm_axes((8, 64, 7, 7), "spatial")
    (0, 2, 3)
    """
    x = check_shape(x_shape, "x_shape")
    if not 1 <= len(x) <= 6:
        raise ValueError(f"x has shape {x}; batch normalisation takes 1 to 6 axes")
    return (0, *range(2, len(x))) if norm_mode(mode) == "spatial" else (0,)


def norm_parameter_shape(x_shape: Iterable[int], mode: Any) -> Shape:
    """Shape of scale, bias and the statistics: that of x with 1 for each axis of the statistics.

    >>> norm_parameter_shape((8, 64, 7, 7), "spatial")
    (1, 64, 1, 1)
    >>> norm_parameter_shape((8, 64, 7, 7), "per_activation")
    (1, 64, 7, 7)
    """
    x = check_shape(x_shape, "x_shape")
    axes = norm_axes(x, mode)
    return tuple(1 if axis in axes else n for axis, n in enumerate(x))


def norm_samples(x_shape: Iterable[int], mode: Any) -> int:
    """The number of elements that each mean is of.

    >>> norm_samples((8, 64, 7, 7), "spatial")
    392
    """
    x = check_shape(x_shape, "x_shape")
    return prod(x[axis] for axis in norm_axes(x, mode))


def norm_parameter_dtype(x_dtype: Any) -> str:
    """Name of the dtype that parameters and statistics have beside data of ``x_dtype``.

    >>> norm_parameter_dtype("float16")
    'float32'
    """
    return as_dtype(one_dtype("batch normalisation", x=x_dtype)).accumulate


def check_norm_parameters(x: Any, mode: Any, **parameters: Any) -> Shape:
    """Raise unless all parameters fit ``x``, and return the shape in which they can be broadcast to it.

    ``x`` and the parameters are anything with a shape and a dtype. With ``"spatial"``, (C,) will do as well.
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
    """Whether there are running statistics to update; raise where they cannot be."""
    if (mean is None) != (var is None):
        missing, given = ("running_mean", "running_var") if mean is None else ("running_var", "running_mean")
        raise ValueError(f"{given} is given without {missing}; both are updated, or neither")
    if not 0 <= as_float(momentum, "momentum") <= 1:
        raise ValueError(f"momentum must be between 0 and 1, got {momentum}")
    if mean is None:
        return False
    x = check_shape(x_shape, "x_shape")
    if norm_samples(x, mode) == 1:
        raise ValueError(
            f"running_var takes the unbiased variance, which one sample does not have: x of shape {x} with "
            f"mode={norm_mode(mode)!r} has one for each parameter"
        )
    return True


def check_epsilon(epsilon: Any) -> float:
    """Return what is added to a variance as a float."""
    value = as_float(epsilon, "epsilon")
    if not NORM_MIN_EPSILON <= value < math.inf:
        raise ValueError(f"epsilon must be at least {NORM_MIN_EPSILON:g} and finite, got {epsilon}")
    return value


def norm_activation(activation: Any) -> str | None:
    """The name of what follows a batch normalisation, in :data:`NORM_ACTIVATIONS`, or None."""
    return None if activation is None else as_choice(activation, NORM_ACTIVATIONS, "activation")
