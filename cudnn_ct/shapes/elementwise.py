"""Element-wise operations and layout conversions: their problems, broadcasting and layouts."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from ..dtypes import as_dtype
from ..typing import Layout, OpTensorOp
from .checks import FLOATS, Outs, Specs, one_dtype, result_spec
from .layer import LayerProblem, problem_class
from .parse import as_bool, as_choice
from .specs import Shape, TensorSpec, check_shape, equivalent_strides, nearest_layout

OP_TENSOR_OPS: tuple[OpTensorOp, ...] = ("add", "mul", "min", "max", "sqrt", "not")
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
