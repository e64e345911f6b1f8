"""Format a diagnosis for programs: JSON, GitHub annotations, SARIF, JUnit and GitLab code quality."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from time import gmtime, strftime
from typing import Any

from . import __version__, checks, report, requirements
from .diagnosis import Diagnosis
from .finding import Finding, Severity, codes
from .libraryset import LibrarySet, write
from .sha256 import of_text
from .terminal import printable

SCHEMA = 1  # increased when a key is removed or changes its meaning; new keys may be added

PAGE = "https://pypi.org/project/cudnn-ct/"  # of the documentation of this package
_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
_GITLAB = {Severity.ERROR: "critical", Severity.WARNING: "minor", Severity.NOTE: "info"}


def json_text(diagnosis: Diagnosis, fail_on: Severity) -> str:
    """Format as one JSON object; docs/doctor.schema.json is its schema."""
    return json.dumps(as_dict(diagnosis, fail_on), indent=2, default=str)


def as_dict(diagnosis: Diagnosis, fail_on: Severity = Severity.ERROR) -> dict[str, Any]:
    """Return all values for JSON; docs/doctor.md describes the keys."""
    return {
        "schema": SCHEMA,
        "subject": diagnosis.subject,
        "verdict": diagnosis.verdict,
        "exit_code": diagnosis.exit_code(fail_on),
        "errors": diagnosis.count(Severity.ERROR),
        "warnings": diagnosis.count(Severity.WARNING),
        "notes": diagnosis.count(Severity.NOTE),
        "verified": report.verified(diagnosis),
        "tiers": diagnosis.tiers,
        "cudnn": [_set(found, diagnosis) for found in diagnosis.sets],
        "findings": [
            {
                "code": found.code,
                "severity": found.severity.word,
                "message": found.message,
                "cause": found.cause,
                "evidence": found.evidence,
                "fix": found.fix,
                "commands": list(found.commands),
            }
            for found in diagnosis.findings
        ],
        "commands": list(diagnosis.commands),
        "ignored": list(diagnosis.ignored),
        "details": diagnosis.details,
    }


def github(diagnosis: Diagnosis, _: Severity) -> str:
    """Format as workflow commands, one for each finding, and the verdict as the last line."""
    rows = []
    for found in diagnosis.findings:
        title = _data(f"cudnn-ct doctor: {found.code}").replace(":", "%3A")  # a code has no comma
        rows.append(f"::{_GITHUB[found.severity]} title={title}::{_data(_words(found))}")
    return "\n".join([*rows, printable(report.verdict(diagnosis))])


def sarif(diagnosis: Diagnosis, _: Severity) -> str:
    """Format as SARIF 2.1.0, which code scanning reads."""
    from urllib.parse import quote  # takes 5 ms

    used = list(dict.fromkeys(found.code for found in diagnosis.findings))
    rules = [
        {
            "id": code.name,
            "name": "Cudnn" + "".join(map(str.capitalize, code.name.split("-"))),  # differs from the id
            "shortDescription": {"text": f"{code.cause.partition('. ')[0].rstrip('.')}."},
            "fullDescription": {"text": code.cause},
            "help": {"text": f"Fix: {code.general_fix}."},
            "helpUri": PAGE,
            "defaultConfiguration": {"level": code.severity.word},
        }
        for code in map(codes().__getitem__, used)
    ]
    uris = (quote(_place(found, diagnosis)) for found in diagnosis.findings)
    # GitHub requires a line.
    places = [{"artifactLocation": {"uri": uri}, "region": {"startLine": 1}} for uri in uris]
    results = [
        {
            "ruleId": found.code,
            "ruleIndex": used.index(found.code),
            "level": found.severity.word,
            "message": {"text": _words(found)},
            "locations": [{"physicalLocation": place}],
            "partialFingerprints": {"finding/v1": of_text(f"{found.code} {found.message}")},
            "properties": {"evidence": found.evidence, "commands": list(found.commands)},
        }
        for found, place in zip(diagnosis.findings, places)
    ]
    tool = {"name": "cudnn-ct doctor", "version": __version__, "informationUri": PAGE, "rules": rules}
    run = {"tool": {"driver": tool}, "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2, default=str)


def junit(diagnosis: Diagnosis, fail_on: Severity) -> str:
    """Format as JUnit XML: each finding is a test case, which fails from the severity ``fail_on`` on."""
    # The schemas of Ant and Jenkins: Ant requires all attributes, and the output at the end of the suite.
    failures = sum(found.severity <= fail_on for found in diagnosis.findings)
    counts = f'tests="{len(diagnosis.findings) + 1}" failures="{failures}" errors="0" time="0"'
    when = strftime("%Y-%m-%dT%H:%M:%S", gmtime())
    head = f'<testsuite name="cudnn-ct doctor" {counts} timestamp="{when}" hostname="localhost">'
    rows = ['<?xml version="1.0" encoding="utf-8"?>', head, "  <properties/>"]
    rows.append(_case(printable(report.verdict(diagnosis))))
    for found in diagnosis.findings:
        kind = f'type="{found.severity.word}" message="{_xml(found.message)}"'
        failure = f"<failure {kind}>{_xml(_words(found))}</failure>"
        rows.append(_case(found.code, failure if found.severity <= fail_on else ""))
    passed = "\n\n".join(_words(found) for found in diagnosis.findings if found.severity > fail_on)
    rows.append(f"  <system-out>{_xml(passed)}</system-out>\n  <system-err/>\n</testsuite>")
    return "\n".join(rows)


def _case(name: str, body: str = "") -> str:
    return f'  <testcase classname="cudnn-ct doctor" name="{_xml(name)}" time="0">{body}</testcase>'


def gitlab(diagnosis: Diagnosis, _: Severity) -> str:
    """Format as GitLab's code quality report."""
    rows = [
        {
            "description": _words(found),
            "check_name": found.code,
            "fingerprint": of_text(f"{found.code} {found.message}"),
            "severity": _GITLAB[found.severity],
            "location": {"path": _place(found, diagnosis), "lines": {"begin": 1}},
        }
        for found in diagnosis.findings
    ]
    return json.dumps(rows, indent=2)


FORMATS: dict[str, Callable[[Diagnosis, Severity], str]] = {
    "json": json_text,
    "github": github,
    "sarif": sarif,
    "junit": junit,
    "gitlab": gitlab,
}


def _set(found: LibrarySet, diagnosis: Diagnosis) -> dict[str, Any]:
    sass, ptx = checks.coverage(found)
    return {
        "folder": found.folder,
        "version": write(found.version) if found.version else None,
        "kind": found.kind,
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
        "known_defects": diagnosis.known_defects(found),
    }


def _words(found: Finding) -> str:
    """Return message, cause, fix and commands, each in its line."""
    lines = [found.message, found.cause, f"fix: {found.fix}", *found.commands]
    return printable("\n".join(lines), keep="\n")


def _place(found: Finding, diagnosis: Diagnosis) -> str:
    path = found.evidence.get("path") or diagnosis.subject
    return printable(str(path)).lstrip("/") or "root"  # a relative path that does not begin with a dot


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _xml(words: str) -> str:
    words = re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", words)
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("\n", "&#10;")):
        words = words.replace(sign, entity)
    return words
