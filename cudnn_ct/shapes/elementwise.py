"""Problems of element-wise operations and of layout conversions."""

from __future__ import annotations

from typing import Any, NamedTuple

from .checks import one_dtype, result_spec
from .parse import as_bool
from .specs import TensorSpec, equivalent_strides
from .tensor import check_broadcast, op_tensor_op, transformed_spec


class OpTensorScales(NamedTuple):
    """Factors of the operands of an ``OpTensorProblem``."""

    a: float
    b: float


class OpTensorProblem(NamedTuple):
    """``op(alpha1 * a, alpha2 * b)`` with b broadcast to the shape of a, or a unary ``op`` of a.

    The two factors are the alpha of a run: one number for both, or :class:`OpTensorScales`.
    """

    a: TensorSpec
    b: TensorSpec | None
    c: TensorSpec
    op: str
    propagate_nan: bool

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.c,)

    def __str__(self) -> str:
        second = f", b {self.b}" if self.b else ""
        return f"op_tensor {self.op!r}: a {self.a}{second}, result {self.c}"


class ScaleProblem(NamedTuple):
    """In-place multiplication by the alpha of a run."""

    x: TensorSpec

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.x,)

    def __str__(self) -> str:
        return f"scaling of x {self.x}"


class FillProblem(NamedTuple):
    """Assignment of the value of a run to all elements."""

    x: TensorSpec

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.x,)

    def __str__(self) -> str:
        return f"filling of x {self.x}"


class TransformProblem(NamedTuple):
    """Copy of x with other strides, or conversion to another dtype."""

    x: TensorSpec
    y: TensorSpec

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return (self.y,)

    def __str__(self) -> str:
        return f"transformation of x {self.x} into {self.y}"


def op_tensor_problem(
    specs: dict[str, TensorSpec],
    outs: tuple[TensorSpec | None],
    op: Any,
    propagate_nan: Any,
    what: str = "op_tensor",
) -> OpTensorProblem:
    """Validate the arguments of an operation on a and b, or on a alone."""
    a, b = specs["a"], specs.get("b")
    name = op_tensor_op(op, b is not None)
    one_dtype(what, **{tensor: spec.dtype for tensor, spec in specs.items()})
    if b is not None:
        check_broadcast(a.shape, b.shape)
    return OpTensorProblem(
        a,
        b,
        result_spec(a.shape, *specs.values(), out=outs[0]),
        name,
        as_bool(propagate_nan, "propagate_nan"),
    )


def add_problem(specs: dict[str, TensorSpec], outs: tuple[TensorSpec | None]) -> OpTensorProblem:
    """Validate the arguments of a sum of a and b."""
    return op_tensor_problem(specs, outs, "add", True, what="add")


def scale_problem(_: dict[str, TensorSpec], outs: tuple[TensorSpec]) -> ScaleProblem:
    """Validate the array that is scaled in place."""
    one_dtype("scale", x=outs[0].dtype)
    return ScaleProblem(outs[0])


def fill_problem(_: dict[str, TensorSpec], outs: tuple[TensorSpec]) -> FillProblem:
    """Validate the array that is filled."""
    one_dtype("fill", x=outs[0].dtype)
    return FillProblem(outs[0])


def transform_problem(
    specs: dict[str, TensorSpec],
    outs: tuple[TensorSpec | None],
    layout: Any,
    strides: Any,
    dtype: Any,
) -> TransformProblem:
    """Validate the arguments of a transformation of x."""
    x, out = specs["x"], outs[0]
    spec = transformed_spec(x, layout, strides, dtype)
    if out is None:
        return TransformProblem(x, spec)
    out = result_spec(x.shape, x, out=out, dtype=spec.dtype)
    if (layout is not None or strides is not None) and not equivalent_strides(
        out.shape, out.strides, spec.strides
    ):
        raise ValueError(f"out has the wrong strides: got {out.strides}, expected {spec.strides}")
    return TransformProblem(x, out)
