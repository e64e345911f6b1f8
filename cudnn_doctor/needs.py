"""Requirements for a cuDNN, and whether versions meet them."""

from __future__ import annotations

import operator
import re
from typing import NamedTuple

from .read.bad_combinations import version_numbers


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
