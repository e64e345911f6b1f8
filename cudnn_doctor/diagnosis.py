"""Examine a cuDNN: run the tiers of checks in order, and combine their findings."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from . import checks, companions, conda, libraryset, locate, packages, records, search
from .checks import Requirements
from .finding import Finding, Severity, codes, finding
from .libraryset import LibrarySet, divided, target, write
from .read import files as _files
from .read.installation import companion_version
from .read.libraries import old_version


@dataclass(frozen=True)
class Diagnosis:
    """The result of an examination."""

    subject: str  # the path or the process that was examined
    sets: tuple[LibrarySet, ...]  # each cuDNN that was read, in the order of the search
    findings: tuple[Finding, ...]  # causes of others, then the most severe, first
    tiers: dict[str, str] = field(default_factory=dict)  # for each "done", or why it was skipped
    details: dict[str, Any] = field(default_factory=dict)  # results of the child processes, for programs
    ignored: tuple[str, ...] = ()  # the codes of findings that were left out

    def count(self, severity: Severity) -> int:
        """Count the findings of a severity."""
        return sum(found.severity == severity for found in self.findings)

    @property
    def verdict(self) -> str:
        """``sound``, ``suspicious`` (warnings), ``broken`` (errors), ``not as required`` or ``not found``."""
        errors = {found.code for found in self.findings if found.severity == Severity.ERROR}
        if not self.sets and errors <= _NOTHING_SEEN:
            return "not found"
        if errors:
            return "not as required" if errors <= _REQUIREMENTS else "broken"
        return "suspicious" if self.count(Severity.WARNING) else "sound"

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that repair everything that commands can, each of which needs the ones before it."""
        wrong = (found for found in self.findings if found.severity != Severity.NOTE)
        commands = [*chain.from_iterable(dict.fromkeys(found.commands for found in wrong))]
        again = (each.endswith(" -m ensurepip") and each in commands[:at] for at, each in enumerate(commands))
        once = [each for each, repeated in zip(commands, again) if not repeated]
        # Modes first, because other commands may delete the files.
        return tuple(sorted(once, key=lambda each: not each.startswith("chmod ")))

    def known_defects(self, found: LibrarySet) -> list[dict[str, Any]]:
        """Return the known defects of a cuDNN in single operations, on the GPUs if the driver listed them."""
        archs = [device["arch"] for device in self.details.get("driver", {}).get("devices", [])]
        return packages.known_defects(found, archs)

    def exit_code(self, fail_on: Severity = Severity.ERROR) -> int:
        """Return 1 for errors and findings from the severity ``fail_on`` on, 3 if nothing was examined."""
        if self.verdict not in ("sound", "suspicious"):
            return 3 if self.verdict == "not found" else 1
        return int(any(found.severity <= fail_on for found in self.findings))

    def without(self, ignored: Container[str]) -> Diagnosis:
        """Leave out the findings of some codes."""
        kept = tuple(found for found in self.findings if found.code not in ignored)
        left_out = dict.fromkeys(found.code for found in self.findings if found.code in ignored)
        return replace(self, findings=kept, ignored=tuple(left_out))


def diagnose(
    path: str | os.PathLike[str] | None = None,
    asked: Requirements | None = None,
    *,
    deep: bool = False,
    timeout: float = 60.0,
    run: bool = True,
) -> Diagnosis:
    """Examine a cuDNN; defects are findings, and raise no exception.

    ``path`` is a library, its folder, a site-packages, or the root of an image; by default the cuDNN that
    programs on this machine use. ``asked`` has requirements that it must meet, ``deep`` hashes every file of
    a wheel, ``timeout`` is the limit in seconds for all child processes together. Without ``run`` nothing is
    executed.
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
        if search.is_misplaced(place.folder, located.root):
            findings += search.misplaced(place.folder, located.root)
        elif found := libraryset.read(place.folder, located.root):
            own = records.site_of(found.folder)
            linked = (place.site,) if place.site not in ("", own) else ()
            found = replace(found, sites=linked)
            users = packages.needs(found, located.sites, shared=path is None or located.shared)
            found = packages.with_needs(found, (*users, *asked.needs))
            found = found if own or linked else replace(found, sites=located.sites)
            sets.append(found)
            findings += static(found, asked, deep, located if path is None else None)
        else:
            older.append(place.folder)
    findings += _lost(located, asked, Severity.WARNING if sets else Severity.ERROR)
    findings += [_older(folder, located, alone=not sets) for folder in older]
    if not sets and not any(each.severity == Severity.ERROR for each in findings):
        none = finding("no-cudnn", f"no cuDNN was found: {subject}")
        closed = any(each.code == "unreadable-folder" for each in findings)
        findings.append(replace(none, fix=f"see unreadable-folder; else {none.fix}") if closed else none)
    details: dict[str, Any] = {"deep": deep}
    tiers = {"static": "done", "child": "not requested", "driver": "not requested"}
    if run:
        tiers.update(_run(sets, findings, details, asked, end, foreign=located.root != "/"))
    for found in sets:
        findings = _together(found, findings)
    if located.root == "/":
        folders = [found.folder for found in sets] + older or list(located.sites)
        findings += _unwritable(findings, [records.site_of(folder) or folder for folder in folders])
    if located.root != "/":  # a shell outside of it would change this machine
        inside = [replace(each, fix=f"{each.fix} (inside the image)") for each in findings]
        findings = [new if new.commands else old for new, old in zip(inside, findings)]
    return Diagnosis(subject, tuple(sets), sort(findings), tiers, details)


def verdict_lines(path: str | os.PathLike[str]) -> list[str]:
    """Return a line for each error and warning about a library or its folder, as notes of an exception."""
    # Only files are read.
    return [
        f"doctor: {each.code}: {each.message}; fix: {each.advice}"
        for each in diagnose(path, run=False).findings
        if each.severity < Severity.NOTE
    ]


def static(
    found: LibrarySet, asked: Requirements, deep: bool, usual: locate.Places | None = None
) -> Iterator[Finding]:
    """Run all checks that only read files; ``usual`` has the cuDNNs of this machine, if it was searched."""
    yield from search.check_competition(found, usual=usual)
    for check in (
        *checks.CHECKS, search.check_run_paths, search.check_headers, _check_companions,
        packages.check_dependents, conda.check, companions.check_libc, companions.check_memory,
    ):  # fmt: skip
        yield from check(found)
    yield from packages.check_records(found, deep)
    yield from checks.check_requirements(found, asked)
    yield from packages.known_bad(found, _cublas(found), asked.archs)


def sort(findings: list[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, then in the order of the table of codes; drop duplicates."""
    # A cause to which the fixes of other findings refer precedes them, whatever its severity.
    order = {name: place for place, name in enumerate(codes())}
    causes = {found.code for found in findings if any(f"see {found.code}" in each.fix for each in findings)}
    unique: dict[tuple[str, str], Finding] = {}
    for each in sorted(findings, key=lambda each: (each.code not in causes, each.severity, order[each.code])):
        unique.setdefault((each.code, each.message), each)
    return tuple(unique.values())


def _run(
    sets: list[LibrarySet],
    findings: list[Finding],
    details: dict[str, Any],
    asked: Requirements,
    end: float,
    foreign: bool,
) -> dict[str, str]:
    """Run the tiers that need child processes; add findings and details, and return the state of each."""
    from . import driver, load_check  # take 4 ms

    child = _why_not_loaded(sets, findings)
    if not child:
        competing = [found.code for found in findings if found.code in _COMPETING]
        shadows = {_files.real(each.evidence["path"]) for each in findings if each.code == "shadowed"}
        for found in sets:
            if competing:  # reinstalling does not help
                found = replace(found, advice=f"see {competing[0]}")
            found_by_check, report = load_check.check(found, _left(end))
            findings += [  # without the libraries of a folder that is reported as `shadowed`
                each
                for each in found_by_check
                if each.code != "mixed-at-run-time" or os.path.dirname(each.evidence["path"]) not in shadows
            ]
            details.setdefault("child", load_check.describe(report))
    elif sets:
        advice = "run the doctor inside the image, on its own machine" if foreign else "see the errors above"
        findings.append(finding("not-probed", child, fix={"advice": advice}))
    usable = sets[0] if not child and not _bad(findings) else None
    why = _why_no_driver(sets, findings, asked, foreign)
    if not why:
        found_by_check, report = driver.check(usable, asked, _left(end), sets[0].cuda if sets else 0)
        findings += found_by_check
        if usable:
            archs = [device["arch"] for device in report.all("device")]
            findings += packages.known_bad(usable, _cublas(usable), archs, len(archs))
        details["driver"] = driver.describe(report)
    elif foreign and (asked.driver or asked.gpu):
        advice = "check the driver on a machine that runs the image"
        findings.append(finding("no-driver", why, severity=Severity.ERROR, fix={"advice": advice}))
    return {"child": child or "done", "driver": why or "done"}


def _why_not_loaded(sets: list[LibrarySet], findings: list[Finding]) -> str:
    if not sets:
        return "no cuDNN to load"
    from .load_check import why_not

    bad = "its files have errors" if _bad(findings) else ""
    reason = next(filter(None, (why_not(found) or bad for found in sets)), "")
    return reason and f"cuDNN was not loaded: {reason}"


def _why_no_driver(
    sets: list[LibrarySet], findings: list[Finding], asked: Requirements, foreign: bool
) -> str:
    if foreign:
        return "an image has no driver of its own: the doctor must run in it, on its machine"
    if not sets and not (asked.driver or asked.gpu):
        return "no cuDNN to use it"
    if any(found.code == "probe-hung" for found in findings):
        return "a child process used all of the time"  # the driver would appear to hang too
    return ""


def _bad(findings: list[Finding]) -> bool:
    """Return whether the files themselves have errors, apart from requirements and other cuDNNs."""
    return any(found.severity == Severity.ERROR and found.code not in _BESIDE for found in findings)


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.05)


# Errors of other libraries: reinstalling cuDNN changes nothing.
_COMPETING = ("shadowed", "preloaded", "memory-limit", "missing-system-library", "old-system-library")

# The codes that can be the only errors if no cuDNN was examined.
_NOTHING_SEEN = {"no-cudnn", "none-loaded", "cannot-look", "internal-error", "no-driver", "no-gpu"}

# Errors about requirements, which a sound cuDNN may not meet.
_REQUIREMENTS = {"unexpected-version", "unexpected-cuda", "no-gpu-code", "no-driver", "no-gpu"}

# Errors with which loading still gives information: requirements, and libraries from other folders.
_BESIDE = {
    *_REQUIREMENTS, "header-mismatch", "link-elsewhere", "lost-link", "shadowed", "preloaded",
    "missing-system-library", "old-system-library", "missing-cublaslt", "memory-limit",
}  # fmt: skip


def _check_companions(found: LibrarySet) -> Iterator[Finding]:
    """Check the companion libraries; if the fix installs a cuDNN for another CUDA, it installs them too."""
    other = target(found) not in ("", found.package)
    for each in companions.check(found):
        of_cuda = each.code in ("missing-cublaslt", "missing-nvrtc")
        again = found.repair
        yield replace(each, fix=again.text, commands=again.commands) if other and of_cuda else each
    if other and found.owners and target(found) == found.owners[0].name:  # it is installed alone
        after = companions.check(replace(found, libraries={}))
        yield from (each for each in after if each.severity == Severity.ERROR)


def _lost(located: locate.Places, asked: Requirements, severity: Severity) -> Iterator[Finding]:
    """Report installed wheels of cuDNN whose libraries were deleted."""
    for folder in (folder for site in located.sites for folder in records.wheel_folders(site)):
        present = any(_files.cudnn_files(folder)) or _files.closed(folder)
        if search.is_misplaced(folder, located.root):
            yield from search.misplaced(folder, located.root)
        found = None if present else libraryset.read(folder, located.root, deleted=True)
        if found and found.owners:
            found = packages.with_needs(found, (*packages.needs(found), *asked.needs))
            label, link = found.owners[0].label, _files.dangling(folder, located.root)
            text = f"pip lists {label} as installed, but {found.folder} contains no library"
            text += f": {link} is a link to a folder that does not exist" if link else ""
            code = "broken-link" if link else "missing-library"
            yield found.finding(code, text, severity=severity, path=link or found.folder)
            yield from checks.check_access(found)
            for each in search.check_competition(found):
                if severity == Severity.ERROR or each.code in ("shadowed", "preloaded"):  # else reported
                    yield replace(each, severity=max(each.severity, severity))
            if severity == Severity.ERROR:
                yield from companions.check(found)


def _together(found: LibrarySet, findings: list[Finding]) -> list[Finding]:
    """Replace the fix of a library that must be deleted, if the fix of another finding deletes it too."""
    # Also if the packages need different cuDNNs, because it is a file of one of them.
    again, site = found.repair, records.site_of(found.folder)
    recorded = {os.path.join(site, path) for owner in found.owners for path in owner.record}
    strays = {library.path for library in found.libraries.values() if found.is_stray(library)}
    kept = recorded.union(set(found.unowned) - strays) if divided(found) else set()
    also = any(again.commands and each.commands == again.commands for each in findings)
    paths = kept.union(found.leftovers) if also else kept
    return [
        replace(each, fix=again.text, commands=again.commands)
        if each.code in ("stray-library", "unowned-library") and each.evidence["path"] in paths
        else each
        for each in findings
    ]


def _unwritable(findings: list[Finding], folders: list[str]) -> Iterator[Finding]:
    """Report the first folder that this user cannot write, if commands change files."""
    commands = [each.commands for each in findings if each.severity != Severity.NOTE]
    if not any(re.match(r"rm |ln |\S+ -m ", command) for command in chain.from_iterable(commands)):
        return
    for folder in folders:
        if reason := _files.why_not_writable(folder):
            yield finding("read-only", f"the commands change {folder}, {reason}", path=folder)
            return


def _older(folder: str, located: locate.Places, alone: bool) -> Finding:
    """Describe a folder with another major version: before 9, an error if no cuDNN 9 was found."""
    newest = max(name.major for name in _files.cudnn_files(folder))
    if newest > 9:
        text = f"{folder} contains cuDNN {newest}, which this version of cudnn_ct does not support"
        return finding("cannot-look", text, path=folder)
    version = old_version(folder, 8) or old_version(folder, 7)
    what = f"cuDNN {write(version)}" if version else "a cuDNN older than 9"
    text = f"{folder} contains {what}"
    shown: dict[str, Any] = {"path": folder, "version": write(version)}
    if not alone:
        return finding("other-cudnn", text, **shown)
    again = packages.successor(folder, located.root, located.sites)
    return finding("old-cudnn", text, fix={"advice": again.text}, commands=again.commands, **shown)


def _cublas(found: LibrarySet) -> str:
    path = companions.find(found, f"libcublasLt.so.{found.cuda}")
    return companion_version(path) if path else ""
