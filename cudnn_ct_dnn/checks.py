"""Types, checks and conversions of arguments.

Operations and descriptors check those that they are created with: a row for each type of a field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from cudnn_ct import typing as types
from cudnn_ct._algorithm_names import checked_name
from cudnn_ct.array import DeviceArray
from cudnn_ct.array_creation import as_operand
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.errors import warn_caller
from cudnn_ct.ops._operands import stream_of
from cudnn_ct.ops.tensor import transform
from cudnn_ct.plans.base import Candidate
from cudnn_ct.shapes.conv import PADDINGS
from cudnn_ct.shapes.norm import check_epsilon
from cudnn_ct.shapes.parse import as_choice, as_float, as_int
from cudnn_ct.shapes.specs import INT_MAX
from cudnn_ct.typing import Algo, ArrayLike, Padding, PerAxis

from .availability import check_context, checked_flag, run

Sizes: TypeAlias = PerAxis | NDArray[np.integer[Any]]
"""A shape or one integer per axis; Theano's programs also pass NumPy arrays."""

Border: TypeAlias = Padding | NDArray[np.integer[Any]]
Epsilon: TypeAlias = float
Factor: TypeAlias = float

# Theano's names.
TheanoConvMode: TypeAlias = Literal["conv", "cross"]
DirectionHint: TypeAlias = Literal["bprop weights", "bprop inputs", "forward", "forward!"]
TheanoNormMode: TypeAlias = Literal["per-activation", "spatial"]
RNNInputMode: TypeAlias = Literal["linear", "skip"]
SoftmaxFormat: TypeAlias = Literal["bc01"]
TheanoReduceOp: TypeAlias = Literal["add", "mul", "minimum", "maximum", "absmax", "avg", "norm1", "norm2"]

Check = Callable[[Any, str], Any]
"""Takes a value and the name of its parameter; returns the value to keep, or raises."""

FLOATS = ("float16", "bfloat16", "float32", "float64")


class Checked:
    """An operation or a descriptor whose arguments are checked when it is created."""

    def __post_init__(self) -> None:
        check_arguments(self)


def check_arguments(operation: Any) -> None:
    """Replace each argument of a new operation by its checked value; raise if it is not valid.

    The algorithms of an operation with a ``direction`` are those of convolutions in that direction.
    """
    for field in fields(operation):
        value = getattr(operation, field.name)
        if field.type == "Algo | None":
            checked = _algorithm(value, field.name, operation.direction)
        else:
            checked = check_of(str(field.type))(value, field.name)
        setattr(operation, field.name, checked)


def check_of(annotation: str) -> Check:
    """Return the check for the type of a field: that of its row, or for the strings of a Literal."""
    if annotation in CHECKS:
        return CHECKS[annotation]
    if annotation.endswith(" | None"):
        return _optional(check_of(annotation.removesuffix(" | None")))
    words = get_args(globals().get(annotation) or getattr(types, annotation))
    return lambda value, name: as_choice(value, words, name)


def _optional(check: Check) -> Check:
    return lambda value, name: None if value is None else check(value, name)


def _algorithm(algo: Any, name: str, direction: str) -> Any:
    if algo is None or isinstance(algo, Candidate):
        return algo
    text = algo if isinstance(algo, str) else getattr(algo, "name", None)
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a name or a Candidate: got {algo!r}")
    try:
        return checked_name(text, direction)
    except ValueError as error:
        raise ValueError(f"{name} is not valid for {direction}: got {text!r}, {error}") from None


def _count(value: Any, name: str, minimum: int = 1) -> int:
    number = as_int(value, name)
    if not minimum <= number <= INT_MAX:
        raise ValueError(f"{name} must be between {minimum} and {INT_MAX}: got {value!r}")
    return number


def _numbers(value: Any, name: str, minimum: int = 1) -> Any:
    """Return an int, or a sequence of an int for each axis."""
    value = integers(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _count(value, name, minimum)
    return tuple(_count(number, name, minimum) for number in value)


def _axes(value: Any, name: str) -> Any:
    value = integers(value)
    return value if isinstance(value, Sequence) and not isinstance(value, str) else as_int(value, name)


def _border(value: Any, name: str) -> Any:
    """Return a word, an int, or for each axis an int or a pair (before, after)."""
    value = integers(value)
    if isinstance(value, str):
        return as_choice(value, PADDINGS, name)
    if not isinstance(value, Sequence):
        return _count(value, name, 0)
    return tuple(_numbers(side, name, 0) for side in value)


def _factor(value: Any, name: str) -> float:
    factor = as_float(value, name)
    if not 0 <= factor <= 1:
        raise ValueError(f"{name} must be between 0 and 1: got {value!r}")
    return factor


def _context(value: Any, name: str) -> Any:  # noqa: ARG001 - the error names the parameter
    check_context(value)
    return value


CHECKS: dict[str, Check] = {
    "bool": checked_flag,
    "int": _count,
    "int | str | None": _context,
    "Sizes": _numbers,
    "Sizes | None": _optional(_axes),
    "Border": _border,
    "Epsilon": lambda value, _: check_epsilon(value),
    "Factor": _factor,
    "DTypeLike": lambda value, name: as_choice(as_dtype(value).name, FLOATS, name),
    "DTypeLike | None": _optional(lambda value, _: as_dtype(value).name),
}


# --- conversions -------------------------------------------------------------------------------------------


def integers(value: Any) -> Any:
    """Return a NumPy array of integers as a list, or as an int if it has no axes; anything else unchanged.

    A list is a snapshot: changing the array later has no effect.
    """
    return value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else value


def on_device(array: ArrayLike, name: str) -> DeviceArray:
    """Return an argument as a DeviceArray, without a copy."""
    return as_operand(array, name, stream_of(array, name, None))


def copied(array: ArrayLike, name: str) -> DeviceArray:
    """Return a copy of an array."""
    return run(transform, on_device(array, name))


def overwritten(target: ArrayLike, result: DeviceArray) -> DeviceArray:
    """Copy a result to an operand, for operations that cuDNN does not compute in place."""
    return run(transform, result, out=target)


def algorithm(algo: Algo | None, workmem: str | None) -> Algo | None:
    """Return the algorithm, which may be given as the deprecated ``workmem``."""
    if workmem is None:
        return algo
    warn_caller(f"workmem is deprecated; write algo={workmem!r}", DeprecationWarning)
    if algo is not None:
        raise ValueError(
            f"workmem and algo are the same argument: got {workmem!r} and {algo!r}; pass algo alone"
        )
    return workmem
