"""Immutable snapshots of call arguments, which are part of a call's cache key."""

from __future__ import annotations

import operator
from enum import Enum
from typing import Any

from ..array import DeviceArray
from ..shapes.checks import as_list


def as_key(value: Any) -> Any:
    """Return an argument with tuples for lists at every depth; raise TypeError if a part is not hashable."""
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


PLAIN = frozenset((bool, float, int, str, range, type(None)))  # immutable types


def freeze(value: Any) -> Any:
    """Return an immutable snapshot of an argument for cache keys; raise TypeError for an invalid one."""
    if type(value) in PLAIN or isinstance(value, Enum):
        return value
    value = as_list(value)
    if isinstance(value, list | tuple):
        parts = tuple([part if type(part) in PLAIN else freeze(part) for part in value])
        if isinstance(value, tuple) and all(map(operator.is_, parts, value)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else parts
    if str(getattr(value, "dtype", None)) == "bool" and not value.shape:  # a NumPy bool
        return bool(value)
    if not isinstance(value, DeviceArray):
        for number in (operator.index, float):
            try:
                return number(value)
            except (TypeError, ValueError):
                continue
    return as_key(value)


def enum_names(values: Any, *fields: str) -> Any:
    """Replace enum members in ``fields`` by their names: members of different enums compare equal as ints."""
    names = {field: value.name for field in fields if isinstance(value := getattr(values, field), Enum)}
    return values._replace(**names) if names else values


def scaling_kind(alpha: bool, beta: bool) -> str:
    """Name the factor that differs from its default, for the field ``scaled`` of `ConvProblem`."""
    return "alpha" if alpha else "beta" if beta else ""
