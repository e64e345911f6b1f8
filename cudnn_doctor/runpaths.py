"""Check that the libraries of a cuDNN search the folder of each other, also by the linker's configuration."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping

from .finding import Finding
from .libraryset import Library, LibrarySet
from .read import files as _files
from .read.find import CUDNN, SearchContext, searched

# --- linker conf -------------------------------------------------------------------------------------------

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


# --- run paths ---------------------------------------------------------------------------------------------

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
    paths += configured_folders(found.root)
    return {_files.real(path, found.root) for path in paths}
