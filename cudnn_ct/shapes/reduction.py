"""Reductions: their problems, axes and shapes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any, Generic, NamedTuple

from .._config import config
from ..errors import warn_caller
from ..typing import ReduceOp
from .checks import Outs, Specs, one_dtype, result_spec, some_axes
from .layer import problem_class
from .parse import as_bool, as_choice
from .specs import MAX_AXES, Shape, T, TensorSpec, check_shape

REDUCE_OPS: tuple[ReduceOp, ...] = (
    "add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros",
)  # fmt: skip
_INDEXED = ("min", "max")
_DEFINED_FOR_EMPTY = ("add", "mul", "norm1", "norm2", "mul_no_zeros")  # ops with a value for zero elements


class IndexedReduction(NamedTuple, Generic[T]):
    """Smallest or largest elements, and their int32 positions in C order of the reduced axes."""

    y: T
    indices: T


@problem_class("reduction", "y indices")
class ReduceProblem(NamedTuple):
    """A reduction of x over ``axes``, with the indices of the extremes if ``indices`` is set."""

    x: TensorSpec
    y: TensorSpec  # keeps the reduced axes with length 1, or lacks them
    indices: TensorSpec | None
    axes: Shape
    op: ReduceOp
    propagate_nan: bool
    deterministic: bool = False  # rejects implementations whose bits differ from run to run

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


def reduce_problem(
    specs: Specs,
    outs: Outs,
    op: Any,
    axis: Any,
    keepdims: bool,
    propagate_nan: bool,
    deterministic: bool | None = None,
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
    y, places = result_spec(shape, like, out=out), None
    if indices:
        places = result_spec(shape, like, out=outs[1], name="indices of out", dtype="int32")
    same = config.deterministic if deterministic is None else as_bool(deterministic, "deterministic")
    return ReduceProblem(x, y, places, gone, name, as_bool(propagate_nan, "propagate_nan"), same)


indexed_reduce_problem = partial(reduce_problem, indices=True)


def reduce_axes(x_shape: Iterable[int], axis: Any = None) -> Shape:
    """The axes that a reduction takes away, in order: all, if ``axis`` is None."""
    x = check_shape(x_shape, "x_shape")
    if len(x) > MAX_AXES:
        raise ValueError(f"x has shape {x}; a reduction takes at most {MAX_AXES} axes")
    return tuple(range(len(x))) if axis is None else tuple(sorted(some_axes(axis, len(x), "axis")))


def reduced_shape(x_shape: Iterable[int], axis: Any = None, keepdims: bool = False) -> Shape:
    """Shape of ``reduce(x)``: without the axes, or with 1 for each of them.

    >>> reduced_shape((2, 3, 4), (0, 2)), reduced_shape((2, 3, 4), (0, 2), keepdims=True)
    ((3,), (1, 3, 1))
    """
    x = check_shape(x_shape, "x_shape")
    gone = reduce_axes(x, axis)
    if as_bool(keepdims, "keepdims"):
        return tuple(1 if axis in gone else n for axis, n in enumerate(x))
    return tuple(n for axis, n in enumerate(x) if axis not in gone)


def as_reduce_op(op: Any) -> ReduceOp:
    """Return cuDNN's name of an operation, which is "avg" for "average"; "avg" is a former name and warns."""
    if isinstance(op, str) and op.lower() == "avg":
        warn_caller("op='avg' is deprecated; write op='average'", DeprecationWarning)
    name = as_choice(op, (*REDUCE_OPS, "average"), "op")
    return "avg" if name == "average" else name


def reduce_op(op: Any, x_shape: Iterable[int], axis: Any = None, indices: bool = False) -> ReduceOp:
    """The operation by its name in :data:`REDUCE_OPS`; raise unless it has an answer for the axes."""
    name, x = as_reduce_op(op), check_shape(x_shape, "x_shape")
    if indices and name not in _INDEXED:
        expected = " or ".join(map(repr, _INDEXED))
        raise ValueError(f"op has no indices: got {op!r}, expected {expected}; use reduce for the others")
    gone = reduce_axes(x, axis)
    empty = prod(x[axis] for axis in gone) == 0
    if empty and name not in _DEFINED_FOR_EMPTY and 0 not in reduced_shape(x, gone):
        raise ValueError(f"cannot take op={op!r} over axes {gone}: x of shape {x} has no elements there")
    return name
