"""Batch normalisation: its problems, reduced axes, and the shape and dtype of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from math import prod
from typing import Any, Generic, NamedTuple

from ..dtypes import as_dtype
from . import checks
from .checks import as_choice, as_float, one_dtype, result_spec, result_specs, same_shape
from .specs import Outs, Shape, Specs, T, TensorSpec, check_shape, problem_class, results_of

NORM_MODES = ("per_activation", "spatial")
INSTANCE = "instance"  # the mode of instance normalisation, which batch normalisations do not accept
NORM_ACTIVATIONS = ("relu",)
_SYNONYMS = {"spatial_persistent": "spatial"}  # cuDNN's name of a faster algorithm with the same result

WITHOUT_DZ = "without an activation dz is dy"  # why a gradient has no dz

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
    name = as_choice(mode, (*NORM_MODES, *_SYNONYMS), "mode")
    return _SYNONYMS.get(name, name)


def norm_axes(x_shape: Iterable[int], mode: Any) -> Shape:
    """Return the axes of statistics: the batch, and for ``"spatial"`` the spatial axes."""
    x = check_shape(x_shape, "x_shape")
    if isinstance(mode, str) and mode == INSTANCE:
        if not 3 <= len(x) <= 6:
            raise ValueError(f"x has shape {x}; instance normalisation takes 3 to 6 axes (N, C, ...)")
        return tuple(range(2, len(x)))
    if not 1 <= len(x) <= 6:
        raise ValueError(f"x has shape {x}; batch normalisation takes 1 to 6 axes")
    return (0, *range(2, len(x))) if norm_mode(mode) == "spatial" else (0,)


def norm_parameter_shape(x_shape: Iterable[int], mode: Any) -> Shape:
    """Return the shape of scale, bias and statistics: the shape of x, with reduced axes of length 1."""
    x = check_shape(x_shape, "x_shape")
    axes = norm_axes(x, mode)
    return tuple(1 if axis in axes else n for axis, n in enumerate(x))


def norm_samples(x_shape: Iterable[int], mode: Any) -> int:
    """Return the number of elements that one mean is computed from."""
    x = check_shape(x_shape, "x_shape")
    return prod(x[axis] for axis in norm_axes(x, mode))


def norm_parameter_dtype(x_dtype: Any) -> str:
    """Return the name of the dtype of parameters and statistics for data of ``x_dtype``."""
    return as_dtype(one_dtype("batch normalisation", x=x_dtype)).accumulate


def inference_parameter_dtype(x_dtype: Any, scale_dtype: Any) -> str:
    """Return the name of the dtype of parameters in inference, which may be that of ``x``."""
    x, scale = one_dtype("batch normalisation", x=x_dtype), as_dtype(scale_dtype).name
    return x if x == scale else norm_parameter_dtype(x)


def check_norm_parameters(x: Any, mode: Any, dtype: str = "", /, **parameters: Any) -> Shape:
    """Return the shape of the statistics of ``x``; raise unless all parameters match ``x``.

    ``x`` and the parameters need a shape and a dtype; ``dtype`` is that of the parameters. For ``"spatial"``,
    the shape (C,) is accepted as well. Scale and bias of an instance normalisation have that shape.
    """
    shape, dtype = norm_parameter_shape(x.shape, mode), dtype or norm_parameter_dtype(x.dtype)
    for name, parameter in parameters.items():
        allowed = [shape, shape[1:2]] if len(shape) > 1 else [shape]
        if mode == INSTANCE:
            allowed = allowed[:1] if name in ("mean", "invstd") else allowed[1:]
        elif norm_mode(mode) == "per_activation":
            allowed = allowed[:1]
        if tuple(parameter.shape) not in allowed:
            got, of_x = tuple(parameter.shape), tuple(x.shape)
            hint = checks.image_hint("x", of_x, prod(got)) if prod(got) == max(got, default=1) else ""
            hint = checks.swap_hint("x", name) if len(got) > len(of_x) else hint
            raise ValueError(
                f"{name} has shape {got}; x of shape {of_x} with "
                f"mode={mode!r} needs {' or '.join(map(str, allowed))}{hint}"
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


@problem_class(lambda self: f"{_kind(self.mode)} in training", "y mean invstd running_mean running_var")
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
    def updated(self) -> int:
        """Number of results, from the end, that are also read."""
        return len(results_of(self)) - 3


@problem_class("batch normalisation in inference", "y")
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


@problem_class(lambda self: f"gradient of {_kind(self.mode)}", "dx dscale dbias dz")
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


def norm_training(
    specs: Specs, outs: Outs, mode: Any, epsilon: Any, momentum: Any, activation: Any, scaled: bool
) -> NormTraining:
    """Validate a training step on x, scale, bias, maybe z; ``outs`` may have running statistics."""
    name = norm_mode(mode)
    running_mean, running_var = outs[3:] or (None, None)
    check_running_statistics(specs["x"].shape, name, running_mean, running_var, momentum)
    return _training(specs, outs, name, epsilon, as_float(momentum, "momentum"), activation, scaled)


def instance_norm_training(specs: Specs, outs: Outs, epsilon: Any) -> NormTraining:
    """Validate an instance normalisation of x with scale and bias; ``outs`` are y, mean and invstd."""
    return _training(specs, outs, INSTANCE, epsilon, 1.0, None, scaled=True)


def _training(
    specs: Specs, outs: Outs, mode: str, epsilon: Any, momentum: float, activation: Any, scaled: bool
) -> NormTraining:
    x, scale, bias, z = specs["x"], specs["scale"], specs["bias"], specs.get("residual")
    running_mean, running_var = outs[3:] or (None, None)
    parameters = {"scale": scale, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    shape = check_norm_parameters(x, mode, **{name: spec for name, spec in parameters.items() if spec})
    if z:
        _like_x(x, residual=z)
    y = result_spec(x.shape, x, *([z] if z else []), out=outs[0])
    mean, invstd = result_specs(("mean", "invstd"), outs[1:3], shape, x, scale.dtype)
    tensors = x, scale, bias, z, y, mean, invstd, running_mean, running_var
    return NormTraining(*tensors, mode, check_epsilon(epsilon), momentum, norm_activation(activation), scaled)


def norm_inference(specs: Specs, outs: Outs, mode: Any, epsilon: Any) -> NormInference:
    """Validate an inference step on x, scale, bias, mean and var."""
    x, name = specs["x"], norm_mode(mode)
    parameters = {tensor: spec for tensor, spec in specs.items() if tensor != "x"}
    dtype = inference_parameter_dtype(x.dtype, specs["scale"].dtype)
    check_norm_parameters(x, name, dtype, **parameters)
    y = result_spec(x.shape, x, out=outs[0])
    return NormInference(**specs, y=y, mode=name, epsilon=check_epsilon(epsilon))


def norm_gradient(specs: Specs, outs: Outs, mode: Any, epsilon: Any, activation: Any) -> NormGradient:
    """Validate the gradient of a training step on x, dy and scale, with optional mean, invstd and y."""
    return _gradient(specs, outs, norm_mode(mode), epsilon, norm_activation(activation))


def instance_norm_gradient(specs: Specs, outs: Outs, epsilon: Any) -> NormGradient:
    """Validate the gradient of an instance normalisation: ``dscale`` and ``dbias`` are for each image."""
    return _gradient(specs, outs, INSTANCE, epsilon, None)


def _gradient(specs: Specs, outs: Outs, mode: str, epsilon: Any, activation: str | None) -> NormGradient:
    x, dy, scale, y = specs["x"], specs["dy"], specs["scale"], specs.get("y")
    given = {name: specs[name] for name in ("mean", "invstd") if name in specs}
    if len(given) == 1:
        raise ValueError("mean and invstd must both be given, or neither")
    _like_x(x, dy=dy)
    check_norm_parameters(x, mode, scale=scale, **given)
    if activation and not y:
        raise ValueError(f"activation={activation!r} needs y, the result of the forward pass")
    if activation and y:
        _like_x(x, y=y)
    dx = result_spec(x.shape, x, dy, out=outs[0])
    parameter_shape = x.shape[:2] if mode == INSTANCE else scale.shape
    dscale, dbias = result_specs(("dscale", "dbias"), outs[1:3], parameter_shape, scale)
    dz = result_spec(x.shape, x, dy, out=outs[3], name="dz of out") if activation else None
    statistics = given.get("mean"), given.get("invstd"), y if activation else None
    params = mode, check_epsilon(epsilon), activation
    return NormGradient(x, dy, scale, *statistics, dx, dscale, dbias, dz, *params)


def _kind(mode: str) -> str:
    return "instance normalisation" if mode == INSTANCE else "batch normalisation"


def _like_x(x: TensorSpec, **others: TensorSpec) -> None:
    one_dtype("batch normalisation", x=x.dtype, **{name: spec.dtype for name, spec in others.items()})
    same_shape(x=x.shape, **{name: spec.shape for name, spec in others.items()})
