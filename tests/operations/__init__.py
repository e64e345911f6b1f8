"""All that the tests know of an operation, in one module for each operation with its gradient.

A module here needs no entry elsewhere: its table ``OPERATIONS`` has a row for each public name, of which the
tables of `tests.oracle` and `tests.op_cases` take their parts. Older operations have rows in those tables.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ._operation import Door, Operation, same

__all__ = ["FOUND", "Door", "Operation", "each", "same"]

_NAMES = sorted(one.name for one in iter_modules(__path__) if not one.name.startswith("_"))
FOUND: list[dict[str, Operation]] = [import_module(f".{name}", __name__).OPERATIONS for name in _NAMES]


def each(field: str) -> dict[str, Any]:
    """Return a field of all operations that have it, by their names."""
    rows = [(name, getattr(one, field)) for module in FOUND for name, one in module.items()]
    return {name: value for name, value in rows if value is not None}
