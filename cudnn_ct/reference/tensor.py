"""Operations element by element, and changes of layout and dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import as_dtype
from ..shapes.checks import one_dtype
from ..shapes.elementwise import check_broadcast, op_tensor_op, transformed_spec
from ..shapes.parse import as_bool, as_float
from ..shapes.specs import TensorSpec, equivalent_strides
from ..typing import DTypeLike, Layout, OpTensorOp
from ._cast import Array, deliver, given_out, operands, required, round_once, wide, writable

_UNARY: dict[str, Callable[[Any], Any]] = {"sqrt": np.sqrt, "not": lambda a: 1 - a}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
_IGNORING_NAN: dict[str, Callable[[Any, Any], Any]] = {"min": np.fmin, "max": np.fmax}


@np.errstate(all="ignore")
def op_tensor(
    a: ArrayLike,
    b: ArrayLike | None = None,
    *,
    op: OpTensorOp = "add",
    alpha1: float = 1,
    alpha2: float = 1,
    beta: float = 0,
    propagate_nan: bool = True,
    out: Array | None = None,
) -> Array:
    """Compute ``op(alpha1 * a, alpha2 * b) + beta * out``. See :func:`cudnn_ct.op_tensor`."""
    name, propagate = op_tensor_op(op, b is not None), as_bool(propagate_nan, "propagate_nan")
    dtype, (a, *others) = operands("op_tensor", a=a, **({} if b is None else {"b": b}))
    a = as_float(alpha1, "alpha1") * a
    factor = as_float(alpha2, "alpha2")
    if not others:
        return deliver(np.asarray(_UNARY[name](a)), dtype, 1, beta, out)
    check_broadcast(a.shape, others[0].shape)
    function = _BINARY[name] if propagate else (_BINARY | _IGNORING_NAN)[name]
    return deliver(np.asarray(function(a, factor * others[0])), dtype, 1, beta, out)


@np.errstate(all="ignore")
def add(a: ArrayLike, b: ArrayLike, *, alpha: float = 1, beta: float = 0, out: Array | None = None) -> Array:
    """Compute ``alpha * (a + b) + beta * out``. See :func:`cudnn_ct.add`."""
    dtype, (a, b) = operands("add", a=a, b=b)
    check_broadcast(a.shape, b.shape)
    return deliver(a + b, dtype, alpha, beta, out)


def scale(x: Array, *, alpha: float) -> Array:
    """Compute ``x * alpha`` in place. See :func:`cudnn_ct.scale`."""
    _check_in_place(x, "scale")
    return deliver(wide(x), x.dtype, alpha, 0, x)


def fill(x: Array, value: float) -> Array:
    """Set every element of x to a number. See :func:`cudnn_ct.fill`."""
    _check_in_place(x, "fill")
    x[...] = round_once(np.full((), as_float(value, "value")), x.dtype)
    return x


def transform(
    x: ArrayLike,
    *,
    layout: Layout | None = None,
    strides: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * x + beta * out`` with other strides or dtype. See :func:`cudnn_ct.transform`."""
    x = required(x=x)["x"]
    spec = transformed_spec(_spec(x), layout, strides, dtype)
    if out is not None and given_out(out).shape == x.shape and (layout is not None or strides is not None):
        given = _spec(out)
        if not equivalent_strides(given.shape, given.strides, spec.strides):
            raise ValueError(f"out has the wrong strides: got {given.strides}, expected {spec.strides}")
    y = deliver(wide(x), as_dtype(spec.dtype).numpy, alpha, beta, out)
    if out is not None:
        return out
    memory = np.zeros(max(spec.extent[1], 1), y.dtype)
    result: Array = np.ndarray(
        spec.shape, y.dtype, buffer=memory, strides=tuple(s * y.itemsize for s in spec.strides)
    )
    result[...] = y
    return result


def _check_in_place(x: object, operation: str) -> None:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{operation} works in place; x must be an array, not {x!r}")
    one_dtype(operation, x=x.dtype)
    writable(x, "x")


def _spec(x: Array) -> TensorSpec:
    return TensorSpec(x.shape, tuple(s // x.itemsize for s in x.strides), as_dtype(x.dtype).name)
