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
    """Compute ``op(alpha1 * a, alpha2 * b) + beta * out`` element by element, rounded once at the end.

    Parameters
    ----------
    a : array, any shape, float16 | bfloat16 | float32 | float64
    b : array, dtype of ``a``, as many axes, each as long or of length 1; None for "sqrt" and "not"
    op : "add", "mul", "min", "max", "sqrt" or "not"
        ``"not"`` is ``1 - alpha1 * a``.
    alpha1, alpha2, beta : float
    propagate_nan : bool
        Whether the smaller or larger of a number and NaN is NaN, or the number. Others propagate it always.
    out : array, shape and dtype of ``a``, optional
        Written and returned; may be ``a``. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape and dtype of ``a``

    Raises
    ------
    TypeError
        The dtypes differ, or are none of the four; or a factor is no number.
    ValueError
        There is no such operation, it takes another number of operands, or shapes do not fit.

    Examples
    --------
    >>> op_tensor(np.array([[1.0, 5.0], [3.0, 2.0]]), np.array([[2.0, 3.0]]), op="max", alpha2=-1)
    array([[1., 5.],
           [3., 2.]])
    >>> op_tensor(np.array([0.0, 1.0]), op="not")
    array([1., 0.])
    """
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
    """Compute ``alpha * (a + b) + beta * out``, in float64, rounded once at the end.

    Parameters
    ----------
    a : array, any shape, float16 | bfloat16 | float32 | float64
    b : array, dtype of ``a``, as many axes, each as long or of length 1
    alpha, beta : float
    out : array, shape and dtype of ``a``, optional
        Written and returned; may be ``a``. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape and dtype of ``a``

    Raises
    ------
    TypeError, ValueError
        As in :func:`op_tensor`.

    Examples
    --------
    >>> add(np.zeros((2, 3)), np.array([[1.0], [2.0]]), alpha=10)
    array([[10., 10., 10.],
           [20., 20., 20.]])
    """
    a, b = np.asarray(a), np.asarray(b)
    one_dtype("add", a=a.dtype, b=b.dtype)
    check_broadcast(a.shape, b.shape)
    return deliver(_of_two(1, wide(a), 1, wide(b), "add", True), a.dtype, alpha, beta, out)


def scale(x: Array, *, alpha: float) -> Array:
    """Multiply an array by a number, in place, each element rounded once.

    Parameters
    ----------
    x : array, any shape, float16 | bfloat16 | float32 | float64
        Written and returned.
    alpha : float

    Returns
    -------
    array
        ``x``.

    Raises
    ------
    TypeError
        ``x`` is no array of these dtypes, or ``alpha`` no number.

    Examples
    --------
    >>> scale(np.array([1.0, 2.0]), alpha=3)
    array([3., 6.])
    """
    _check_in_place(x, "scale")
    return deliver(wide(x), x.dtype, as_float(alpha, "alpha"), 0, x)


def fill(x: Array, value: float) -> Array:
    """Set every element of an array to a number, rounded to its dtype.

    Parameters
    ----------
    x : array, any shape, float16 | bfloat16 | float32 | float64
        Written and returned.
    value : float

    Returns
    -------
    array
        ``x``.

    Raises
    ------
    TypeError
        ``x`` is no array of these dtypes, or ``value`` no number.

    Examples
    --------
    >>> fill(np.zeros(3), 7)
    array([7., 7., 7.])
    """
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
    """Compute ``alpha * x + beta * out`` in another memory layout or dtype, rounded once at the end.

    Parameters
    ----------
    x : array, any shape, float16 | bfloat16 | float32 | float64 | int8
    layout : "nchw" or "nhwc", optional
        Without gaps, channels second or last; the axes keep their order. By default that of ``x``.
    strides : tuple of int, optional
        In elements, instead of a layout. No two elements may be in one place; gaps are zeros.
    dtype : dtype, optional
        By default that of ``x``; int8 remains int8.
    alpha, beta : float
    out : array, shape of ``x``, dtype of the result, optional
        Written and returned, with the strides it has. Read only if ``beta`` is not 0, which needs it.

    Returns
    -------
    array, shape of ``x``

    Raises
    ------
    TypeError
        There is no such conversion.
    ValueError
        Layout, strides or ``out`` do not fit; the message has the numbers.

    Examples
    --------
    >>> y = transform(np.arange(12.0).reshape(1, 3, 2, 2), layout="nhwc", dtype="float32")
    >>> y.shape, y.strides, y.dtype
    ((1, 3, 2, 2), (48, 4, 24, 12), dtype('float32'))
    """
    x = np.asarray(x)
    spec = transformed_spec(_spec(x), layout, strides, dtype)
    asked = layout is not None or strides is not None
    if out is not None and out.shape == x.shape and asked:
        given = _spec(out)
        if not equivalent_strides(given.shape, given.strides, spec.strides):
            raise ValueError(f"out has strides {given.strides}; those asked for are {spec.strides}")
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
