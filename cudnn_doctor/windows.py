"""Check a cuDNN for Windows by the search rules of Windows; the files may be on any system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from . import libraryset, pip, records
from .finding import Finding, Fix, Severity, finding
from .libraryset import LibrarySet, write
from .read import files as _files
from .read.libraries import COMPANIONS

# Windows searches these before the folders of Python packages and of PATH.
SYSTEM = ("Windows/System32", "Windows")


def check_competition(found: LibrarySet) -> Iterator[Finding]:
    """Report copies in the folders that Windows searches first."""
    for folder in _first_folders(found):
        other = libraryset.read(folder, found.root)
        if not other or other.folder == found.folder:
            continue
        same = other.version == found.version and other.cuda == found.cuda
        version = write(other.version)
        text = f"{folder} has a cuDNN {version}, which Windows searches before that of {found.folder}"
        shown: dict[str, Any] = {"path": folder, "version": version, "expected": write(found.version)}
        yield finding("shadowed-on-windows", text, severity=Severity.WARNING if same else None, **shown)


def check_companions(found: LibrarySet) -> Iterator[Finding]:
    """Report libraries of CUDA that are not found or cannot be opened."""
    machines = {library.elf.machine for library in found.sound}
    for row in COMPANIONS.values() if found.cuda and machines else ():
        name = row.dll.format(found.cuda)
        wheel = row.package if found.cuda >= 13 else f"{row.package}-cu{found.cuda}"
        path = next(filter(None, (_file(each, name) for each in _folders(found, row.folder))), "")
        if not path:
            text = f"the cuDNN of {found.folder} needs {name}, which was not found"
            site = records.site_of(found.folder)
            commands = pip.of(site, found.root, windows=True).install(wheel) if site else ()
            shown: dict[str, Any] = {"severity": Severity.WARNING, "commands": commands}
            yield finding(row.missing, text, library=name, package=wheel, **shown)
            continue
        library = libraryset.read_library(path, found.root)
        if library.error or library.elf.machine not in machines:
            reason = str(library.error).partition("; ")[0] if library.error else "is for another processor"
            owner = records.owner_of(path)
            site = records.site_of(os.path.dirname(path))
            commands = pip.of(site, found.root, windows=True).install(owner, keep=True) if owner else ()
            again = Fix(f"install {owner or wheel} again", commands)
            kind = "damaged-library" if library.error and library.error.kind != "class" else "foreign-machine"
            yield finding(kind, f"cuDNN cannot open {name}: {reason}", repair=again, path=path)


def is_misplaced(folder: str, root: str = "/") -> bool:
    """Return whether libraries for Windows are in the site-packages of a Python for another system."""
    site, files = records.site_of(folder), list(_files.cudnn_files(folder))
    manager = pip.of(site, root) if site and files and all(is_dll(file.path) for file in files) else None
    return bool(manager and not manager.loose and not manager.windows)


def misplaced(folder: str, root: str = "/") -> Iterator[Finding]:
    """Report libraries for which `is_misplaced` is true, unless those for the other system exist too."""
    site = records.site_of(folder)
    if any(_files.cudnn_files(os.path.join(site, records.FULL_FOLDER))):
        return
    pins = records.of_windows(site)
    commands = [command for pin in pins for command in pip.of(site, root).install(pin, keep=True)]
    again = Fix(f"install {' and '.join(pins)} again", tuple(commands))
    text = f"{folder} has the libraries for Windows, and the Python of {site} is for another system"
    yield finding("foreign-machine", text, repair=again, path=folder)


def is_dll(name: str) -> bool:
    """Return whether a name is that of a library of Windows."""
    return name.lower().endswith(".dll")


def _first_folders(found: LibrarySet) -> list[str]:
    """List the folder of the program, python.exe, and those of the system."""
    site = records.site_of(found.folder)
    prefix = os.path.dirname(os.path.dirname(site)) if site else ""
    program = [prefix, os.path.join(prefix, "Scripts")] if prefix else []
    system = [_inside(found.root, name) for name in SYSTEM] if found.root != "/" or os.name == "nt" else []
    return [folder for folder in (*program, *system) if _files.names_in(folder)]


def _folders(found: LibrarySet, package: str) -> list[str]:
    """List the folders that programs give Windows to search, and those of the system."""
    site = records.site_of(found.folder)
    nvidia = os.path.join(site, "nvidia") if site else os.path.dirname(os.path.dirname(found.folder))
    wheels = [os.path.join(nvidia, package, "bin"), os.path.join(nvidia, f"cu{found.cuda}", "bin", "x86_64")]
    wheels += [os.path.join(nvidia, f"cu{found.cuda}", "bin"), os.path.join(site, "torch", "lib")]
    toolkits = _inside(found.root, "Program Files/NVIDIA GPU Computing Toolkit/CUDA")
    versions = [name for name in _files.names_in(toolkits) if name.startswith(f"v{found.cuda}.")]
    return [
        found.folder,
        *wheels,
        *(os.path.join(toolkits, name, folder) for name in versions for folder in ("bin", "bin/x64")),
        *_first_folders(found),
    ]


def _file(folder: str, name: str) -> str:
    """Return the path of a file in a folder; empty if it does not exist. Windows ignores case."""
    path = os.path.join(folder, name)
    names = (each for each in _files.names_in(folder) if each.lower() == name.lower())
    return path if os.path.lexists(path) else next((os.path.join(folder, each) for each in names), "")


def _inside(root: str, path: str) -> str:
    """Return a path below a root, in the case of the names that exist."""
    for name in path.split("/"):
        root = _file(root, name) or os.path.join(root, name)
    return root
