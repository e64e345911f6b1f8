"""Reduction problems."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

from .checks import one_dtype, result_spec
from .parse import as_bool
from .specs import Shape, TensorSpec
from .tensor import reduce_axes, reduce_op, reduced_shape


class ReduceProblem(NamedTuple):
    """A reduction of x over ``axes``, with the indices of the extremes if ``indices`` is set.

    y either keeps the reduced axes, with length 1, or lacks them.
    """

    x: TensorSpec
    y: TensorSpec
    indices: TensorSpec | None
    axes: Shape
    op: str
    propagate_nan: bool

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.y, self.indices) if self.indices else (self.y,)

    @property
    def terms(self) -> int:
        """Number of elements reduced into one element of the result."""
        return prod(self.x.shape[axis] for axis in self.axes)

    @property
    def kept(self) -> TensorSpec:
        """The result with the reduced axes kept, with length 1."""
        if len(self.y.shape) == len(self.x.shape):
            return self.y
        shape, strides = list(self.y.shape), list(self.y.strides)
        for axis in self.axes:
            shape.insert(axis, 1)
            strides.insert(axis, 1)
        return TensorSpec(tuple(shape), tuple(strides), self.y.dtype)

    def __str__(self) -> str:
        places = ", with indices" if self.indices else ""
        return f"reduction {self.op!r} over axes {list(self.axes)}{places}: x {self.x}, result {self.y}"


def reduce_problem(
    specs: dict[str, TensorSpec],
    outs: tuple[TensorSpec | None, ...],
    op: Any,
    axis: Any,
    keepdims: bool,
    propagate_nan: bool,
    *,
    indices: bool = False,
) -> ReduceProblem:
    """Validate the arguments of a reduction of x, which also returns positions with ``indices``."""
    x, (out, *_) = specs["x"], outs
    name = reduce_op(op, x.shape, axis, indices)
    one_dtype("reduce", x=x.dtype)
    gone, shape = reduce_axes(x.shape, axis), reduced_shape(x.shape, axis, keepdims)
    like = x if len(shape) == len(x.shape) else TensorSpec.packed(shape, x.dtype)
    if indices:  # cuDNN writes them in C order, and the values in the same order
        like = TensorSpec.packed(shape, x.dtype)
    places = TensorSpec.packed(shape, "int32") if indices else None
    y = result_spec(shape, like, out=out)
    return ReduceProblem(x, y, places, gone, name, as_bool(propagate_nan, "propagate_nan"))


indexed_reduce_problem = partial(reduce_problem, indices=True)
