"""Examine the libraries that a running process has loaded, by its memory map."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from . import checks, libraryset
from .checks import Requirements
from .diagnosis import Diagnosis, sort
from .finding import Finding, finding
from .libraryset import LibrarySet, write
from .load_check import SILENT
from .read import files as _files
from .read.libraries import file_name


def here() -> Diagnosis:
    """Examine the cuDNN that this process has loaded. Opens no library and raises no error."""
    return diagnose_process(os.getpid())


def diagnose_process(pid: int, asked: Requirements | None = None) -> Diagnosis:
    """Examine the cuDNN that a process has loaded; an unreadable process is a finding."""
    subject, asked = f"process {pid}", asked or Requirements()
    try:
        mapped = read_maps(pid)
    except OSError as error:
        gone = isinstance(error, (FileNotFoundError, ProcessLookupError))
        reason = "no such process" if gone else error.strerror
        return Diagnosis(subject, (), (finding("cannot-look", f"{subject}: {reason}", pid=pid),))
    if not mapped:
        return Diagnosis(subject, (), (finding("none-loaded", f"{subject} has no cuDNN loaded", pid=pid),))
    # Its own view of the file system: paths in a container differ from those of this process.
    root = f"/proc/{pid}/root" if _elsewhere(pid) else "/"
    present = [path for path in mapped if not path.endswith(_files.DELETED)]
    folders = dict.fromkeys(os.path.dirname(path) for path in present)
    sets = []
    for folder in folders:
        theirs = root.rstrip("/") + folder
        if not os.path.isdir(theirs):  # after chroot, the map has paths of this process
            theirs, root = folder, "/"
        found = libraryset.read(theirs, root)
        if found:
            sets.append(replace(found, needs=asked.needs))
    findings = [found for each in sets for check in checks.CHECKS for found in check(each)]
    findings += [found for each in sets[:1] for found in checks.check_requirements(each, asked)]
    findings += _judge(pid, mapped, list(folders), sets)
    tiers = {"static": "done", "process": "done"}
    return Diagnosis(subject, tuple(sets), sort(findings), tiers, {"process": {"pid": pid, "mapped": mapped}})


def read_maps(pid: int) -> list[str]:
    """List the libraries of cuDNN that a process has mapped, as `_files.mapped` does."""
    return [path for path in _files.mapped(pid) if _files.library_name(path)]


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            rows = os.fsdecode(file.read()).split("\0")
    except OSError:
        return {}
    return dict(row.split("=", 1) for row in rows if "=" in row)


def _judge(pid: int, mapped: list[str], folders: list[str], sets: list[LibrarySet]) -> Iterator[Finding]:
    for path in mapped:
        if path.endswith(_files.DELETED):
            gone = path[: -len(_files.DELETED)]
            text = f"process {pid} uses {gone}, which was replaced or deleted"
            yield finding("deleted-file", text, path=gone, pid=pid)
    if len(folders) > 1:
        versions = ", ".join(f"{write(found.version)} in {found.folder}" for found in sets)
        text = f"process {pid} has libraries of {len(folders)} folders: {versions}"
        yield finding("two-cudnns", text, folders=folders, pid=pid)
    loaded = {name.part for name in map(_files.library_name, mapped) if name}
    engines = {"engines_runtime_compiled", "engines_tensor_ir"}
    small = any(found.jit for found in sets)
    if loaded & engines and not small:  # cuDNN opens all engines together, at the first descriptor
        for part in sorted({*SILENT} - loaded):
            text = f"process {pid} runs without {file_name(part)}"
            yield finding("jit-only", text, missing=[part], pid=pid)


def _elsewhere(pid: int) -> bool:
    """Return whether a process has another root folder, for example in a container."""
    try:
        return not os.path.samefile(f"/proc/{pid}/root", "/")
    except OSError:
        return False
