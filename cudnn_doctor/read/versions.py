"""Versions of cuDNN: as numbers and text, what needs them, and the rows of ``facts.json`` about them.

Rows of the kind ``install`` make an installation suspicious: the doctor warns of them. Those of ``consumer``
are the versions that programs need. The others are facts about single operations: operations obey them
(`facts`), and the doctor lists those with a public source. The fields are described in docs/doctor.md.
"""

from __future__ import annotations

import json
import operator
import re
from functools import lru_cache
from typing import Any, NamedTuple, Tuple

from . import files as _files

Version = Tuple[int, int, int]


def version_number(version: Version) -> int:
    """Return a version as ``cudnnGetVersion`` does: 9.27.0 is 92700, 8.9.7 is 8907."""
    major, minor, patch = version
    return major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch


def dotted(version: tuple[int, ...]) -> str:
    """Format a version, such as ``9.27.0``."""
    return ".".join(map(str, version))


def format_version(version: int) -> str:
    """Format a cuDNN version number: ``92700`` is ``"9.27.0"``, ``8907`` is ``"8.9.7"``."""
    major = 10_000 if version >= 90_000 else 1_000  # cuDNN 9 changed the packing
    return f"{version // major}.{version % major // 100}.{version % 100}"


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


class Need(NamedTuple):
    """A requirement for a cuDNN."""

    package: str  # the wheel; empty if the version alone counts
    versions: str  # a specifier such as ``>=9.1,<10``
    consumer: str  # the package, with its version, or the flag that requires it
    path: str = ""  # its metadata
    built: bool = False  # whether it was built for such a cuDNN, which any package may provide
    optional: bool = False  # whether only a part of the package uses cuDNN

    @property
    def cuda(self) -> int:
        """The CUDA major version of the wheel; 0 if the version alone counts."""
        return int(self.package.rpartition("-cu")[2]) if self.package else 0

    @property
    def achievable(self) -> bool:
        """Whether a fix can meet it: not an undeclared requirement of a program for cuDNN 8."""
        return bool(self.package) or consistent([self.versions, ">=9"])

    def __str__(self) -> str:
        return f"{self.consumer} needs {self.package or 'cudnn'} {self.versions or '(any)'}"


def meets(version: str, specifier: str) -> bool:
    """Return whether a version meets a specifier such as ``>=9.1,<10``."""
    # Clauses that cannot be parsed count as met, to avoid false alarms.
    return all(_one(version, clause.strip()) for clause in specifier.split(",") if clause.strip())


def consistent(specifiers: list[str]) -> bool:
    """Return whether a version can meet all specifiers."""
    # If one can, one of their bounds does, or a version shortly after a bound.
    bounds = ["0", "9", *re.findall(r"\d+(?:\.\d+)*", " ".join(specifiers))]
    candidates = [*bounds, *(f"{bound}.99999" for bound in bounds)]
    return any(all(meets(version, each) for each in specifiers) for version in candidates)


def tightest(specifiers: list[str]) -> list[str]:
    """Drop the bounds that another one of the same kind implies, such as <9.28 next to <9.11."""
    bounds = [re.fullmatch(r"(<|>=)([\d.]+)", each) for each in specifiers]
    numbers = [(bound[1], version_numbers(bound[2])) if bound else ("", ()) for bound in bounds]
    best = {symbol: [n for s, n in numbers if s == symbol] for symbol in ("<", ">=")}
    kept = {("<", min(best["<"], default=())), (">=", max(best[">="], default=())), ("", ())}
    return [each for each, number in zip(specifiers, numbers) if number in kept]


def _one(version: str, clause: str) -> bool:
    match = re.fullmatch(r"(===|==|!=|~=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?", clause)
    if not match:
        return True
    symbol, text, star = match.groups()
    have, wanted = version_numbers(version), version_numbers(text)
    if symbol == "~=":
        return have[: len(wanted) - 1] == wanted[:-1] and have >= wanted
    size = len(wanted) if star else max(len(have), len(wanted))
    have, wanted = ((numbers + (0,) * size)[:size] for numbers in (have, wanted))
    return bool(_COMPARE[symbol](have, wanted))


_COMPARE = {
    "==": operator.eq, "===": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip
