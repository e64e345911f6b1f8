"""Loads a cuDNN in child processes, once as it is and once told to use all its libraries, and judges it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from .. import _elf, _files
from .._installation import file_name, version_number
from ..errors import format_version
from . import sandbox
from .finding import Finding, Severity, finding
from .libraryset import LibrarySet, write
from .sandbox import Report

__all__ = ["check", "check_libc", "describe", "judge", "why_not"]

# Statuses of cuDNN 9 that come up here.
STATUSES = {
    1001: "NOT_INITIALIZED",
    1002: "SUBLIBRARY_VERSION_MISMATCH",
    1003: "SERIALIZATION_VERSION_MISMATCH",
    1008: "SUBLIBRARY_LOADING_FAILED",
    3009: "NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE",
}

MISMATCH = 1002
_COMPONENTS = re.compile(r"component (\w+) version ([\d.]+\d) loaded component (\w+) version ([\d.]+\d)")

# Without these cuDNN from 9.20 on goes over to compiling at run time, and reports success.
SILENT = ("engines_precompiled", "heuristic")


def why_not(found: LibrarySet) -> str:
    """Say why these libraries must not or cannot be loaded here; empty when they can."""
    if found.root != "/":
        return f"{found.folder} belongs to the image at {found.root}: its libraries are not opened here"
    if not _elf.glibc_version():
        return "this system has no glibc"
    if found.shim is None:
        return "libcudnn.so.9 is missing"
    broken = [library for library in found.libraries.values() if library.error]
    if broken:
        return f"{broken[0].file} cannot be opened safely"
    machines = {library.elf.machine for library in found.sound if library.elf}
    if machines != {_elf.machine_here()}:
        return "it was built for another processor"
    return ""


def check(found: LibrarySet, timeout: float) -> tuple[list[Finding], Report]:
    """Load a cuDNN that can be loaded here; give what was wrong, and what the first child did."""
    assert found.shim is not None
    plan = {"mode": "cudnn", "shim": found.shim.real}
    wanted = {name for library in found.sound if library.dynamic for name in library.dynamic.undefined}
    functions = frozenset(name for name in wanted if re.match(r"cu[A-Z]", name))
    first, full = sandbox.run([(plan, {}), (plan, {"CUDNN_LIB_CONFIG": "FULL"})], timeout, functions)
    return list(judge(found, first, full)), first


def judge(found: LibrarySet, first: Report, full: Report | None = None) -> Iterator[Finding]:
    """Say what two runs show: one as it is, one with ``CUDNN_LIB_CONFIG=FULL``."""
    checks = (_ending, _answers, _mismatches, _mapped, _shim)
    wrong = [each for check in checks for each in check(found, first)]
    if full and not wrong:
        wrong += _full(found, full)
    yield from wrong
    for library, reason in first.refusals if wrong else ():
        yield finding("linker-error", f"{library}: {reason}", library=library, reason=reason)


def _ending(found: LibrarySet, report: Report) -> Iterator[Finding]:
    again = {"reinstall": found.reinstall}
    if report.ended == "hung":
        yield finding(
            "probe-hung",
            f"cuDNN did not come back from {report.reached} within {report.seconds:.1f} s",
            step=report.reached,
            seconds=round(report.seconds, 1),
            fix=again,
        )
    elif report.ended == "refused":
        text = f"no child process can be started: {report.words}"
        yield finding("not-probed", text, severity=Severity.WARNING, fix={"advice": sandbox.NEEDS})
    elif report.ended != "done" and not report.last("load").get("error"):
        yield finding(
            "probe-crashed",
            f"loading cuDNN from {found.folder} ended a process with {report.ended} at {report.reached}"
            + (f": {report.words}" if report.words else ""),
            step=report.reached,
            signal=report.ended,
            words=report.words,
            fix=again,
        )


def _answers(found: LibrarySet, report: Report) -> Iterator[Finding]:
    again = {"reinstall": found.reinstall}
    if error := report.last("load").get("error"):
        yield finding("load-failed", str(error), path=found.shim and found.shim.path, reason=error, fix=again)
    number = report.last("version").get("value")
    if number and found.version and number != version_number(found.version):
        answer = format_version(number)
        yield finding(
            "runtime-version",
            f"the files of {found.folder} are {write(found.version)}, and cuDNN answers {answer}",
            version=answer,
            expected=write(found.version),
            fix=again,
        )
    for row in report.steps:
        if row["step"] == "check" and row["status"] not in (0, MISMATCH):
            text = f"{row['name']} gives {_status(row['status'])}. {row['text']}"
            yield finding("check-failed", text, status=row["status"], check=row["name"], fix=again)
    status = report.last("finalize").get("status")
    if status not in (None, 0, MISMATCH) and not (status == 1008 and _lacks_libcuda(report)):
        yield _finalize_failed(found, report, "")


def _mismatches(found: LibrarySet, report: Report) -> Iterator[Finding]:
    """Pass on what cuDNN says of versions: in a status, in words that newer ones add, in its log alone."""
    texts = [report.log, *(str(row["text"]) for row in report.steps if row.get("text"))]
    pairs = dict.fromkeys(_COMPONENTS.findall("\n".join(texts)))
    for opener, its, opened, other in pairs:
        yield finding(
            "mixed-versions",
            f"{opener} {its} has loaded {opened} {other}",
            path=found.folder,
            versions={opener: its, opened: other},
            fix={"reinstall": found.reinstall},
        )
    failed = [
        row.get("name", "cudnnBackendFinalize") for row in report.steps if row.get("status") == MISMATCH
    ]
    if failed and not pairs:
        yield finding(
            "mixed-versions",
            f"{' and '.join(failed)} of the cuDNN in {found.folder} give {_status(MISMATCH)}",
            path=found.folder,
            status=MISMATCH,
            fix={"reinstall": found.reinstall},
        )


def _mapped(found: LibrarySet, report: Report) -> Iterator[Finding]:
    names = list(filter(None, map(_files.library_name, report.last("maps").get("files", ()))))
    ours = {library.real for library in found.libraries.values()}
    for _, _, path in names:
        if path not in ours and os.path.dirname(path) != found.folder:
            yield finding(
                "mixed-at-run-time",
                f"cuDNN of {found.folder} has loaded {path}",
                path=path,
                expected=found.folder,
            )
    if report.last("finalize").get("status") == 0:
        yield from _jit(found, {name.part for name in names})


def _jit(found: LibrarySet, loaded: set[str]) -> Iterator[Finding]:
    missing = [part for part in SILENT if part not in loaded]
    if missing:
        names = " and ".join(map(file_name, missing))
        yield finding(
            "jit-only",
            f"cuDNN works without {names}, and reports success",
            missing=missing,
            fix={"reinstall": found.reinstall},
        )


def _shim(found: LibrarySet, report: Report) -> Iterator[Finding]:
    """The linker's log shows what version of its parts libcudnn.so asks for first, which is its own."""
    asked = (report.asked_by or {}).get(found.shim.real if found.shim else "")
    if asked and found.version and asked != write(found.version):
        yield finding(
            "foreign-shim",
            f"libcudnn.so.9 is {asked}, and the libraries of {found.folder} are {write(found.version)}",
            path=found.shim and found.shim.path,
            version=asked,
            expected=write(found.version),
            fix={"reinstall": found.reinstall},
        )


def _full(found: LibrarySet, report: Report) -> Iterator[Finding]:
    yield from _mismatches(found, report)
    if report.last("finalize").get("status") not in (None, 0, MISMATCH) and not _lacks_libcuda(report):
        yield _finalize_failed(found, report, "with CUDNN_LIB_CONFIG=FULL ")


def _finalize_failed(found: LibrarySet, report: Report, how: str) -> Finding:
    step = report.last("finalize")
    reasons = [reason for reason in re.findall(r"Reason: (.+)", report.log) if "finalize()" not in reason]
    return finding(
        "finalize-failed",
        f"{how}cudnnBackendFinalize of a tensor gives {_status(step['status'])}",
        status=step["status"],
        text=step["text"],
        log=reasons[:3],
        fix={"reinstall": found.reinstall},
    )


def _lacks_libcuda(report: Report) -> bool:
    """Whether neither the driver nor the stand-in could be opened, so that cuDNN cannot open all."""
    return str(report.last("libcuda").get("how", "")).startswith("none")


def _status(status: int) -> str:
    return f"{status} (CUDNN_STATUS_{STATUSES[status]})" if status in STATUSES else str(status)


def describe(report: Report) -> dict[str, Any]:
    """Give what a program may want to know of a run."""
    return {
        "ended": report.ended,
        "seconds": round(report.seconds, 3),
        "libcuda": report.last("libcuda").get("how"),
        "version": report.last("version").get("value"),
        "cudart": report.last("cudart").get("value"),
        "mapped": report.last("maps").get("files", []),
    }


def check_libc(found: LibrarySet) -> Iterator[Finding]:
    """Say whether this machine's C library can carry these libraries."""
    if found.root != "/":
        return
    have = _elf.glibc_version()
    if not have and sys.platform == "linux":
        yield finding("no-glibc", "this system has no glibc", path=found.folder)
        return
    needs = {name for library in found.sound if library.dynamic for name in library.dynamic.versions}
    wanted = max((_numbers(name) for name in needs if name.startswith("GLIBC_2")), default=())
    if have and wanted > _numbers(have):
        yield finding(
            "old-glibc",
            f"cuDNN {write(found.version)} needs glibc {'.'.join(map(str, wanted))}, and this is {have}",
            path=found.folder,
            needs=".".join(map(str, wanted)),
            have=have,
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", text))
