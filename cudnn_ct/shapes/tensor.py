"""Element-wise operations, layout conversions and reductions: problems, broadcasting, axes and layouts."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any, Generic, NamedTuple, get_args

from .._config import config
from ..dtypes import as_dtype
from ..errors import warn_caller
from ..typing import Layout, OpTensorOp, ReduceOp
from .checks import FLOATS, as_bool, as_choice, one_dtype, result_spec, some_axes
from .specs import (
    MAX_AXES,
    LayerProblem,
    Outs,
    Shape,
    Specs,
    T,
    TensorSpec,
    check_shape,
    equivalent_strides,
    nearest_layout,
    problem_class,
)

OP_TENSOR_OPS: tuple[OpTensorOp, ...] = get_args(OpTensorOp)
_UNARY = ("sqrt", "not")


class OpTensorScales(NamedTuple):
    """Factors of the operands of an ``OpTensorProblem``."""

    a: float
    b: float


@problem_class("op_tensor", "c")
class OpTensorProblem(NamedTuple):
    """``op(alpha1 * a, alpha2 * b)`` with b broadcast to the shape of a, or a unary ``op`` of a.

    The two factors are the alpha of a run: one number for both, or :class:`OpTensorScales`.
    """

    a: TensorSpec
    b: TensorSpec | None
    c: TensorSpec
    op: OpTensorOp
    propagate_nan: bool


@problem_class(lambda self: self.name, "x", "name")
class InPlaceProblem(NamedTuple):
    """An operation on x in place: "scale" by the alpha of a run, or "fill" with the value of a run."""

    name: str
    x: TensorSpec

    @property
    def updated(self) -> int:
        """Number of results, from the end, that are also read."""
        return int(self.name == "scale")


def op_tensor_problem(specs: Specs, outs: Outs, op: Any, propagate_nan: Any) -> OpTensorProblem:
    """Validate the arguments of an operation on a and b, or on a alone."""
    a, b = specs["a"], specs.get("b")
    name = op_tensor_op(op, b is not None)
    one_dtype("an operation on tensors", **{tensor: spec.dtype for tensor, spec in specs.items()})
    if b is not None:
        check_broadcast(a.shape, b.shape)
    result = result_spec(a.shape, *specs.values(), out=outs[0])
    return OpTensorProblem(a, b, result, name, as_bool(propagate_nan, "propagate_nan"))


def in_place_problem(name: str, _: Specs, outs: tuple[TensorSpec]) -> InPlaceProblem:
    """Validate the array that an operation changes in place."""
    one_dtype(name, x=outs[0].dtype)
    return InPlaceProblem(name, outs[0])


scale_problem, fill_problem = partial(in_place_problem, "scale"), partial(in_place_problem, "fill")


def transform_problem(specs: Specs, outs: Outs, layout: Any, strides: Any, dtype: Any) -> LayerProblem[None]:
    """Validate the arguments of a transformation of x."""
    x = specs["x"]
    spec = transformed_spec(x, layout, strides, dtype)
    y = result_spec(x.shape, x, out=outs[0] or spec, dtype=spec.dtype)
    given = layout is not None or strides is not None
    if given and not equivalent_strides(y.shape, y.strides, spec.strides):
        raise ValueError(f"out has the wrong strides: got {y.strides}, expected {spec.strides}")
    return LayerProblem.of("transformation", None, specs, y)


def op_tensor_op(op: Any, has_b: bool) -> OpTensorOp:
    """Return the name of the operation in :data:`OP_TENSOR_OPS`; raise unless its operand count matches."""
    name = as_choice(op, OP_TENSOR_OPS, "op")
    if has_b and name in _UNARY:
        raise ValueError(f"op={name!r} takes one tensor: got a and b, expected b=None")
    if not has_b and name not in _UNARY:
        raise ValueError(f"op={name!r} needs b: got None, expected a tensor that broadcasts to a")
    return name


def check_broadcast(a_shape: Iterable[int], b_shape: Iterable[int]) -> Shape:
    """Return the shape of ``a``, to which ``b`` broadcasts: each of its axes is as long, or of length 1."""
    a, b = check_shape(a_shape, "a_shape"), check_shape(b_shape, "b_shape")
    if len(a) != len(b) or any(m not in (1, n) for n, m in zip(a, b, strict=True)):
        view = f"; pass b.reshape{(1, *b, *(1,) * (len(a) - 2))} for a bias of the channels"
        hint = view if len(a) > 2 and b == a[1:2] else ""
        raise ValueError(
            f"b has shape {b}; a of shape {a} needs as many axes, each as long or of length 1{hint}"
        )
    return a


def transformed_spec(
    x: TensorSpec, layout: Layout | None = None, strides: Any = None, dtype: Any = None
) -> TensorSpec:
    """Return the spec of ``transform(x)``: the shape of x, with other strides or another dtype.

    With neither layout nor strides, the elements lie packed in the layout of x, or that nearest to it.

    >>> transformed_spec(TensorSpec.packed((2, 3, 4, 5)), layout="nhwc", dtype="float16")
    TensorSpec(shape=(2, 3, 4, 5), strides=(60, 1, 15, 3), dtype='float16')
    """
    result = x.dtype if dtype is None else as_dtype(dtype).name
    if not (x.dtype in FLOATS and result in FLOATS) and not x.dtype == result == "int8":
        raise TypeError(
            f"transform converts between {', '.join(FLOATS)}, or int8 to int8: got {x.dtype} to {result}"
        )
    if strides is None:
        name = layout or nearest_layout(x)
        return TensorSpec.packed(x.shape, result, name)
    if layout is not None:
        raise ValueError(f"layout and strides are exclusive: got {layout!r} and {strides!r}; pass one")
    try:
        # Unlike a length, a stride may exceed a C int: plans run once for each slice that a descriptor holds.
        spec = TensorSpec(x.shape, tuple(operator.index(stride) for stride in strides), result)
    except TypeError:
        raise ValueError(f"strides must be positive ints, in elements: got {strides!r}") from None
    if min(spec.strides, default=0) < 0:
        raise ValueError(f"strides must be positive ints, in elements: got {strides!r}")
    if len(spec.strides) != len(x.shape):
        raise ValueError(f"strides {spec.strides} do not fit x of shape {x.shape}: expected one per axis")
    if not spec.representable or spec.overlaps_itself:
        raise ValueError(f"strides {spec.strides} overlap: elements of shape {x.shape} would share memory")
    return spec


REDUCE_OPS: tuple[ReduceOp, ...] = tuple(op for op in get_args(ReduceOp) if op != "average")  # which is avg
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
