"""Findings and their codes, and their text on terminals.

``findings.json`` has the severity, cause, fix and commands of each code.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from .read import files as _files


class Severity(IntEnum):
    """The severity of a finding; sorts the most severe first."""

    ERROR = 0
    WARNING = 1
    NOTE = 2

    @property
    def word(self) -> str:
        """The name in reports."""
        return self.name.lower()


class Fix(NamedTuple):
    """A way to repair an installation."""

    text: str  # in prose
    commands: tuple[str, ...] = ()  # for a shell; each runs as it is, after the ones before it


# The values of templates where a code is described without a finding.
_ANY = {
    "reinstall": "install this cuDNN again, with the commands of the report",
    "path": "PATH",
    "paths": "PATHS",
    "file": "the file that it stands for",
    "folder": "FOLDER",
    "target": "its target",
    "package": "the package that contains it",
    "consumer": "the package",
    "driver": "the version in the report",
    "meant": "the name in the report",
    "variable": "the variable",
    "unset": "unset LD_LIBRARY_PATH and LD_PRELOAD if they are set; then ",
    "advice": "follow the advice of the report",
}

# If no package owns the cuDNN.
AGAIN = Fix("install cuDNN again, and no other cuDNN over it")


class Code(NamedTuple):
    """One row of ``findings.json``; ``fix`` and ``commands`` are templates."""

    name: str
    severity: Severity
    cause: str
    fix: str
    commands: Sequence[str] = ()

    @property
    def general_fix(self) -> str:
        """The fix without the values of a finding."""
        return self.fix.format_map(_ANY)

    @property
    def general_commands(self) -> tuple[str, ...]:
        """The commands without the values of a finding."""
        return tuple(command.format_map(_ANY) for command in self.commands)


@dataclass(frozen=True)
class Finding:
    """One defect or note."""

    code: str  # its row in `codes`
    severity: Severity  # that of its row, unless a flag such as ``--require-driver`` raises it
    message: str  # one line with the values
    evidence: dict[str, Any]  # paths and numbers, by name
    fix: str  # in prose
    commands: tuple[str, ...] = ()  # the same for a shell, if commands can do it

    @property
    def cause(self) -> str:
        """The reason, and its effects."""
        return codes()[self.code].cause

    @property
    def advice(self) -> str:
        """The fix with its commands, in one line."""
        return ": ".join(filter(None, [self.fix, " && ".join(self.commands)]))


@lru_cache(maxsize=None)
def codes() -> dict[str, Code]:
    """Return all codes, in the order of the table."""
    rows = json.loads(_files.resource("cudnn_doctor/findings.json"))
    return {name: Code(name, Severity[row.pop("severity").upper()], **row) for name, row in rows.items()}


def finding(
    code: str,
    message: str,
    *,
    severity: Severity | None = None,
    repair: Fix = AGAIN,
    fix: Mapping[str, str | Sequence[str]] | None = None,
    commands: Sequence[str] = (),
    **evidence: Any,
) -> Finding:
    """Create a finding: keywords are evidence, which fills the templates of its row together with ``fix``.

    ``repair`` is the way to install the cuDNN again. ``commands`` replace those of the row.
    """
    # Raises KeyError if the code does not exist, or if a template needs another value.
    row = codes()[code]
    values = {"reinstall": repair.text, **evidence, **(fix or {})}
    lists = {name: [value] if isinstance(value, str) else value for name, value in values.items()}
    quoted = {name: " ".join(map(shlex.quote, value)) for name, value in lists.items() if _is_texts(value)}
    made = [template.format_map(quoted) for template in row.commands]
    prose = {name: ", ".join(value) if _is_texts(value) else value for name, value in lists.items()}
    return Finding(
        code,
        row.severity if severity is None else severity,
        " ".join(message.split()),
        evidence,
        row.fix.format_map(prose),
        tuple(commands or made or (repair.commands if "{reinstall}" in row.fix else ())),
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


# --- text on terminals -------------------------------------------------------------------------------------


_UNDECODED = re.compile("[\\udc80-\\udcff]+")  # how Python keeps bytes that it cannot decode


def printable(text: str, keep: str = "") -> str:
    """Escape the control characters of a text, except those in ``keep``."""
    # Bytes that the locale of this process cannot decode are read as UTF-8, and escaped if they are not
    # UTF-8.
    text = _UNDECODED.sub(
        lambda run: run[0].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), text
    )
    return "".join(c if c.isprintable() or c in keep else f"\\x{ord(c):02x}" for c in text)


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal that obeys control characters; None is a closed stream."""
    return bool(stream and stream.isatty()) and os.environ.get("TERM") != "dumb"


def is_styled(stream: Any) -> bool:
    """Return whether to use colours: on a terminal, unless NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")
