"""Format a diagnosis as text and for programs (JSON, SARIF, JUnit and others), and explain codes."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from time import gmtime, strftime
from typing import Any

from . import __version__, checks
from .diagnosis import Diagnosis
from .finding import Finding, Severity, codes, printable
from .libraryset import LibrarySet, write
from .records import of_text

WIDTH = 100
FEW = 5  # messages of one code that are shown without --verbose
_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}
_INDENT = " " * 9


def text(diagnosis: Diagnosis, colour: bool = False, verbose: bool = False) -> str:
    """Format as text: the verdict, what was verified, then the findings, in their order."""

    def paint(words: str, code: str) -> str:
        return f"\033[{code}m{words}\033[0m" if colour else words

    shade = {"sound": "32", "suspicious": "33"}.get(diagnosis.verdict, "31")
    lines = [paint(printable(verdict(diagnosis)), f"1;{shade}")]
    if diagnosis.verdict == "sound":
        lines.append(f"verified: {printable(verified(diagnosis))}")
    # Findings of one code are shown together, with their cause once.
    for (severity, code), group in groupby(diagnosis.findings, lambda each: (each.severity, each.code)):
        first, *others = group
        word = paint(f"{severity.word:<8}", f"1;{_COLOURS[severity]}")
        lines += ["", f"{word} {paint(code, '1')}: {printable(first.message)}"]
        shown = others if verbose else others[: FEW - 1]
        lines += [_INDENT + printable(other.message) for other in shown]
        if others[len(shown) :]:
            lines.append(f"{_INDENT}and {len(others) - len(shown)} more, which --verbose lists")
        if severity != Severity.NOTE or verbose:
            lines += _wrapped(first.cause)
            fixes = dict.fromkeys(each.fix for each in (first, *others))
            lines += [f"{_INDENT}fix: {printable(fix)}" for fix in fixes]
    for found in diagnosis.sets:
        lines += _defects(found, diagnosis.known_defects(found), verbose)
    if diagnosis.ignored:
        lines += ["", f"ignored: {', '.join(diagnosis.ignored)}"]
    if diagnosis.commands:
        image = any(found.root != "/" for found in diagnosis.sets)
        locked = [each.evidence.get("path", "") for each in diagnosis.findings if each.code == "read-only"]
        where = ", inside the image:" if image else ":"
        where = f", after {printable(locked[0])} can be written:" if any(locked) else where
        lines += ["", f"commands that repair it{where}"]
        lines += [f"  {printable(each)}" for each in diagnosis.commands]
    if verbose:
        lines += ["", "checked:", *(f"  {printable(line)}" for line in _checked(diagnosis))]
    return "\n".join(lines)


def verdict(diagnosis: Diagnosis) -> str:
    """Format the verdict in one line."""
    if not diagnosis.sets:
        return f"{diagnosis.subject or repr('')}: no cuDNN was examined"
    first = diagnosis.sets[0]
    built = " JIT" if first.jit else ""
    built += f" for CUDA {first.cuda}" if first.cuda else ""
    more = f" and {len(diagnosis.sets) - 1} more" if len(diagnosis.sets) > 1 else ""
    counts = ", ".join(
        f"{number} {severity.word}{'s' if number > 1 else ''}"
        for severity in Severity
        if (number := diagnosis.count(severity))
    )
    tail = f" ({counts})" if counts else ""
    return f"cuDNN {write(first.version)}{built} in {first.folder}{more}: {diagnosis.verdict}{tail}"


def verified(diagnosis: Diagnosis) -> str:
    """Return in one line which checks ran."""
    libraries = sum(len(found.libraries) for found in diagnosis.sets)
    done = [f"{libraries} libraries read"] if libraries else []
    recorded = sum(len(owner.record) for found in diagnosis.sets for owner in found.owners)
    if recorded:
        how = "size and hash" if diagnosis.details.get("deep") else "size"
        done.append(f"{recorded} files compared with their RECORD by {how}")
    if diagnosis.tiers.get("child") == "done":
        done.append("cuDNN loaded and its own checks passed")
    devices = diagnosis.details.get("driver", {}).get("devices", [])
    done += [f"handle created on {device['name']}" for device in devices if not device["status"]]
    covered = filter(None, dict.fromkeys(map(_gpus, diagnosis.sets)))
    done += [f"code for compute capability {gpus}" for gpus in covered]
    return ", ".join(done) or "nothing"


def explanation(name: str) -> str:
    """Return the page of a code."""
    code = codes()[name]
    lines = [f"{code.name} ({code.severity.word})", "", *textwrap.wrap(code.cause, WIDTH), ""]
    lines += textwrap.wrap(f"Fix: {code.general_fix}", WIDTH)
    return "\n".join([*lines, *(f"  {command}" for command in code.general_commands)])


def _defects(found: LibrarySet, rows: list[dict[str, Any]], verbose: bool) -> Iterator[str]:
    """Yield the known defects of a version in single operations; only their number unless ``verbose``."""
    if not rows:
        return
    numbers = Counter(row["operations"][0] for row in rows)
    names = {"all": "any operation"}
    counts = ", ".join(f"{names.get(name, name)} {number}" for name, number in numbers.items())
    rest = "" if verbose else "; --verbose lists them"
    yield ""
    yield f"known defects of cuDNN {write(found.version)} in single operations: {counts}{rest}"
    for row in rows if verbose else ():
        arch = row.get("arch", {})
        limits = [f"{bound} {arch[bound]}" for bound in ("from", "before") if bound in arch]
        conditions = [*row["when"], *([f"compute capability {' '.join(limits)}"] if limits else [])]
        text = f" ({'; '.join(conditions)})" if conditions else ""
        yield f"  {row['effect']}: {', '.join(row['operations'])}{text}"
        yield from _wrapped(f"{row['message']}; {row['advice']}")
        yield f"{_INDENT}{row['source']}"


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _checked(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what was read and run, and the GPUs for which each cuDNN has code."""
    for found in diagnosis.sets:
        yield f"cuDNN {write(found.version)} in {found.folder}"
        for library in found.libraries.values():
            facts = [write(library.version)] if library.version else []
            facts += [f"CUDA {found.majors[library.name]}"] if library.name in found.majors else []
            yield f"  {library.file}: {str(library.error) if library.error else ', '.join(facts) or 'read'}"
        yield from (f"  {len(owner.record)} files of {owner.label}" for owner in found.owners)
        yield from (f"  requirement: {need}" for need in (*found.needs, *found.others))
        yield f"  GPUs: {_gpus(found) or 'unknown'}"
    for tier, state in diagnosis.tiers.items():
        yield f"{tier}: {state}"


def _gpus(found: LibrarySet) -> str:
    sass, ptx = checks.coverage(found)
    real = [f"{arch / 10:.1f}" for arch in sorted(sass & checks.REAL)]
    newer = [f"PTX for GPUs newer than {max(ptx) / 10:.1f}"] if ptx else []
    return ", ".join(real + newer)


# --- for programs ------------------------------------------------------------------------------------------

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
        "verified": verified(diagnosis),
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
    return "\n".join([*rows, printable(verdict(diagnosis))])


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
    rows.append(_case(printable(verdict(diagnosis))))
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
        "sass": sorted(sass & checks.REAL),
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
