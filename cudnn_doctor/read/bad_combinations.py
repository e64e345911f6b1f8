"""The rows of ``facts.json`` for readers with Python 3.8, such as the doctor.

Rows of the kind ``install`` make an installation suspicious: the doctor warns of them. Those of ``consumer``
are the versions that programs need. The others are facts about single operations: operations obey them
(`facts`), and the doctor lists those with a public source. The fields are described in docs/doctor.md.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from . import files as _files

_OTHERS = ("install", "consumer")


def rows(kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind: ``"install"``, ``"consumer"``, or ``"defects"`` with a public source."""
    if kind != "defects":
        return [row for row in table() if row["kind"] == kind]
    return [row for row in table() if row["kind"] not in _OTHERS and "source" in row]


def defects(version: str, operation: str = "", arch: str = "") -> list[dict[str, Any]]:
    """Return the known defects of a version of cuDNN that have a public source.

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
def table() -> Any:
    """Return all rows."""
    return json.loads(_files.resource("cudnn_ct/facts.json"))["facts"]
