"""Attributes of arrays of other libraries: errors that name the attribute or the function of this package."""

from __future__ import annotations

from numbers import Number
from typing import Any, NoReturn, TypeVar

from ._hints import ATTRIBUTES, OPERATORS

Array = TypeVar("Array", bound=type)


class _ForeignAttribute:
    """An attribute that an array does not have, as :func:`hasattr` and :func:`dir` see it.

    A ``__getattr__`` of the class would make each read of its other attributes slower.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, array: object, owner: type) -> NoReturn:
        raise AttributeError(self.text)


def with_hints(cls: Array) -> Array:
    """Let attributes and operators that other libraries' arrays have raise errors that name ours."""
    for name, hint in ATTRIBUTES.items():
        text = f"a {cls.__name__} has no attribute {name!r}; write {hint}"
        setattr(cls, name, _ForeignAttribute(text))
    for name, (sign, hint) in OPERATORS.items():
        method = _rejected(cls, f"a {cls.__name__} has no operator {sign}; write {hint}")
        for special in (name, f"r{name}"):
            setattr(cls, f"__{special}__", method)
    setattr(cls, "__dir__", _known_names)  # noqa: B010  # mypy rejects the assignment
    return cls


def _known_names(array: object) -> list[str]:
    """Return the names of an array for ``dir``, without those of other libraries."""
    return [name for name in object.__dir__(array) if name not in ATTRIBUTES]


def _rejected(cls: type, text: str) -> Any:
    """Return a method that raises for arrays and numbers, and leaves other operands to their own classes."""

    def method(_: object, other: object = 0) -> object:
        if isinstance(other, (cls, Number)):
            raise TypeError(text)
        return NotImplemented

    return method
