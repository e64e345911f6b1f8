"""Examine a cuDNN: run the tiers of checks in order, and combine their findings."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .. import _files
from .._installation import companion_version
from .._libraries import old_version
from . import checks, dependents, driver, libraryset, load_check, locate, record_check, requirements, search
from .finding import Finding, Severity, codes, finding
from .libraryset import LibrarySet, write
from .requirements import Requirements

__all__ = ["Diagnosis", "diagnose", "sort", "static", "verdict_lines"]


@dataclass(frozen=True)
class Diagnosis:
    """The result of an examination.

    Attributes
    ----------
    subject : str
        The path or the process that was examined.
    sets : tuple of LibrarySet
        Each cuDNN that was read, in the order of the search.
    findings : tuple of Finding
        The most severe first.
    tiers : dict
        For each tier ``"done"``, or why it was skipped.
    details : dict
        Results of the child processes, for programs.
    """

    subject: str
    sets: tuple[LibrarySet, ...]
    findings: tuple[Finding, ...]
    tiers: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def count(self, severity: Severity) -> int:
        """Count the findings of a severity."""
        return sum(found.severity == severity for found in self.findings)

    @property
    def verdict(self) -> str:
        """``sound``, ``suspicious`` (warnings), ``broken`` (errors), or ``not found``."""
        errors = {found.code for found in self.findings if found.severity == Severity.ERROR}
        if not self.sets and errors <= _NOTHING_SEEN:
            return "not found"
        if self.count(Severity.ERROR):
            return "broken"
        return "suspicious" if self.count(Severity.WARNING) else "sound"

    def exit_code(self, strict: bool = False) -> int:
        """Return 0 if sound, 1 for errors, 2 for warnings if ``strict``, 3 if nothing could be examined."""
        return {"sound": 0, "suspicious": 2 if strict else 0, "broken": 1, "not found": 3}[self.verdict]


def diagnose(
    path: str | os.PathLike[str] | None = None,
    asked: Requirements | None = None,
    *,
    deep: bool = False,
    timeout: float = 60.0,
    run: bool = True,
) -> Diagnosis:
    """Examine a cuDNN.

    Parameters
    ----------
    path : path, optional
        A library, its folder, a site-packages, or the root of an image; by default the cuDNN that programs
        on this machine use.
    asked : Requirements, optional
        Requirements that it must meet.
    deep : bool
        Whether to hash every file of a wheel, which reads all of it.
    timeout : float
        Time limit in seconds for all child processes together.
    run : bool
        Whether to open it in child processes. Otherwise nothing is executed.

    Returns
    -------
    Diagnosis
        Defects are findings; they raise no exception.
    """
    asked = asked or Requirements()
    end = time.monotonic() + timeout
    subject = os.fspath(path) if path is not None else "this machine"
    try:
        located = locate.named(subject) if path is not None else locate.usual()
    except locate.CannotLookError as error:
        return Diagnosis(subject, (), (finding("cannot-look", str(error)),))
    findings = list(located.findings)
    if path is not None:
        chosen = located.found
    else:  # with a wrong setting no cuDNN is loaded, so none is judged
        misled = any(found.code == "wrong-setting" for found in findings)
        chosen = () if misled else located.found[:1]
    sets: list[LibrarySet] = []
    older: list[str] = []
    for place in chosen:
        findings += place.findings
        if (found := libraryset.read(place.folder, located.root)) is None:
            older.append(place.folder)
            continue
        owners = record_check.owners(found.folder)
        sets.append(replace(found, reinstall=record_check.reinstall(owners, found.package)))
        findings += static(sets[-1], owners, asked, deep)
    findings += [_older(folder, alone=not sets) for folder in older]
    if not sets and not any(each.severity == Severity.ERROR for each in findings):
        findings.append(finding("no-cudnn", f"no cuDNN was found: {subject}"))
    running = _Running(sets, findings, asked, end)
    skipped = dict.fromkeys(("child", "driver"), "not requested")
    tiers = running.run(foreign=located.root != "/") if run else skipped
    return Diagnosis(subject, tuple(sets), sort(findings), {"static": "done", **tiers}, running.details)


def verdict_lines(path: str | os.PathLike[str]) -> list[str]:
    """Return the errors and warnings about a cuDNN as lines for an exception.

    Only files are read. Errors of the doctor itself give no lines.

    Parameters
    ----------
    path : path
        A library of cuDNN, or its folder.

    Returns
    -------
    list of str
        One line for each error and warning; empty when there are none.
    """
    try:
        found = diagnose(path, run=False).findings
    except Exception:
        return []
    return [
        f"doctor: {each.code}: {each.message}; fix: {each.fix}"
        for each in found
        if each.severity < Severity.NOTE
    ]


def static(
    found: LibrarySet, owners: list[record_check.Distribution], asked: Requirements, deep: bool
) -> Iterator[Finding]:
    """Run all checks that only read files."""
    for check in checks.CHECKS:
        yield from check(found)
    yield from record_check.check(found, owners, deep)
    yield from requirements.check(found, asked)
    yield from search.check_headers(found)
    yield from search.check_competition(found)
    yield from search.check_companions(found)
    yield from dependents.check(found, owners)
    yield from dependents.known_bad(found, _cublas(found), asked.archs)
    yield from load_check.check_libc(found)


def sort(findings: list[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, then in the order of the table of codes; drop duplicates."""
    order = {name: place for place, name in enumerate(codes())}
    unique = {(found.code, found.message): found for found in findings}.values()
    return tuple(sorted(unique, key=lambda found: (found.severity, order[found.code])))


@dataclass
class _Running:
    """The tiers that need child processes: each runs only if no earlier finding prevents it."""

    sets: list[LibrarySet]
    findings: list[Finding]
    asked: Requirements
    end: float  # when the time limit is over
    details: dict[str, Any] = field(default_factory=dict)

    def run(self, foreign: bool) -> dict[str, str]:
        """Run the tiers, and return for each ``"done"`` or why it was skipped."""
        child = self._load()
        if child != "done" and self.sets:
            self.findings.append(finding("not-probed", child, fix={"advice": _ADVICE[foreign]}))
        usable = self.sets[0] if self.sets and child == "done" and not self._bad() else None
        if foreign:
            reason = "an image has no driver of its own: the doctor must run in it, on its machine"
            if self.asked.driver or self.asked.gpu:
                self.findings.append(finding("no-driver", reason, severity=Severity.ERROR))
            return {"child": child, "driver": reason}
        return {"child": child, "driver": self._drive(usable)}

    def _load(self) -> str:
        if not self.sets:
            return "no cuDNN to load"
        for found in self.sets:
            reason = load_check.why_not(found) or ("its files have errors" if self._bad() else "")
            if reason:
                return f"cuDNN was not loaded: {reason}"
        competing = [f.code for f in self.findings if f.code in ("shadowed", "preloaded")]
        for found in self.sets:
            if competing:  # reinstalling does not help if other libraries are loaded
                found = replace(found, reinstall=f"see {competing[0]}")
            findings, report = load_check.check(found, self._left())
            self.findings += findings
            self.details.setdefault("child", load_check.describe(report))
        return "done"

    def _drive(self, usable: LibrarySet | None) -> str:
        if not self.sets and not (self.asked.driver or self.asked.gpu):
            return "no cuDNN to use it"
        if any(found.code == "probe-hung" for found in self.findings):
            return "cuDNN used all of the time"  # the driver would appear to hang too
        findings, report = driver.check(usable, self.asked, self._left())
        self.findings += findings
        if usable:
            self.findings += dependents.known_bad(
                usable, _cublas(usable), driver.archs(report), driver.count(report)
            )
        self.details["driver"] = driver.describe(report)
        return "done"

    def _bad(self) -> bool:
        """Return whether the files themselves have errors, apart from requirements and other cuDNNs."""
        return any(f.severity == Severity.ERROR and f.code not in _BESIDE for f in self.findings)

    def _left(self) -> float:
        return max(self.end - time.monotonic(), 0.05)


_ADVICE = {True: "run the doctor inside the image, on its own machine", False: "see the errors above"}

# The codes that can be the only errors if no cuDNN was examined.
_NOTHING_SEEN = {"no-cudnn", "none-loaded", "cannot-look", "internal-error", "no-driver", "no-gpu"}

# Errors with which loading still gives information: requirements, and libraries from other folders.
_BESIDE = {
    "unexpected-version", "unexpected-cuda", "no-gpu-code", "header-mismatch", "link-elsewhere", "shadowed",
    "preloaded", "missing-system-library", "missing-cublaslt",
}  # fmt: skip


def _older(folder: str, alone: bool) -> Finding:
    """Describe a folder with another major version: before 9, an error if no cuDNN 9 was found."""
    newest = max(name.major for name in _files.cudnn_files(folder))
    if newest > 9:
        text = f"{folder} contains cuDNN {newest}, which this version of cudnn_ct does not support"
        return finding("cannot-look", text, path=folder)
    version = old_version(folder, 8) or old_version(folder, 7)
    what = f"cuDNN {write(version)}" if version else "a cuDNN older than 9"
    code = "old-cudnn" if alone else "other-cudnn"
    return finding(code, f"{folder} contains {what}", path=folder, version=write(version))


def _cublas(found: LibrarySet) -> str:
    path = search.find_companion(found, f"libcublasLt.so.{found.cuda}")
    return companion_version(path) if path else ""
