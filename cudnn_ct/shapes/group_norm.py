"""Group normalisation: its problems, and the shapes of parameters and statistics."""

from __future__ import annotations

from typing import Any, NamedTuple

from .checks import as_int, one_dtype, result_spec, result_specs, same_shape
from .norm import check_epsilon, norm_parameter_dtype
from .specs import Outs, Shape, Specs, TensorSpec, problem_class


@problem_class("group normalisation", "y mean invstd")
class GroupNorm(NamedTuple):
    """A group normalisation, with the statistics of each group of each image."""

    x: TensorSpec
    scale: TensorSpec
    bias: TensorSpec
    y: TensorSpec
    mean: TensorSpec
    invstd: TensorSpec
    groups: int
    epsilon: float


@problem_class("gradient of group normalisation", "dx dscale dbias")
class GroupNormGradient(NamedTuple):
    """The gradients of a group normalisation; statistics that are None are computed again."""

    x: TensorSpec
    dy: TensorSpec
    scale: TensorSpec
    mean: TensorSpec | None
    invstd: TensorSpec | None
    dx: TensorSpec
    dscale: TensorSpec
    dbias: TensorSpec
    groups: int
    epsilon: float


def group_norm(specs: Specs, outs: Outs, groups: Any, epsilon: Any) -> GroupNorm:
    """Validate a group normalisation of x with scale and bias; ``outs`` are y, mean and invstd."""
    x, scale, bias = specs["x"], specs["scale"], specs["bias"]
    count = check_groups(x, groups, scale=scale, bias=bias)
    y = result_spec(x.shape, x, out=outs[0])
    mean, invstd = result_specs(("mean", "invstd"), outs[1:], (x.shape[0], count), scale)
    return GroupNorm(x, scale, bias, y, mean, invstd, count, check_epsilon(epsilon))


def group_norm_gradient(specs: Specs, outs: Outs, groups: Any, epsilon: Any) -> GroupNormGradient:
    """Validate the gradients of a group normalisation; ``outs`` are dx, dscale and dbias."""
    x, dy, scale = specs["x"], specs["dy"], specs["scale"]
    statistics = {name: specs[name] for name in ("mean", "invstd") if name in specs}
    one_dtype("group normalisation", x=x.dtype, dy=dy.dtype)
    same_shape(x=x.shape, dy=dy.shape)
    count = check_groups(x, groups, scale=scale, **statistics)
    dx = result_spec(x.shape, x, dy, out=outs[0])
    dscale, dbias = result_specs(("dscale", "dbias"), outs[1:], scale.shape, scale)
    given = statistics.get("mean"), statistics.get("invstd")
    return GroupNormGradient(x, dy, scale, *given, dx, dscale, dbias, count, check_epsilon(epsilon))


def check_groups(x: Any, groups: Any, **parameters: Any) -> int:
    """Return the number of groups; raise unless it divides the channels of x, and all parameters match."""
    shape, count = tuple(x.shape), as_int(groups, "groups")
    if ("mean" in parameters) != ("invstd" in parameters):
        raise ValueError("mean and invstd must both be given, or neither")
    if not 2 <= len(shape) <= 6:
        raise ValueError(f"x has shape {shape}; group normalisation takes 2 to 6 axes (N, C, ...)")
    if count < 1:
        raise ValueError(f"groups must be at least 1: got {groups}")
    if shape[1] % count:
        raise ValueError(f"groups must divide the {shape[1]} channels of x of shape {shape}: got {groups}")
    dtype = norm_parameter_dtype(x.dtype)
    for name, parameter in parameters.items():
        expected: Shape = (shape[0], count) if name in ("mean", "invstd") else shape[1:2]
        if tuple(parameter.shape) != expected:
            raise ValueError(
                f"{name} has shape {tuple(parameter.shape)}; x of shape {shape} with groups={count} needs "
                f"{expected}"
            )
        if str(parameter.dtype) != dtype:
            raise TypeError(f"{name} is {parameter.dtype}; x of {x.dtype} needs {dtype}")
    return count
