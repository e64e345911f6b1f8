"""Looks at what a running process has really loaded, from its memory map."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from .. import _files
from .._installation import file_name
from . import checks, libraryset, record_check, requirements
from .diagnosis import Diagnosis, sort
from .finding import Finding, finding
from .libraryset import LibrarySet, write
from .requirements import Demands

__all__ = ["diagnose_process", "here"]

DELETED = " (deleted)"


def here() -> Diagnosis:
    """Examine the cuDNN that this process has loaded. Opens nothing, and raises nothing."""
    return diagnose_process(os.getpid())


def diagnose_process(pid: int, asked: Demands | None = None) -> Diagnosis:
    """Examine the cuDNN that a process has loaded; a process that may not be read is a finding."""
    subject = f"process {pid}"
    try:
        mapped = read_maps(pid)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError | ProcessLookupError)
        reason = "there is no such process" if gone else error.strerror
        return Diagnosis(subject, (), (finding("cannot-look", f"{subject}: {reason}", pid=pid),))
    if not mapped:
        return Diagnosis(subject, (), (finding("none-loaded", f"{subject} has no cuDNN loaded", pid=pid),))
    # Its own view of the file system: a container's paths are not ours.
    root = f"/proc/{pid}/root" if _elsewhere(pid) else "/"
    present = [path for path in mapped if not path.endswith(DELETED)]
    folders = dict.fromkeys(os.path.dirname(path) for path in present)
    sets = []
    for folder in folders:
        theirs = root.rstrip("/") + folder
        if not os.path.isdir(theirs):  # a process after chroot: its map has our paths
            theirs, root = folder, "/"
        found = libraryset.read(theirs, root)
        if found:
            sets.append(
                replace(
                    found, reinstall=record_check.reinstall(record_check.owners(found.folder), found.package)
                )
            )
    findings = [found for each in sets for check in checks.CHECKS for found in check(each)]
    findings += [found for each in sets[:1] for found in requirements.check(each, asked or Demands())]
    findings += _judge(pid, mapped, list(folders), sets)
    tiers = {"static": "done", "process": "done"}
    return Diagnosis(subject, tuple(sets), sort(findings), tiers, {"process": {"pid": pid, "mapped": mapped}})


def read_maps(pid: int) -> list[str]:
    """List the libraries of cuDNN that a process has mapped; gone from disk, they end in `` (deleted)``.

    Raises
    ------
    OSError
        When the process is gone, or may not be read.
    """
    return [path for path in _files.mapped(pid) if _files.library_name(path)]


def _judge(pid: int, mapped: list[str], folders: list[str], sets: list[LibrarySet]) -> Iterator[Finding]:
    for path in mapped:
        if path.endswith(DELETED):
            gone = path.removesuffix(DELETED)
            yield finding(
                "deleted-file",
                f"process {pid} runs {gone}, which was replaced or deleted",
                path=gone,
                pid=pid,
            )
    if len(folders) > 1:
        versions = ", ".join(f"{write(found.version)} in {found.folder}" for found in sets)
        yield finding(
            "two-cudnns",
            f"process {pid} has libraries of {len(folders)} folders: {versions}",
            folders=folders,
            pid=pid,
        )
    loaded = {name.part for name in map(_files.library_name, mapped) if name}
    engines = {"engines_runtime_compiled", "engines_tensor_ir"}
    if loaded & engines:  # cuDNN opens all its engines at once, at the first descriptor
        for part in ("engines_precompiled", "heuristic"):
            if part not in loaded:
                yield finding(
                    "jit-only", f"process {pid} runs without {file_name(part)}", missing=[part], pid=pid
                )


def _elsewhere(pid: int) -> bool:
    """Whether a process has another root folder than we, as one in a container has."""
    try:
        return not os.path.samefile(f"/proc/{pid}/root", "/")
    except OSError:
        return False
