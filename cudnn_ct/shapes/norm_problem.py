"""Batch normalisation problems: training, inference and gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

from .checks import one_dtype, result_spec, same_shape
from .norm import (
    check_epsilon,
    check_norm_parameters,
    check_running_statistics,
    norm_activation,
    norm_mode,
    norm_parameter_dtype,
)
from .parse import as_float
from .specs import TensorSpec


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
        also = [f"z {self.z}"] if self.z else []
        also += [f"activation {self.activation}"] if self.activation else []
        also += [f"running statistics with momentum {self.momentum}"] if self.updated else []
        return ", ".join([f"batch normalisation in training: {_describe(self)}", f"y {self.y}", *also])


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
        return f"batch normalisation in inference: {_describe(self)}, y {self.y}"


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
        also = [] if self.mean else ["statistics of x"]
        also += [f"y {self.y}, activation {self.activation}"] if self.activation else []
        return ", ".join(
            [f"gradient of a batch normalisation: {_describe(self)}", f"dy {self.dy}", f"dx {self.dx}", *also]
        )


Specs = dict[str, TensorSpec]
Outs = tuple[TensorSpec | None, ...]


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
    return NormTraining(
        x,
        specs["scale"],
        specs["bias"],
        z,
        result_spec(x.shape, x, *([z] if z else []), out=outs[0]),
        result_spec(shape, x, out=outs[1], name="mean", dtype=dtype),
        result_spec(shape, x, out=outs[2], name="invstd", dtype=dtype),
        running_mean,
        running_var,
        norm_mode(mode),
        check_epsilon(epsilon),
        as_float(momentum, "momentum"),
        norm_activation(activation),
        scaled,
    )


def norm_inference(specs: Specs, outs: Outs, mode: Any, epsilon: Any) -> NormInference:
    """Validate an inference step on x, scale, bias, mean and var."""
    x = specs["x"]
    check_norm_parameters(x, mode, **{name: spec for name, spec in specs.items() if name != "x"})
    y = result_spec(x.shape, x, out=outs[0])
    return NormInference(**specs, y=y, mode=norm_mode(mode), epsilon=check_epsilon(epsilon))


def norm_gradient(specs: Specs, outs: Outs, mode: Any, epsilon: Any, activation: Any) -> NormGradient:
    """Validate the gradient of a training step on x, dy and scale, with optional mean, invstd and y."""
    x, y, activation = specs["x"], specs.get("y"), norm_activation(activation)
    given = {name: specs[name] for name in ("mean", "invstd") if name in specs}
    if len(given) == 1:
        raise ValueError("mean and invstd must both be given, or neither")
    _like_x(x, dy=specs["dy"])
    scale = specs["scale"]
    check_norm_parameters(x, mode, scale=scale, **given)
    if activation and not y:
        raise ValueError(f"activation={activation!r} needs y, the result of the forward pass")
    if activation and y:
        _like_x(x, y=y)
    return NormGradient(
        x,
        specs["dy"],
        scale,
        given.get("mean"),
        given.get("invstd"),
        y if activation else None,
        result_spec(x.shape, x, specs["dy"], out=outs[0]),
        result_spec(scale.shape, scale, out=outs[1], name="dscale"),
        result_spec(scale.shape, scale, out=outs[2], name="dbias"),
        result_spec(x.shape, x, specs["dy"]) if activation else None,
        norm_mode(mode),
        check_epsilon(epsilon),
        activation,
    )


def _like_x(x: TensorSpec, **others: TensorSpec) -> None:
    one_dtype("batch normalisation", x=x.dtype, **{name: spec.dtype for name, spec in others.items()})
    same_shape(x=x.shape, **{name: spec.shape for name, spec in others.items()})


def _describe(problem: NormTraining | NormInference | NormGradient) -> str:
    return f"x {problem.x}, scale {problem.scale}, mode {problem.mode}, epsilon {problem.epsilon}"
