"""Tables of functions by the names of operations, made from the names of the functions."""

from __future__ import annotations

from inspect import isfunction
from typing import Any

__all__ = ["defined", "private"]


def defined(module: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return functions of a module by their names; without names, all public ones that it defines."""
    if names:
        return {name: module[name] for name in names}
    public = {name: one for name, one in module.items() if isfunction(one) and not name.startswith("_")}
    return {name: one for name, one in public.items() if one.__module__ == module["__name__"]}


def private(module: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the function ``_name`` of a module for each name."""
    return {name: module[f"_{name}"] for name in names}
