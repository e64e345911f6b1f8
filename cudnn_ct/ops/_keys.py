"""The arguments of a call as an immutable snapshot: the part of its key that the caller wrote."""

from __future__ import annotations

import operator
from enum import Enum
from typing import Any

from ..array import DeviceArray

__all__ = ["PLAIN", "as_key", "enum_names", "freeze", "scaling_kind"]


def as_key(value: Any) -> Any:
    """Lists as tuples, at every depth: arguments as a key.

    Raises
    ------
    TypeError
        Something else in them cannot be part of a key; no parameter of an operation is such a thing.
    """
    try:
        hash(value)
    except TypeError:
        if not isinstance(value, list | tuple):
            raise TypeError(
                f"{value!r} is not a valid parameter; expected a number or a tuple of numbers"
            ) from None
        parts = map(as_key, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


PLAIN = frozenset((bool, float, int, str, range, type(None)))  # of arguments that cannot change


def freeze(value: Any) -> Any:
    """An argument as it is now, at every depth, and itself where it cannot change: else a key would lie.

    Raises
    ------
    TypeError
        It can be no parameter of an operation.
    """
    if type(value) in PLAIN or isinstance(value, Enum):
        return value
    if isinstance(value, list | tuple):
        parts = tuple(map(freeze, value))
        if isinstance(value, tuple) and all(map(operator.is_, parts, value)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else parts
    if str(getattr(value, "dtype", None)) == "bool" and not value.shape:  # of NumPy
        return bool(value)
    if not isinstance(value, DeviceArray):
        for number in (operator.index, float):
            try:
                return number(value)
            except (TypeError, ValueError):
                continue
    return as_key(value)


def enum_names(told: Any, *fields: str) -> Any:
    """A named tuple in which enums among ``fields`` are their names: members of many enums are one number."""
    names = {field: value.name for field in fields if isinstance(value := getattr(told, field), Enum)}
    return told._replace(**names) if names else told


def scaling_kind(alpha: bool, beta: bool) -> str:
    """Name the factor that differs from its default, for the field ``scaled`` of `ConvProblem`."""
    return "alpha" if alpha else "beta" if beta else ""
