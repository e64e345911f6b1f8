"""Check the arguments that operations and descriptors are created with: a row for each type of a field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_args

from .. import typing as types
from .._algorithm_names import checked_name
from ..dtypes import as_dtype
from ..plans.base import Candidate
from ..shapes.conv import PADDINGS
from ..shapes.norm import check_epsilon
from ..shapes.parse import as_choice, as_float, as_int
from ..shapes.specs import INT_MAX
from . import arguments
from .availability import check_context, checked_flag

Check = Callable[[Any, str], Any]
"""Takes a value and the name of its parameter; returns the value to keep, or raises."""

FLOATS = ("float16", "bfloat16", "float32", "float64")


def check_arguments(operation: Any) -> None:
    """Replace each argument of a new operation by its checked value; raise if it is not valid.

    The algorithms of an operation with a ``direction`` are those of convolutions in that direction.
    """
    for field in fields(operation):
        value = getattr(operation, field.name)
        if field.type == "Algo | None":
            checked = _algorithm(value, field.name, operation.direction)
        else:
            checked = CHECKS[str(field.type)](value, field.name)
        setattr(operation, field.name, checked)


def _choice(names: Any) -> Check:
    """Return the check for the strings of a Literal."""
    return lambda value, name: as_choice(value, get_args(names), name)


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
    value = arguments.integers(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _count(value, name, minimum)
    return tuple(_count(number, name, minimum) for number in value)


def _axes(value: Any, name: str) -> Any:
    value = arguments.integers(value)
    return value if isinstance(value, Sequence) and not isinstance(value, str) else as_int(value, name)


def _border(value: Any, name: str) -> Any:
    """Return a word, an int, or for each axis an int or a pair (before, after)."""
    value = arguments.integers(value)
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
    "Epsilon | None": _optional(lambda value, _: check_epsilon(value)),
    "Factor | None": _optional(_factor),
    "DTypeLike": lambda value, name: as_choice(as_dtype(value).name, FLOATS, name),
    "DTypeLike | None": _optional(lambda value, _: as_dtype(value).name),
    "PoolMode": _choice(types.PoolMode),
    "Precision": _choice(types.Precision),
    "RNNDirection": _choice(types.RNNDirection),
    "RNNMode": _choice(types.RNNMode),
    "SoftmaxAlgo": _choice(types.SoftmaxAlgo),
    "SoftmaxMode": _choice(types.SoftmaxMode),
    "RNNInputMode": _choice(arguments.RNNInputMode),
    "SoftmaxFormat | None": _optional(_choice(arguments.SoftmaxFormat)),
    "TheanoConvMode": _choice(arguments.TheanoConvMode),
    "TheanoNormMode": _choice(arguments.TheanoNormMode),
    "TheanoReduceOp": _choice(arguments.TheanoReduceOp),
}
