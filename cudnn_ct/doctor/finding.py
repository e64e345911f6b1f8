"""Findings and their codes; ``findings.toml`` has the severity, cause and fix of each code."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["REINSTALL", "Code", "Finding", "Severity", "codes", "finding"]

# If no package owns the cuDNN.
REINSTALL = "install cuDNN again, and no other cuDNN over it"


class Severity(IntEnum):
    """The severity of a finding; sorts the most severe first."""

    ERROR = 0
    WARNING = 1
    NOTE = 2

    @property
    def word(self) -> str:
        """The name in reports."""
        return self.name.lower()


@dataclass(frozen=True)
class Code:
    """One row of ``findings.toml``."""

    name: str
    severity: Severity
    cause: str
    fix: str


@dataclass(frozen=True)
class Finding:
    """One defect or note."""

    code: str  # its row in `codes`
    severity: Severity  # that of its row, unless a flag such as ``--require-driver`` raises it
    message: str  # one line with the values
    evidence: dict[str, Any]  # paths and numbers, by name
    fix: str  # a command if possible

    @property
    def cause(self) -> str:
        """The reason, and its effects."""
        return codes()[self.code].cause


@cache
def codes() -> dict[str, Code]:
    """Return all codes, in the order of the table."""
    text = Path(__file__).with_name("findings.toml").read_text(encoding="utf-8")
    return {
        name: Code(name, Severity[row["severity"].upper()], row["cause"], row["fix"])
        for name, row in tomllib.loads(text).items()
    }


def finding(
    code: str,
    message: str,
    *,
    severity: Severity | None = None,
    fix: dict[str, str] | None = None,
    **evidence: Any,
) -> Finding:
    """Create a finding: keywords are evidence, which fills the template of the fix together with ``fix``."""
    # Raises KeyError if the code does not exist, or if the template needs another value.
    row = codes()[code]
    values = {"reinstall": REINSTALL, **evidence, **(fix or {})}
    if "path" in values:  # part of a command
        values["path"] = shlex.quote(values["path"])
    text = row.fix.format_map(values)
    one_line = " ".join(message.split())
    return Finding(code, row.severity if severity is None else severity, one_line, evidence, text)
