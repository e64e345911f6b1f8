"""Check that the libraries of a cuDNN search the folder of each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from .. import _files
from .._find import CUDNN, SearchContext, searched
from . import linker_conf
from .finding import Finding
from .libraryset import Library, LibrarySet

# The libraries that open others by their names; all others find them loaded.
OPENERS = ("", "graph")


def check(found: LibrarySet, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Report libraries whose RPATH and RUNPATH lack their own folder, if the linker does not search it."""
    if found.windows:
        return
    lost = [library for library in found.sound if found.folder not in folders(found, library)]
    openers = [library for library in lost if library.name in OPENERS]
    if not openers or len(found.sound) == 1 or found.folder in _searched(found, environ):
        return
    first, more = openers[0], f" and {len(lost) - 1} more" if lost[1:] else ""
    have = ":".join(first.elf.rpath + first.elf.runpath)
    text = f"{first.path}{more} does not search its own folder for the other libraries: its RUNPATH is "
    text += have or "empty"
    yield found.finding("lost-runpath", text, path=first.path, runpath=have)


def folders(found: LibrarySet, library: Library) -> list[str]:
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
    paths += linker_conf.folders(found.root)
    return {_files.real(path, found.root) for path in paths}
