"""Versions and combinations that are known to be bad, as data.

``_bad_combinations.json`` has three tables. Rows of ``bad`` make an installation suspicious: the doctor
warns of them. Rows of ``defects`` concern single operations of cuDNN: the doctor lists those of the version
that it examines, and operations avoid them or warn (`autotune.known`). Rows of ``consumer`` are the versions
that programs need. The fields are described in docs/doctor.md.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from . import _files

__all__ = ["defects", "rows", "version_numbers", "within"]


def rows(kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind: ``"bad"``, ``"defects"`` or ``"consumer"``."""
    return list(_table()[kind])


def defects(version: str, operation: str = "", arch: str = "") -> list[dict[str, Any]]:
    """Return the known defects of a version of cuDNN.

    ``operation`` selects the rows of one operation. ``arch``, such as ``"9.0"``, drops those of other GPUs.
    """
    return [
        row
        for row in rows("defects")
        if within(version, row["cudnn"])
        and (not operation or operation in row["operations"])
        and (not arch or within(arch, row.get("arch", {})))
    ]


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
