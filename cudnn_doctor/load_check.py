"""Load a cuDNN in child processes, once by default and once with all its libraries, and judge the results."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import companions, driver, sandbox
from .checks import Requirements
from .finding import Finding, Severity, finding
from .libraryset import LibrarySet, write
from .read import elf as _elf
from .read import files as _files
from .read.libraries import file_name
from .read.versions import format_version, version_number
from .sandbox import Report

# Statuses of cuDNN 9 that broken installations cause.
STATUSES = {
    1001: "NOT_INITIALIZED",
    1002: "SUBLIBRARY_VERSION_MISMATCH",
    1003: "SERIALIZATION_VERSION_MISMATCH",
    1008: "SUBLIBRARY_LOADING_FAILED",
    3009: "NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE",
}

MISMATCH = 1002
_OF_DRIVER = ("dlopen libcuda.so.1", "cuInit")  # calls of the child that precede cuDNN
_COMPONENTS = re.compile(r"component (\w+) version ([\d.]+\d) loaded component (\w+) version ([\d.]+\d)")

# The steps of a complete run, and the calls that answer them.
_ANSWERS = {"load": "dlopen", "version": "cudnnGetVersion", "finalize": "cudnnBackendFinalize"}

# Without these, cuDNN 9.20 and newer compiles at run time and reports success.
SILENT = ("engines_precompiled", "heuristic")


def why_not(found: LibrarySet) -> str:
    """Return why these libraries cannot be loaded here; empty if they can."""
    if found.root != "/":
        return f"{found.folder} belongs to the image at {found.root}: its libraries are not opened here"
    if found.windows:
        return "it is for Windows"
    if not _elf.glibc_version():
        return "this system has no glibc"
    if not found.shim:
        return "libcudnn.so.9 is missing"
    broken = [library for library in found.libraries.values() if library.error]
    if broken:
        return f"{broken[0].file} cannot be opened safely"
    machines = {library.elf.machine for library in found.sound}
    if machines != {_elf.machine_here()}:
        return "it was built for another processor"
    return ""


def check(found: LibrarySet, timeout: float) -> tuple[list[Finding], Report]:
    """Load a cuDNN for which ``why_not`` is empty; return the findings and the report of the first child."""
    files = [library.real for library in found.libraries.values()]
    # Up to 9.16, a function of a library that the set lacks aborts.
    parts = ("Graph",) if found.jit else ("Graph", "Ops", "Cnn", "Adv", "SubquadraticOps")
    checks = [f"cudnn{part}VersionCheck" for part in parts]
    plan = {"mode": "cudnn", "shim": found.shim, "files": files, "checks": checks}
    plans: list[tuple[dict[str, Any], dict[str, str]]] = [(plan, {})]
    plans += [] if found.jit else [(plan, {"CUDNN_LIB_CONFIG": "FULL"})]
    first, *full = sandbox.run(plans, timeout, found.driver_functions)
    return list(judge(found, first, *full)), first


def judge(found: LibrarySet, first: Report, full: Report | None = None) -> Iterator[Finding]:
    """Return the findings from two runs: one by default, one with ``CUDNN_LIB_CONFIG=FULL``."""
    wrong = _wrong(found, first, full)
    if wrong and not found.advice and (linked := list(_linked(found, first))):
        wrong = linked + _wrong(replace(found, advice=f"see {linked[0].code}"), first, full)
    yield from wrong
    for library, reason in first.refusals if wrong else ():
        yield finding("linker-error", f"{library}: {reason}", library=library, reason=reason)


def _wrong(found: LibrarySet, first: Report, full: Report | None) -> list[Finding]:
    checks = (_ending, _answers, _mismatches, _mapped, _shim)
    wrong = [each for check in checks for each in check(found, first)]
    if not wrong and full and not found.jit:
        wrong = [*_mismatches(found, full)]
        if full.last("finalize").get("status") not in (None, 0, MISMATCH) and not _lacks_libcuda(full):
            wrong.append(_finalize_failed(found, full, "with CUDNN_LIB_CONFIG=FULL "))
    return wrong


def _linked(found: LibrarySet, report: Report) -> Iterator[Finding]:
    """Report libraries that the linker did not find or rejected, and that are not parts of cuDNN."""
    for name in report.lost:
        if not name.startswith(("libcudnn", "libcuda.")):  # the driver is judged separately
            yield companions.missing_library(name)
    for path, reason in report.refusals:
        if "version lookup error" in reason and not _files.library_name(path):
            yield finding("old-system-library", f"{path}: {reason}", path=path)
        elif re.search("undefined symbol: cu[A-Z]", reason):
            text = f"libcuda.so.1 lacks a function that {os.path.basename(path)} needs: {reason}"
            release, _ = driver.OLDEST.get(found.cuda, driver.OLDEST[12])
            yield finding("driver-too-old", text, path=path, fix={"driver": release})
        elif re.search("failed to map segment|annot allocate memory", reason):
            yield from companions.check_memory(found, failed=True)


def _ending(found: LibrarySet, report: Report) -> Iterator[Finding]:
    if report.ended not in ("done", "refused") and report.reached in _OF_DRIVER:
        yield from driver.judge(None, report, Requirements())
    elif report.ended == "hung":
        text = f"cuDNN did not return from {report.reached} within {report.seconds:.1f} s"
        yield found.finding("probe-hung", text, step=report.reached, seconds=round(report.seconds, 1))
    elif report.ended == "refused":
        yield sandbox.not_started(report, Severity.WARNING)
    elif report.ended == "done" and not report.last("load").get("error"):
        lost = (step for step in _ANSWERS if not report.all(step))
        yield from (sandbox.lost_answer(_ANSWERS[step], Severity.WARNING) for step in [*lost][:1])
    elif report.ended != "done" and not report.last("load").get("error"):
        text = f"loading cuDNN from {found.folder} killed a process with {report.ended} in {report.reached}"
        text += f": {report.words}" if report.words else ""
        shown: dict[str, Any] = {"step": report.reached, "signal": report.ended, "words": report.words}
        yield found.finding("probe-crashed", text, **shown)


def _answers(found: LibrarySet, report: Report) -> Iterator[Finding]:
    if error := report.last("load").get("error"):
        yield found.finding("load-failed", str(error), path=found.shim, reason=error)
    number = report.last("version").get("value")
    if number and found.version and number != version_number(found.version):
        answer, expected = format_version(number), write(found.version)
        text = f"the files of {found.folder} are {expected}, but cuDNN returns {answer}"
        yield found.finding("runtime-version", text, fix=_unset(), version=answer, expected=expected)
    for row in report.all("check"):
        if row["status"] not in (0, MISMATCH):
            text = f"{row['name']} returned {_status(row['status'])}. {row['text']}"
            yield found.finding("check-failed", text, status=row["status"], check=row["name"])
    status = report.last("finalize").get("status")
    if status not in (None, 0, MISMATCH) and not (status == 1008 and _lacks_libcuda(report)):
        yield _finalize_failed(found, report, "")


def _mismatches(found: LibrarySet, report: Report) -> Iterator[Finding]:
    """Report versions that cuDNN finds different: by a status, in its error text, or only in its log."""
    texts = [report.log, *(str(row["text"]) for row in report.steps if row.get("text"))]
    pairs = dict.fromkeys(_COMPONENTS.findall("\n".join(texts)))
    for opener, its, opened, other in pairs:
        versions = {opener: its, opened: other}
        text = f"{opener} {its} loaded {opened} {other}"
        yield found.finding("mixed-versions", text, path=found.folder, versions=versions)
    rows = [row for row in report.steps if row.get("status") == MISMATCH]
    if rows and not pairs:
        names = " and ".join(row.get("name", "cudnnBackendFinalize") for row in rows)
        text = f"{names} of the cuDNN in {found.folder} returned {_status(MISMATCH)}"
        yield found.finding("mixed-versions", text, path=found.folder, status=MISMATCH)


def _mapped(found: LibrarySet, report: Report) -> Iterator[Finding]:
    files = report.last("maps").get("files")
    names = list(filter(None, map(_files.library_name, files or ())))
    ours = {library.real for library in found.libraries.values()}
    for _, _, path in names:
        if path not in ours and os.path.dirname(path) != found.folder:
            text = f"the cuDNN of {found.folder} loaded {path}"
            # A variable may be the cause, and the other copy belong to a sound installation.
            unset = _unset()["unset"]
            usual = f"{unset}run the doctor again" if unset else f"remove the other copy: {path}"
            advice = found.advice or usual
            yield finding("mixed-at-run-time", text, fix={"advice": advice}, path=path, expected=found.folder)
    loaded = {name.part for name in names}  # also under the names of the targets of links
    loaded |= {part for part, library in found.libraries.items() if library.real in (files or ())}
    missing = [part for part in SILENT if part not in loaded and not found.jit]
    if missing and files is not None and report.last("finalize").get("status") == 0:
        text = f"cuDNN reports success without {' and '.join(map(file_name, missing))}"
        yield found.finding("jit-only", text, missing=missing)


def _shim(found: LibrarySet, report: Report) -> Iterator[Finding]:
    """Check libcudnn.so: the linker's log shows which version of its parts it opens first."""
    asked, expected = (report.asked_by or {}).get(found.shim), write(found.version)
    if asked and found.version and asked != expected:
        text = f"libcudnn.so.9 is {asked}, and the libraries of {found.folder} are {expected}"
        yield found.finding("foreign-shim", text, path=found.shim, version=asked, expected=expected)


def _finalize_failed(found: LibrarySet, report: Report, how: str) -> Finding:
    status, words = (report.last("finalize")[name] for name in ("status", "text"))
    reasons = [reason for reason in re.findall(r"Reason: (.+)", report.log) if "finalize()" not in reason]
    text = f"{how}cudnnBackendFinalize of a tensor returned {_status(status)}"
    return found.finding("finalize-failed", text, status=status, text=words, log=reasons[:3])


def _lacks_libcuda(report: Report) -> bool:
    """Return whether neither the driver nor the stub could be opened, which cuDNN's libraries need."""
    return str(report.last("libcuda").get("how", "")).startswith("none")


def _unset() -> dict[str, str]:
    """Return the words about the variables of the linker that are set."""
    names = [name for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if os.environ.get(name)]
    return {"unset": f"unset {' and '.join(names)}; then " if names else ""}


def _status(status: int) -> str:
    return f"{status} (CUDNN_STATUS_{STATUSES[status]})" if status in STATUSES else str(status)


def describe(report: Report) -> dict[str, Any]:
    """Return the details of a run, for programs."""
    return {
        "ended": report.ended,
        "seconds": round(report.seconds, 3),
        "libcuda": report.last("libcuda").get("how"),
        "version": report.last("version").get("value"),
        "cudart": report.last("cudart").get("value"),
        "mapped": report.last("maps").get("files") or [],
    }
