"""Check by the search rules of the linkers of Linux and Windows which libraries a program gets.

The files may be on any system: those of Windows are checked on Linux too.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from typing import Any

from . import libraryset, pip, records
from .finding import Finding, Fix, Severity, finding
from .libraryset import Library, LibrarySet, write
from .read import files as _files
from .read.find import CUDNN, SearchContext, searched
from .read.libraries import COMPANIONS

# --- Windows -----------------------------------------------------------------------------------------------

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


# --- Linux: ld.so.conf -------------------------------------------------------------------------------------

MAX_FILES = 100


def configured_folders(root: str) -> Iterator[str]:
    """Yield the folders that ``/etc/ld.so.conf`` names, as paths below the root; skip unreadable files."""
    todo = ["/etc/ld.so.conf"]
    seen: set[str] = set()
    while todo:
        path = _files.real(os.path.join(root, todo.pop(0).lstrip("/")), root)
        if path in seen or len(seen) >= MAX_FILES:
            continue
        seen.add(path)
        for line in _files.text_or_empty(path).splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["include"]:
                todo += [each for word in words[1:] for each in _matching(word, path, root)]
            elif words and words[0].startswith("/") and words[0] != "/":
                yield os.path.join(root, words[0].lstrip("/"))


def _matching(pattern: str, path: str, root: str) -> list[str]:
    """List the files of an image that a pattern matches, as programs in it name them."""
    here = os.path.dirname(os.path.join("/", os.path.relpath(path, root)))
    folder, name = os.path.split(os.path.join(here, pattern))
    real = _files.real(os.path.join(root, folder.lstrip("/")), root)
    found = sorted(glob.glob(os.path.join(glob.escape(real), name)))
    return [os.path.join("/", os.path.relpath(each, root)) for each in found]


# --- Linux: run paths --------------------------------------------------------------------------------------

# The libraries that open others by their names; all others find them loaded.
OPENERS = ("", "graph")


def check_run_paths(found: LibrarySet, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report libraries whose RPATH and RUNPATH lack their own folder, if the linker does not search it."""
    if found.windows:
        return
    lost = [library for library in found.sound if found.folder not in run_paths(found, library)]
    openers = [library for library in lost if library.name in OPENERS]
    if not openers or len(found.sound) == 1 or found.folder in _searched(found, environ):
        return
    first, more = openers[0], f" and {len(lost) - 1} more" if lost[1:] else ""
    have = ":".join(first.elf.rpath + first.elf.runpath)
    text = f"{first.path}{more} does not search its own folder for the other libraries: its RUNPATH is "
    text += have or "empty"
    yield found.finding("lost-runpath", text, path=first.path, runpath=have)


def run_paths(found: LibrarySet, library: Library) -> list[str]:
    """List the folders of the RPATH and the RUNPATH of a library."""
    paths = []
    for folder in library.elf.runpath + library.elf.rpath:
        here = folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", found.folder)
        if here == folder and os.path.isabs(folder):  # of the image
            here = _files.real(os.path.join(found.root, folder.lstrip("/")), found.root)
        paths.append(os.path.normpath(here))
    return paths


def _searched(found: LibrarySet, environ: Mapping[str, str]) -> set[str]:
    """List the folders with a cuDNN that the linker searches for all programs."""
    context = SearchContext(None, environ if found.root == "/" else {}, root=found.root)
    paths = [folder for _, folder in searched(("system",), CUDNN, context)]
    paths += configured_folders(found.root)
    return {_files.real(path, found.root) for path in paths}
