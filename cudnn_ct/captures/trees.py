"""Nested arguments and results: their arrays apart from everything else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import Enum
from numbers import Complex
from typing import Any, NamedTuple

from ..array import DeviceArray
from ..cuda import interop
from ..cuda.foreign import LIBRARIES

_NAMES = frozenset(library.module for library in LIBRARIES if library.has_streams)

# Results that a replay may return as they were recorded.
PLAIN = (bool, int, float, complex, str, bytes, range, type(None), Enum)


class Leaf(NamedTuple):
    """The place of an array; ``library`` is that of :func:`library_of`."""

    library: str


class _Constant:
    """A value that is not an array. The type distinguishes 1, 1.0 and True, the text 0.0 and -0.0.

    Numbers include those of NumPy: a float32 is not a Python float.
    """

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = type(value), repr(value) if isinstance(value, Complex) else value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class _Node(NamedTuple):
    """A container: its type, the keys of a dict, and its parts."""

    kind: type
    keys: tuple[Any, ...]
    parts: tuple[Any, ...]


def is_array(value: Any) -> bool:
    """Return whether a value is an array in device memory, of any library."""
    return isinstance(value, DeviceArray) or not interop.in_host_memory(value)


def library_of(array: Any) -> str:
    """Return the library whose functions take an array as it is: torch, cupy, or "" for this package."""
    name = type(array).__module__.partition(".")[0]
    return name if name in _NAMES and name in sys.modules else ""


def _parts_of(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Return the keys and the parts of a dict, list, tuple or named tuple; None for everything else."""
    kind = type(value)
    if kind is dict:
        return tuple(value), tuple(value.values())
    if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return (), tuple(value)
    return None


def _assembled(kind: Any, keys: tuple[Any, ...], parts: list[Any]) -> Any:
    if kind is dict:
        return dict(zip(keys, parts, strict=True))
    return kind(parts) if kind in (list, tuple) else kind(*parts)


def flatten(value: Any, arrays: list[Any], constant: Callable[[Any], object]) -> Any:
    """Append the arrays of a value to ``arrays``, and return a hashable template for :func:`rebuild`.

    ``constant`` is called with each value that is not an array; it raises for one that cannot be a part.
    """
    if (inner := _parts_of(value)) is not None:
        templates = []
        for part in inner[1]:  # not a comprehension, whose frame would keep the arrays in a traceback
            templates.append(flatten(part, arrays, constant))
        return _Node(type(value), inner[0], tuple(templates))
    if is_array(value):
        arrays.append(value)
        return Leaf(library_of(value))
    constant(value)
    return _Constant(value)


def rebuild(template: Any, arrays: Iterator[Any]) -> Any:
    """Return the value of a template, with an array of ``arrays`` in each place."""
    if type(template) is Leaf:
        return next(arrays)
    if type(template) is _Constant:
        return template.value
    return _assembled(template.kind, template.keys, [rebuild(part, arrays) for part in template.parts])


def convert(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with its arrays changed; everything else stays."""
    if (inner := _parts_of(value)) is not None:
        return _assembled(type(value), inner[0], [convert(part, change) for part in inner[1]])
    return change(value) if is_array(value) else value
