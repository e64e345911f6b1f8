"""The meaning of what works element by element, and of moving elements in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import as_dtype
from ..shapes.checks import one_dtype
from ..shapes.parse import as_bool, as_float
from ..shapes.specs import TensorSpec, equivalent_strides
from ..shapes.tensor import check_broadcast, op_tensor_op, transformed_spec
from ._cast import Array, Float64, deliver, round_once, wide

__all__ = ["add", "fill", "op_tensor", "scale", "transform"]


def op_tensor(
    a: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    op: Any = "add",
    alpha1: float = 1,
    alpha2: float = 1,
    beta: float = 0,
    propagate_nan: bool = True,
    out: Array | None = None,
) -> Array:
    """Compute ``op(alpha1 * a, alpha2 * b) + beta * out``. See :func:`cudnn_ct.op_tensor`."""
    a, name, propagate = (
        np.asarray(a),
        op_tensor_op(op, b is not None),
        as_bool(propagate_nan, "propagate_nan"),
    )
    one_dtype("op_tensor", a=a.dtype)
    alpha1, alpha2 = as_float(alpha1, "alpha1"), as_float(alpha2, "alpha2")
    if b is None:
        return deliver(_of_one(alpha1, wide(a), name), a.dtype, 1, beta, out)
    b = np.asarray(b)
    one_dtype("op_tensor", a=a.dtype, b=b.dtype)
    check_broadcast(a.shape, b.shape)
    return deliver(_of_two(alpha1, wide(a), alpha2, wide(b), name, propagate), a.dtype, 1, beta, out)


def add(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * (a + b) + beta * out``. See :func:`cudnn_ct.add`."""
    a, b = np.asarray(a), np.asarray(b)
    one_dtype("add", a=a.dtype, b=b.dtype)
    check_broadcast(a.shape, b.shape)
    return deliver(_of_two(1, wide(a), 1, wide(b), "add", True), a.dtype, alpha, beta, out)


def scale(x: Array, *, alpha: float) -> Array:
    """Compute ``x * alpha`` in place. See :func:`cudnn_ct.scale`."""
    _check_in_place(x, "scale")
    return deliver(wide(x), x.dtype, as_float(alpha, "alpha"), 0, x)


def fill(x: Array, value: float) -> Array:
    """Set every element of x to a number. See :func:`cudnn_ct.fill`."""
    _check_in_place(x, "fill")
    x[...] = round_once(np.full((), as_float(value, "value")), x.dtype)
    return x


def transform(
    x: npt.ArrayLike,
    *,
    layout: str | None = None,
    strides: Any = None,
    dtype: Any = None,
    alpha: float = 1,
    beta: float = 0,
    out: Array | None = None,
) -> Array:
    """Compute ``alpha * x + beta * out`` with other strides or dtype. See :func:`cudnn_ct.transform`."""
    x = np.asarray(x)
    spec = transformed_spec(_spec(x), layout, strides, dtype)
    asked = layout is not None or strides is not None
    if out is not None and out.shape == x.shape and asked:
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


@np.errstate(all="ignore")
def _of_one(alpha: float, a: Float64, op: str) -> Float64:
    return np.asarray(np.sqrt(alpha * a) if op == "sqrt" else 1 - alpha * a)


@np.errstate(all="ignore")
def _of_two(alpha1: float, a: Float64, alpha2: float, b: Float64, op: str, propagate: bool) -> Float64:
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "add": np.add,
        "mul": np.multiply,
        "min": np.minimum if propagate else np.fmin,
        "max": np.maximum if propagate else np.fmax,
    }
    return np.asarray(functions[op](alpha1 * a, alpha2 * b))


def _check_in_place(x: Array, operation: str) -> None:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{operation} works in place; x must be an array, not {x!r}")
    one_dtype(operation, x=x.dtype)


def _spec(x: Array) -> TensorSpec:
    return TensorSpec(x.shape, tuple(s // x.itemsize for s in x.strides), as_dtype(x.dtype).name)
