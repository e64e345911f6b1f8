"""Operations element by element, changes of layout and dtype, and reductions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..dtypes import as_dtype
from ..shapes import tensor as rules
from ..shapes.checks import as_bool, as_float, one_dtype
from ..shapes.specs import TensorSpec, equivalent_strides
from . import _signatures as signatures
from ._definition import Arguments, Array, Float64, defined, deliver, given_out, round_once, wide, writable

_UNARY: dict[str, Callable[[Any], Any]] = {"sqrt": np.sqrt, "not": lambda a: 1 - a}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
_IGNORING_NAN: dict[str, Callable[[Any, Any], Any]] = {"min": np.fmin, "max": np.fmax}


@defined(signatures.op_tensor)
def op_tensor(p: Arguments) -> Array:
    """Compute ``op(alpha1 * a, alpha2 * b) + beta * out``. See :func:`cudnn_ct.op_tensor`."""
    given = ("a",) if p.b is None else ("a", "b")
    name, propagate = rules.op_tensor_op(p.op, len(given) > 1), as_bool(p.propagate_nan, "propagate_nan")
    dtype, (a, *others) = p.operands("op_tensor", *given)
    a = as_float(p.alpha1, "alpha1") * a
    factor = as_float(p.alpha2, "alpha2")
    if not others:
        return p.deliver(np.asarray(_UNARY[name](a)), dtype)
    rules.check_broadcast(a.shape, others[0].shape)
    function = _BINARY[name] if propagate else (_BINARY | _IGNORING_NAN)[name]
    return p.deliver(np.asarray(function(a, factor * others[0])), dtype)


@defined(signatures.add)
def add(p: Arguments) -> Array:
    """Compute ``alpha * (a + b) + beta * out``. See :func:`cudnn_ct.add`."""
    dtype, (a, b) = p.operands("add", "a", "b")
    rules.check_broadcast(a.shape, b.shape)
    return p.deliver(a + b, dtype)


@defined(signatures.scale)
def scale(p: Arguments) -> Array:
    """Compute ``x * alpha`` in place. See :func:`cudnn_ct.scale`."""
    x = _in_place(p.x, "scale")
    return deliver(wide(x), x.dtype, p.alpha, 0, x)


@defined(signatures.fill)
def fill(p: Arguments) -> Array:
    """Set every element of x to a number. See :func:`cudnn_ct.fill`."""
    x = _in_place(p.x, "fill")
    x[...] = round_once(np.full((), as_float(p.value, "value")), x.dtype)
    return x


@defined(signatures.transform)
def transform(p: Arguments) -> Array:
    """Compute ``alpha * x + beta * out`` with other strides or dtype. See :func:`cudnn_ct.transform`."""
    x = p.required("x")["x"]
    spec = rules.transformed_spec(_spec(x), p.layout, p.strides, p.dtype)
    laid_out = p.layout is not None or p.strides is not None
    if p.out is not None and given_out(p.out).shape == x.shape and laid_out:
        given = _spec(p.out)
        if not equivalent_strides(given.shape, given.strides, spec.strides):
            raise ValueError(f"out has the wrong strides: got {given.strides}, expected {spec.strides}")
    y = p.deliver(wide(x), as_dtype(spec.dtype).numpy)
    if p.out is not None:
        return y
    memory = np.zeros(max(spec.extent[1], 1), y.dtype)
    result: Array = np.ndarray(
        spec.shape, y.dtype, buffer=memory, strides=tuple(s * y.itemsize for s in spec.strides)
    )
    result[...] = y
    return result


def _in_place(x: object, operation: str) -> Array:
    """Return an array that an operation changes; raise if it cannot."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{operation} works in place; x must be an array, not {x!r}")
    one_dtype(operation, x=x.dtype)
    return writable(x, "x")


def _spec(x: Array) -> TensorSpec:
    return TensorSpec(x.shape, tuple(s // x.itemsize for s in x.strides), as_dtype(x.dtype).name)


@defined(signatures.reduce)
def reduce(p: Arguments) -> Array:
    """Compute ``alpha * (op over some axes of x) + beta * out``. See :func:`cudnn_ct.reduce`."""
    dtype, (x,) = p.operands("reduce", "x")
    name = rules.reduce_op(p.op, x.shape, p.axis)
    values = reduced(joined(x, p.axis), name, as_bool(p.propagate_nan, "propagate_nan"))
    return p.deliver(values.reshape(rules.reduced_shape(x.shape, p.axis, p.keepdims)), dtype)


@defined(signatures.reduce_with_indices)
def reduce_with_indices(p: Arguments) -> rules.IndexedReduction[Array]:
    """Compute :func:`reduce` and the first positions. See :func:`cudnn_ct.reduce_with_indices`."""
    dtype, (x,) = p.operands("reduce", "x")
    name = rules.reduce_op(p.op, x.shape, p.axis, indices=True)
    rows, shape = joined(x, p.axis), rules.reduced_shape(x.shape, p.axis, p.keepdims)
    values = reduced(rows, name, as_bool(p.propagate_nan, "propagate_nan"))
    found = (rows == values[..., None]) | (np.isnan(rows) & np.isnan(values[..., None]))
    first = found.argmax(axis=-1) if rows.shape[-1] else np.zeros(values.shape)
    results = (values.reshape(shape), dtype), (wide(first).reshape(shape), np.dtype(np.int32))
    return p.deliver_each(rules.IndexedReduction[Array], results)


def joined(x: Float64, axis: Any) -> Float64:
    """Move the reduced axes behind the others and join them to one."""
    gone = rules.reduce_axes(x.shape, axis)
    kept = [i for i in range(x.ndim) if i not in gone]
    shape = [x.shape[i] for i in kept]
    return x.transpose(*kept, *gone).reshape(*shape, prod(x.shape[i] for i in gone))


_FOLDS: dict[str, Callable[[Float64], Any]] = {
    "add": lambda rows: rows.sum(axis=-1),
    "mul": lambda rows: rows.prod(axis=-1),
    "avg": lambda rows: rows.sum(axis=-1) / rows.shape[-1],
    "norm1": lambda rows: np.abs(rows).sum(axis=-1),
    "norm2": lambda rows: np.sqrt((rows * rows).sum(axis=-1)),
    "mul_no_zeros": lambda rows: np.where(rows == 0, 1, rows).prod(axis=-1),
}


def reduced(rows: Float64, op: str, propagate_nan: bool) -> Float64:
    if op in _FOLDS:
        return np.asarray(_FOLDS[op](rows))
    if not rows.size:  # the result is empty, too
        return np.zeros(rows.shape[:-1])
    smaller, larger = (np.minimum, np.maximum) if propagate_nan else (np.fmin, np.fmax)
    values = np.abs(rows) if op == "amax" else rows
    return np.asarray((smaller if op == "min" else larger).reduce(values, axis=-1))
