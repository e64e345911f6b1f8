"""Softmax problems: algorithms, and the axes that sum to one."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from .checks import Outs, Specs, one_dtype, result_spec, same_shape, some_axes
from .layer import LayerProblem
from .parse import as_choice
from .specs import Shape, check_shape

SOFTMAX_ALGOS = ("fast", "accurate", "log")
SOFTMAX_MODES = ("instance", "channel")


class SoftmaxParams(NamedTuple):
    """Algorithm of a softmax over adjacent axes."""

    axes: range
    algo: str


def softmax_problem(specs: Specs, outs: Outs, algo: Any, mode: Any, axis: Any) -> LayerProblem[SoftmaxParams]:
    """Validate the arguments of a softmax of x, or of the gradient with y and dy."""
    one_dtype("softmax", **{name: spec.dtype for name, spec in specs.items()})
    shape = same_shape(**{name: spec.shape for name, spec in specs.items()})
    params = SoftmaxParams(softmax_axes(shape, mode, axis), as_choice(algo, SOFTMAX_ALGOS, "algo"))
    result = result_spec(shape, *specs.values(), out=outs[0])
    return LayerProblem.of(f"softmax over axes {list(params.axes)}", params, specs, result)


def softmax_axes(shape: Iterable[int], mode: Any = "channel", axis: Any = None) -> range:
    """Return the adjacent axes that sum to one: ``axis`` if given, otherwise the axes of ``mode``."""
    dims = check_shape(shape, "x_shape")
    mode = as_choice(mode, SOFTMAX_MODES, "mode")
    if axis is None:
        if len(dims) < 2:
            raise ValueError(f"x has shape {dims}; mode={mode!r} needs (N, C, ...), other shapes an axis")
        return range(1, 2 if mode == "channel" else len(dims))
    axes = sorted(some_axes(axis, len(dims), "axis"))
    if not axes:
        raise ValueError("axis must name at least one axis: got ()")
    if axes[-1] - axes[0] >= len(axes):
        raise ValueError(f"axis must name adjacent axes: got {axis!r}; transpose x first")
    return range(axes[0], axes[-1] + 1)


def softmax_fold(shape: Iterable[int], mode: Any = "channel", axis: Any = None) -> Shape:
    """Return the shape (outer, reduced, inner, 1) for which the same softmax runs over the channel axis."""
    dims = check_shape(shape, "x_shape")
    axes = softmax_axes(dims, mode, axis)
    return prod(dims[: axes.start]), prod(dims[axes.start : axes.stop]), prod(dims[axes.stop :]), 1
