"""Parsers of parameters: one number or one per axis, a name or an enum member."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from .._hints import word_hint
from .specs import INT_MAX, Shape

Name = TypeVar("Name", bound=str)


def as_list(value: Any) -> Any:
    """Return a NumPy array of integers as a list, nested for its axes; other values as they are."""
    integers = isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "iu"
    return value.tolist() if integers else value


def per_axis(value: Any, axes: int, name: str, minimum: int, other: str = "") -> Shape:
    """Return ``axes`` ints of at least ``minimum`` from one or all; ``other`` values are for the error."""
    value = as_list(value)
    given = value if isinstance(value, Sequence) else (value,) * axes
    try:
        numbers = tuple(map(operator.index, given))
    except TypeError:
        raise TypeError(f"{name} must be an int or a tuple of {axes} ints{other}: got {value!r}") from None
    if len(numbers) != axes:
        raise ValueError(f"{name} {value!r} has {len(numbers)} numbers; the window has {axes} axes")
    for n in numbers:
        if not minimum <= n <= INT_MAX:
            raise ValueError(f"{name} must be between {minimum} and {INT_MAX}: got {value!r}")
    return numbers


def as_choice(value: Any, allowed: tuple[Name, ...], name: str) -> Name:
    """Return one of ``allowed``, from its name or from an enum member of that name."""
    text = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(text, str) or text.lower() not in allowed:
        raise ValueError(
            f"{name} must be one of {', '.join(allowed)}: got {value!r}{word_hint(value, allowed)}"
        )
    return text.lower()  # type: ignore[return-value]  # it is one of them


def as_bool(value: Any, name: str) -> bool:
    """Return a bool, 0, 1 or NumPy bool as a bool; reject other values, which a cache key would keep."""
    if isinstance(value, bool):
        return value
    if isinstance(value, np.bool_) or (isinstance(value, int | np.integer) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} must be True or False: got {value!r}")


def as_int(value: Any, name: str) -> int:
    """Return a Python int, a NumPy integer or another index as an int."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int: got {value!r}") from None


def as_ints(values: Any, name: str) -> Shape:
    """Return a sequence of integers as a tuple of ints, which may be negative."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of integers: got {values!r}") from None


def as_float(value: Any, name: str) -> float:
    """Return a real number as a float."""
    if isinstance(value, str):
        raise TypeError(f"{name} must be a number: got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for a float: got a number above 1.8e308") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number: got {value!r}") from None


def as_element(value: Any, dtype: np.dtype[Any], name: str) -> np.ndarray[Any, Any]:
    """Return a real number as an array of one element, cast to ``dtype``."""
    size = 1
    try:
        item = np.asarray(value)
        size = item.size
        if size == 1 and value is not None and item.dtype.kind not in "cSUmM":
            return item.reshape(1).astype(dtype)
    except OverflowError:
        raise ValueError(f"{name} is too large for {dtype}") from None
    except (TypeError, ValueError):  # NumPy cannot convert it to a number
        pass
    if size != 1:
        raise ValueError(f"{name} must be one number: got {size}")
    raise TypeError(f"{name} must be a real number: got {value!r}")
