"""One finding, and the codes that there are: ``findings.toml`` has for each its severity, cause and fix."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Code", "Finding", "Severity", "codes", "finding"]

# Where nothing tells which package brought the cuDNN.
REINSTALL = "install cuDNN again, and nothing over it"


class Severity(IntEnum):
    """How bad a finding is; sorts the worst first."""

    ERROR = 0
    WARNING = 1
    NOTE = 2

    @property
    def word(self) -> str:
        """The word that people and programs read."""
        return self.name.lower()


@dataclass(frozen=True)
class Code:
    """One row of ``findings.toml``: a stable name, how bad it is, why it happens, and what to do."""

    name: str
    severity: Severity
    cause: str
    fix: str


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes
    ----------
    code : str
        Its row in ``codes()``.
    severity : Severity
        That of its row, unless a flag such as ``--require-driver`` raised it.
    message : str
        What was found, in one line with its values.
    evidence : dict
        Paths and numbers that show it, by name.
    fix : str
        What to do, ready to paste where it is a command.
    """

    code: str
    severity: Severity
    message: str
    evidence: dict[str, Any]
    fix: str

    @property
    def cause(self) -> str:
        """Why such a thing happens, and what it leads to."""
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
    """Make a finding of a code: ``fix`` fills the template of its row, other keywords are evidence.

    Raises
    ------
    KeyError
        For a code that there is not, or a value that its fix needs and does not get.
    """
    row = codes()[code]
    values = {"reinstall": REINSTALL, **(fix or {})}
    if "path" in values:  # it stands in a command
        values["path"] = shlex.quote(values["path"])
    text = row.fix.format_map(values)
    one_line = " ".join(message.split())
    return Finding(code, row.severity if severity is None else severity, one_line, evidence, text)
