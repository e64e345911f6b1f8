"""Softmax problems: algorithms, and the axes that sum to one."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from .checks import one_dtype, result_spec, same_shape, some_axes
from .parse import as_choice
from .specs import Shape, TensorSpec, check_shape

SOFTMAX_ALGOS = ("fast", "accurate", "log")
SOFTMAX_MODES = ("instance", "channel")


class SoftmaxProblem(NamedTuple):
    """Softmax of x over adjacent ``axes``, or its gradient if ``dx`` is set."""

    x: TensorSpec | None
    y: TensorSpec
    dy: TensorSpec | None
    dx: TensorSpec | None
    axes: range
    algo: str

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.dx or self.y,)

    def __str__(self) -> str:
        tensors = f"gradient: y {self.y}, dy {self.dy}" if self.dx else f"x {self.x}"
        return f"softmax over axes {list(self.axes)} ({self.algo}): {tensors}, result {self.results[0]}"


def softmax_problem(
    specs: dict[str, TensorSpec],
    outs: tuple[TensorSpec | None],
    algo: Any,
    mode: Any,
    axis: Any,
) -> SoftmaxProblem:
    """Validate the arguments of a softmax of x, or of the gradient with y and dy."""
    one_dtype("softmax", **{name: spec.dtype for name, spec in specs.items()})
    first = next(iter(specs.values()))
    shape = same_shape(**{name: spec.shape for name, spec in specs.items()})
    axes, algo = softmax_axes(shape, mode, axis), as_choice(algo, SOFTMAX_ALGOS, "algo")
    result = result_spec(shape, *specs.values(), out=outs[0])
    if "dy" in specs:
        return SoftmaxProblem(None, first, specs["dy"], result, axes, algo)
    return SoftmaxProblem(first, result, None, None, axes, algo)


def softmax_axes(shape: Iterable[int], mode: Any = "channel", axis: Any = None) -> range:
    """Return the adjacent axes that sum to one: ``axis`` if given, otherwise the axes of ``mode``.

    >>> softmax_axes((8, 10, 4, 4), "instance")
    range(1, 4)
    >>> softmax_axes((8, 10, 4, 4), axis=-1)
    range(3, 4)
    """
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
    """Return the shape (outer, reduced, inner, 1) for which the same softmax runs over the channel axis.

    >>> softmax_fold((8, 10, 4, 4), "instance")
    (8, 160, 1, 1)
    >>> softmax_fold((8, 10, 4, 4), axis=1)
    (8, 10, 16, 1)
    """
    dims = check_shape(shape, "x_shape")
    axes = softmax_axes(dims, mode, axis)
    return prod(dims[: axes.start]), prod(dims[axes.start : axes.stop]), prod(dims[axes.stop :]), 1
