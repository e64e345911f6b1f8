"""Versions and combinations that are known to be bad, as data: the doctor reports them."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from . import _files

__all__ = ["rows", "version_numbers", "within"]


def rows(kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind: ``"bad"`` or ``"consumer"``."""
    return list(_table()[kind])


def within(version: str, bounds: dict[str, Any]) -> bool:
    """Return whether a version lies in a range from ``from`` to ``before``, which is outside."""
    have = version_numbers(version)
    low, high = version_numbers(bounds.get("from", "")), version_numbers(bounds.get("before", ""))
    return (not low or have >= low) and (not high or have < high)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version; nothing if there are none."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(digits[:9]) for digits in match[0].split(".")) if match else ()


@lru_cache(maxsize=None)
def _table() -> Any:
    return json.loads(_files.resource("_bad_combinations.json"))
