"""Format a diagnosis as text, as JSON, or as GitHub annotations."""

from __future__ import annotations

import json
import os
import textwrap
from itertools import groupby
from typing import Any

from . import checks, requirements
from .diagnosis import Diagnosis
from .finding import Severity
from .libraryset import LibrarySet, write
from .terminal import printable

__all__ = ["FORMATS", "SCHEMA", "as_dict", "github", "json_text", "text", "verdict", "wants_colour"]

SCHEMA = 1  # increased when a key is removed or changes its meaning; new keys may be added

WIDTH = 100
_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}
_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def text(diagnosis: Diagnosis, colour: bool = False) -> str:
    """Format as text: the verdict, then the findings, the most severe first."""

    def paint(words: str, code: str) -> str:
        return f"\033[{code}m{words}\033[0m" if colour else words

    shade = {"sound": "32", "suspicious": "33"}.get(diagnosis.verdict, "31")
    lines = [paint(printable(verdict(diagnosis)), f"1;{shade}")]
    indent = " " * 9
    # Findings of one code are shown together, with their cause once.
    for (severity, code), group in groupby(diagnosis.findings, lambda each: (each.severity, each.code)):
        first, *others = group
        word = paint(f"{severity.word:<8}", f"1;{_COLOURS[severity]}")
        lines += ["", f"{word} {paint(code, '1')}: {printable(first.message)}"]
        lines += [indent + printable(other.message) for other in others]
        if severity != Severity.NOTE:
            lines += textwrap.wrap(first.cause, WIDTH, initial_indent=indent, subsequent_indent=indent)
            fixes = dict.fromkeys(each.fix for each in (first, *others))
            lines += [f"{indent}fix: {printable(fix)}" for fix in fixes]
    if diagnosis.commands:
        lines += ["", "commands that repair it:", *(f"  {printable(each)}" for each in diagnosis.commands)]
    return "\n".join(lines)


def verdict(diagnosis: Diagnosis) -> str:
    """Format the verdict in one line."""
    if not diagnosis.sets:
        return f"{diagnosis.subject or repr('')}: no cuDNN was examined"
    first = diagnosis.sets[0]
    built = f" for CUDA {first.cuda}" if first.cuda else ""
    more = f" and {len(diagnosis.sets) - 1} more" if len(diagnosis.sets) > 1 else ""
    counts = ", ".join(
        f"{number} {severity.word}{'s' if number > 1 else ''}"
        for severity in Severity
        if (number := diagnosis.count(severity))
    )
    tail = f" ({counts})" if counts else ""
    return f"cuDNN {write(first.version)}{built} in {first.folder}{more}: {diagnosis.verdict}{tail}"


def json_text(diagnosis: Diagnosis, strict: bool = False) -> str:
    """Format as one JSON object."""
    return json.dumps(as_dict(diagnosis, strict), indent=2, default=str)


def as_dict(diagnosis: Diagnosis, strict: bool = False) -> dict[str, Any]:
    """Return all values for JSON; docs/doctor.md describes the keys."""
    return {
        "schema": SCHEMA,
        "subject": diagnosis.subject,
        "verdict": diagnosis.verdict,
        "exit_code": diagnosis.exit_code(strict),
        "errors": diagnosis.count(Severity.ERROR),
        "warnings": diagnosis.count(Severity.WARNING),
        "notes": diagnosis.count(Severity.NOTE),
        "tiers": diagnosis.tiers,
        "cudnn": [_set(found) for found in diagnosis.sets],
        "findings": [
            {
                "code": found.code,
                "severity": found.severity.word,
                "message": found.message,
                "cause": found.cause,
                "evidence": found.evidence,
                "fix": found.fix,
                "commands": found.commands,
            }
            for found in diagnosis.findings
        ],
        "commands": diagnosis.commands,
        "details": diagnosis.details,
    }


def github(diagnosis: Diagnosis) -> str:
    """Format as workflow commands, one for each finding, and the verdict as the last line."""
    rows = []
    for found in diagnosis.findings:
        body = f"{found.message}\n{found.cause}\nfix: {found.advice}"
        title = _property(f"cudnn-ct doctor: {found.code}")
        rows.append(f"::{_GITHUB[found.severity]} title={title}::{_data(printable(body, keep=chr(10)))}")
    return "\n".join([*rows, printable(verdict(diagnosis))])


FORMATS = ("text", "json", "github")


def wants_colour(stream: Any) -> bool:
    """Return whether to use colours: on a terminal, unless NO_COLOR is set."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _set(found: LibrarySet) -> dict[str, Any]:
    sass, ptx = checks.coverage(found)
    return {
        "folder": found.folder,
        "version": write(found.version) if found.version else None,
        "cuda": found.cuda or None,
        "sass": sorted(sass & requirements.REAL),
        "ptx": sorted(ptx),
        "libraries": [
            {
                "name": library.name or "libcudnn",
                "path": library.path,
                "real": library.real,
                "version": write(library.version) if library.version else None,
                "cuda": found.majors.get(library.name),
                "problem": str(library.error) if library.error else None,
            }
            for library in found.libraries.values()
        ],
    }


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")
