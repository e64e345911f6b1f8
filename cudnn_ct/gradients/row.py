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
    """Arguments of a gradient.

    ``arrays`` has the saved arrays, and the gradient of each differentiable result under its name after a
    ``d``, such as ``dy``; those that were not given are None. ``shapes`` has the shapes of all operands,
    ``params`` the parameters, and ``wanted`` the names of the operands whose gradients are needed.
    """

    arrays: Mapping[str, Any]
    shapes: Mapping[str, Any]
    params: Mapping[str, Any]
    wanted: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def some(self, *names: str) -> dict[str, Any]:
        """Return the parameters with these names."""
        return {name: self.params[name] for name in names}


Gradient = Callable[[Any, Backward], dict[str, Any]]
Needs = Mapping[str, tuple[str, ...]]


class Row(NamedTuple):
    """An operation with a gradient, or one that a gradient calls.

    ``function`` is the public function of the package, which is called with ``fixed`` besides the parameters.
    Operands in ``optional`` may be None, those in ``updated`` are written. ``results`` are fields of the
    function's result, or the name of its only one; the first ``differentiable`` of them are so, unless there
    is no ``gradient`` of the row. ``needs`` has the differentiable operands, each with the operands and
    results that its gradient reads; it is a function of the parameters if they decide that. ``gradient``
    returns the gradients of the operands that are wanted, and maybe of others. ``batch`` has the axis of the
    samples for each operand and result that has one: samples do not depend on each other.
    """

    function: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    params: Mapping[str, Param] = NONE
    optional: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = NONE
    needs: Needs | Callable[[Mapping[str, Any]], Needs] = NONE
    gradient: Gradient | None = None
    batch: Mapping[str, int] = NONE
    differentiable: int = 1


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
