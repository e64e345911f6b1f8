"""Batch normalisation: its problems, reduced axes, and the shape and dtype of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

from ..dtypes import as_dtype
from .checks import Outs, Specs, one_dtype, result_spec, same_shape
from .layer import describe
from .parse import as_choice, as_float
from .specs import Shape, TensorSpec, check_shape

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


def check_instance_norm_parameters(x: Any, **parameters: Any) -> Shape:
    """Return the shape of the statistics of an instance normalisation; raise unless all parameters match x.

    ``x`` and the parameters need a shape and a dtype.
    """
    shape, dtype = tuple(x.shape), norm_parameter_dtype(x.dtype)
    if not 3 <= len(shape) <= 6:
        raise ValueError(f"x has shape {shape}; instance normalisation takes 3 to 6 axes (N, C, ...)")
    statistics = (*shape[:2], *(1 for _ in shape[2:]))
    for name, parameter in parameters.items():
        needed = statistics if name in ("mean", "invstd") else shape[1:2]
        if tuple(parameter.shape) != needed:
            raise ValueError(f"{name} has shape {tuple(parameter.shape)}; x of shape {shape} needs {needed}")
        if as_dtype(parameter.dtype).name != dtype:
            raise TypeError(
                f"{name} is {as_dtype(parameter.dtype).name}; x of {as_dtype(x.dtype).name} needs {dtype}"
            )
    return statistics


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


class NormTraining(NamedTuple):
    """A training step. ``scaled`` is True unless alpha is 1 and beta 0; fused plans reject it."""

    x: TensorSpec
    scale: TensorSpec
    bias: TensorSpec
    z: TensorSpec | None
    y: TensorSpec
    mean: TensorSpec
    invstd: TensorSpec
    running_mean: TensorSpec | None
    running_var: TensorSpec | None
    mode: str
    epsilon: float
    momentum: float
    activation: str | None
    scaled: bool

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        running = (self.running_mean, self.running_var)
        return (self.y, self.mean, self.invstd, *(spec for spec in running if spec))

    @property
    def updated(self) -> int:
        """Number of results, from the end, that are also read."""
        return len(self.results) - 3

    def __str__(self) -> str:
        return describe("batch normalisation in training", self)


class NormInference(NamedTuple):
    """An inference step with given statistics."""

    x: TensorSpec
    scale: TensorSpec
    bias: TensorSpec
    mean: TensorSpec
    var: TensorSpec
    y: TensorSpec
    mode: str
    epsilon: float

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.y,)

    def __str__(self) -> str:
        return describe("batch normalisation in inference", self)


class NormGradient(NamedTuple):
    """The gradient of a training step."""

    x: TensorSpec
    dy: TensorSpec
    scale: TensorSpec
    mean: TensorSpec | None
    invstd: TensorSpec | None
    y: TensorSpec | None
    dx: TensorSpec
    dscale: TensorSpec
    dbias: TensorSpec
    dz: TensorSpec | None
    mode: str
    epsilon: float
    activation: str | None

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.dx, self.dscale, self.dbias, *([self.dz] if self.dz else []))

    def __str__(self) -> str:
        return describe("gradient of a batch normalisation", self)


def norm_training(
    specs: Specs, outs: Outs, mode: Any, epsilon: Any, momentum: Any, activation: Any, scaled: bool
) -> NormTraining:
    """Validate a training step on x, scale, bias and an optional z.

    ``outs`` are y, mean, invstd and, if given, the running statistics.
    """
    x, z = specs["x"], specs.get("z")
    running_mean, running_var = outs[3:] or (None, None)
    check_running_statistics(x.shape, mode, running_mean, running_var, momentum)
    running = {"running_mean": running_mean, "running_var": running_var}
    given = {name: spec for name, spec in running.items() if spec}
    shape = check_norm_parameters(x, mode, scale=specs["scale"], bias=specs["bias"], **given)
    if z:
        _like_x(x, z=z)
    dtype = norm_parameter_dtype(x.dtype)
    y = result_spec(x.shape, x, *([z] if z else []), out=outs[0])
    mean, invstd = (
        result_spec(shape, x, out=out, name=name, dtype=dtype)
        for out, name in zip(outs[1:3], ("mean", "invstd"), strict=True)
    )
    tensors = x, specs["scale"], specs["bias"], z, y, mean, invstd, running_mean, running_var
    numbers = check_epsilon(epsilon), as_float(momentum, "momentum")
    return NormTraining(*tensors, norm_mode(mode), *numbers, norm_activation(activation), scaled)


def norm_inference(specs: Specs, outs: Outs, mode: Any, epsilon: Any) -> NormInference:
    """Validate an inference step on x, scale, bias, mean and var."""
    x = specs["x"]
    check_norm_parameters(x, mode, **{name: spec for name, spec in specs.items() if name != "x"})
    y = result_spec(x.shape, x, out=outs[0])
    return NormInference(**specs, y=y, mode=norm_mode(mode), epsilon=check_epsilon(epsilon))


def norm_gradient(specs: Specs, outs: Outs, mode: Any, epsilon: Any, activation: Any) -> NormGradient:
    """Validate the gradient of a training step on x, dy and scale, with optional mean, invstd and y."""
    x, dy, y, activation = specs["x"], specs["dy"], specs.get("y"), norm_activation(activation)
    given = {name: specs[name] for name in ("mean", "invstd") if name in specs}
    if len(given) == 1:
        raise ValueError("mean and invstd must both be given, or neither")
    _like_x(x, dy=dy)
    scale = specs["scale"]
    check_norm_parameters(x, mode, scale=scale, **given)
    if activation and not y:
        raise ValueError(f"activation={activation!r} needs y, the result of the forward pass")
    if activation and y:
        _like_x(x, y=y)
    dx = result_spec(x.shape, x, dy, out=outs[0])
    dscale, dbias = (
        result_spec(scale.shape, scale, out=out, name=name)
        for out, name in zip(outs[1:3], ("dscale", "dbias"), strict=True)
    )
    dz = result_spec(x.shape, x, dy) if activation else None
    statistics = given.get("mean"), given.get("invstd"), y if activation else None
    params = norm_mode(mode), check_epsilon(epsilon), activation
    return NormGradient(x, dy, scale, *statistics, dx, dscale, dbias, dz, *params)


def _like_x(x: TensorSpec, **others: TensorSpec) -> None:
    one_dtype("batch normalisation", x=x.dtype, **{name: spec.dtype for name, spec in others.items()})
    same_shape(x=x.shape, **{name: spec.shape for name, spec in others.items()})
