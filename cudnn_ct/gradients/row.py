"""Rows of the table of operations with a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

NONE: Mapping[str, Any] = MappingProxyType({})


class Param(NamedTuple):
    """A parameter that is not an array: its kind, and its default.

    A ``shape`` may be symbolic while a program is traced. ``padding`` has a number for each axis, or two, for
    both sides of each. An ``ints`` has a number for each axis or one for all, ``lengths`` one for a sequence.
    """

    kind: Literal["int", "float", "bool", "str", "ints", "padding", "shape", "lengths"]
    default: Any = None
    optional: bool = False


@dataclass(frozen=True)
class Backward:
    """Arguments of a gradient."""

    arrays: Mapping[str, Any]  # those saved, and the gradients of results (``dy``), None if not given
    shapes: Mapping[str, Any]  # of all operands
    params: Mapping[str, Any]
    wanted: frozenset[str]  # the operands whose gradients are needed

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def some(self, *names: str) -> dict[str, Any]:
        """Return the parameters with these names."""
        return {name: self.params[name] for name in names}


Gradient = Callable[[Any, Backward], dict[str, Any]]
Needs = Mapping[str, tuple[str, ...]]


class Row(NamedTuple):
    """An operation with a gradient, or one that a gradient calls."""

    operands: tuple[str, ...]
    results: tuple[str, ...]  # fields of the function's result, or the name of its only one
    params: Mapping[str, Param] = NONE
    optional: tuple[str, ...] = ()  # operands that may be None
    updated: tuple[str, ...] = ()  # operands that are written
    fixed: Mapping[str, Any] = NONE
    # The differentiable operands, each with the operands and results that its gradient reads; a function if
    # the parameters decide it.
    needs: Needs | Callable[[Mapping[str, Any]], Needs] = NONE
    gradient: Gradient | None = None  # may return more than the wanted ones
    batch: Mapping[str, int] = NONE  # axes of samples, which do not depend on each other
    differentiable: int = 1  # so many results, unless there is no ``gradient``
    function: str = ""  # public, called with ``fixed`` besides the parameters; by default that of the name


def needs_of(row: Row, params: Mapping[str, Any]) -> Needs:
    """Return the differentiable operands with the operands and results that their gradients read."""
    return row.needs(params) if callable(row.needs) else row.needs


def saved_names(row: Row, params: Mapping[str, Any], wanted: frozenset[str]) -> tuple[str, ...]:
    """Return the operands and results that the gradients of the wanted operands read, in a fixed order."""
    needs = needs_of(row, params)
    read = {name for operand in wanted for name in needs.get(operand, ())}
    return tuple(name for name in (*row.operands, *row.results) if name in read)


def arguments(row: Row, params: Mapping[str, Any], operands: Mapping[str, Any], axes: int) -> dict[str, Any]:
    """Return the keywords of the public function; ``padding`` is read by the number of spatial axes."""
    keywords: dict[str, Any] = {**operands, **row.fixed}
    for name, param in row.params.items():
        value = params[name]
        if param.kind == "padding":
            value = _padding(tuple(value), axes)
        elif param.kind == "ints" and value is not None:
            value = tuple(value) if len(value) > 1 else value[0]
        elif param.kind == "shape":
            value = tuple(value)
        if value is not None or param.default is not None:
            keywords[name] = value
    return keywords


def _padding(numbers: tuple[int, ...], axes: int) -> Any:
    """Return a padding for each axis: a number, or a pair of the numbers before and after."""
    if len(numbers) == 2 * axes and len(numbers) > 1:
        return tuple(zip(numbers[::2], numbers[1::2], strict=True))
    return numbers[0] if len(numbers) == 1 else numbers
