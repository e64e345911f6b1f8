"""Finds the folders of cuDNN to look at: below a path that was named, or where programs look for it."""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .. import _elf, _files
from .._find import CUDNN, CUDNN_STEPS, EXPLICIT, FOLDERS, SearchContext, folders_of, searched
from .finding import Finding, Severity, finding

__all__ = ["CannotLookError", "Place", "Places", "named", "usual"]

MAX_FOLDERS = 100_000
MAX_FOUND = 16
DEEPEST = 64
SECONDS = 10.0
LINKED = ("nvidia", "cudnn", "lib", "lib64")  # folders that installers link to where they keep the files
STEPS = tuple(name for name, _ in CUDNN_STEPS if name in FOLDERS)  # the loader's steps that search folders
NOT_ON_DISK = ("proc", "sys", "dev")  # of a root folder: kernel interfaces, without end


class CannotLookError(Exception):
    """What was named cannot be examined, for this reason."""


@dataclass(frozen=True)
class Place:
    """A folder that holds a cuDNN, how it was found, and what was odd about the way."""

    folder: str
    via: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Places:
    """All folders that were found, the one that counts first.

    Attributes
    ----------
    found : tuple of Place
        Each folder once.
    root : str
        What stands for ``/``: the folder of an image, or ``/`` itself.
    findings : tuple of Finding
        What was odd about the search itself.
    """

    found: tuple[Place, ...]
    root: str = "/"
    findings: tuple[Finding, ...] = ()


def named(path: str, seconds: float = SECONDS) -> Places:
    """Find the cuDNN that a path leads to: a library, its folder, a root, a site-packages, an image.

    Raises
    ------
    CannotLookError
        When the path is not there, is neither file nor folder, or may not be read.
    """
    try:
        if not path:  # a variable of a script that is not set
            raise ValueError
        status = os.stat(path)
    except OSError as error:
        raise CannotLookError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise CannotLookError(f"{path!r} is not a path") from None
    if stat.S_ISREG(status.st_mode):
        return _of_file(os.path.abspath(path))
    if not stat.S_ISDIR(status.st_mode):
        raise CannotLookError(f"{path} is neither a file nor a folder")
    try:
        os.listdir(path)
    except OSError as error:
        raise CannotLookError(f"{path}: {error.strerror}") from None
    path = os.path.abspath(path)
    if _holds_cudnn(path):
        return Places((_followed(path, "named", "/"),))
    root = path if all(os.path.isdir(os.path.join(path, name)) for name in ("etc", "usr")) else "/"
    walk = _Walk(path, root, seconds)
    folders = dict.fromkeys(_files.real(folder, root) for folder in walk)
    odd = [] if walk.complete else [finding("cut-short", f"{path}: {walk.stopped}", path=path)]
    odd += _closed(walk.closed)
    return Places(tuple(_followed(folder, f"below {path}", root) for folder in folders), root, tuple(odd))


def usual(environ: Mapping[str, str] | None = None, path: list[str] | None = None) -> Places:
    """Find the cuDNN of this machine, in the order in which cudnn_ct itself looks."""
    environ = os.environ if environ is None else environ
    explicit = environ.get(EXPLICIT)
    context = SearchContext(explicit, environ, tuple(sys.path if path is None else path))
    places: dict[str, Place] = {}
    closed: dict[str, None] = {}
    set_folders = [(EXPLICIT, folder) for folder in _set_folders(explicit)] if explicit else []
    for via, folder in (*set_folders, *searched(STEPS, CUDNN, context)):
        if _holds_cudnn(folder):
            place = _followed(folder, via, "/")
            places.setdefault(place.folder, place)
        elif blocker := _files.closed(folder):
            closed[blocker] = None
    # Programs of this user pass such folders over too: what they get is the one that was found.
    odd = list(_closed(list(closed), Severity.NOTE if places else None))
    if explicit:
        seen = any(place.via == EXPLICIT for place in places.values())
        if reason := _refused(explicit) or ("" if seen else f"{explicit}, where no cuDNN is seen"):
            odd.append(finding("wrong-setting", f"{EXPLICIT} names {reason}", path=explicit))
    return Places(tuple(places.values()), findings=tuple(odd))


def _set_folders(explicit: str) -> list[str]:
    """List the folders in which the loader searches for the library that its setting names."""
    path = os.path.expanduser(explicit)
    if os.path.isdir(path):
        return folders_of(path)
    link = not _files.library_name(path)  # another name, perhaps of a link to a library
    return [os.path.dirname(_files.real(path) if link else path)]


def _refused(explicit: str) -> str:
    """Say what a setting names that cudnn_ct does not take; empty where the libraries there show it.

    cudnn_ct never passes an explicit wish over: whatever else is on this machine, it does not load it then.
    """
    path = os.path.expanduser(explicit)
    if os.path.isdir(path):
        return ""  # what lies in it is seen, or not
    if not os.path.lexists(path):
        return f"{path}, which does not exist"
    name = _files.library_name(path)
    if name and not name.part:
        return ""  # what is wrong with a libcudnn.so.9 is told with the rest of its set
    real = _files.real(path)
    try:
        soname = _elf.check(real).soname
    except _elf.ElfError as error:
        return f"{real}, which{str(error).removeprefix(real).partition('; ')[0]}"
    if re.fullmatch(r"libcudnn\.so\.\d+", soname or ""):
        return ""
    return f"{real}, which is {soname or 'a library without a name'}, not libcudnn.so.9"


def _of_file(path: str) -> Places:
    if _files.library_name(path) or _files.library_name(_files.real(path)):
        place = _followed(os.path.dirname(path), "named", "/")
        if os.path.dirname(_files.real(path)) != place.folder and not place.findings:
            place = _elsewhere(path, _files.real(path), "named")
        return Places((place,))
    raise CannotLookError(f"{path} is not a library of cuDNN")


def _followed(folder: str, via: str, root: str) -> Place:
    """Go to the real folder; where nothing but libcudnn.so is linked, to the one that the link leads to."""
    names = list(_files.cudnn_files(folder))
    parts = [name for name in names if name.part]
    for shim in (name for name in names if not name.part and name.major == 9):
        target = _files.real(shim.path, root)
        if not parts and os.path.dirname(target) != _files.real(folder, root) and os.path.exists(target):
            return _elsewhere(shim.path, target, via)
    return Place(_files.real(folder, root), via)


def _elsewhere(link: str, target: str, via: str) -> Place:
    odd = finding(
        "link-elsewhere",
        f"{link} is a link to {target}, and the other libraries are not beside the link",
        path=link,
        target=target,
        fix={"target": target},
    )
    return Place(os.path.dirname(target), via, (odd,))


def _closed(folders: list[str], severity: Severity | None = None) -> Iterator[Finding]:
    if folders:
        more = f" and {len(folders) - 1} more" if folders[1:] else ""
        yield finding(
            "unreadable-folder",
            f"{folders[0]}{more} may not be looked into, and may hold a cuDNN",
            severity=severity,
            folders=folders,
            fix={"path": folders[0]},
        )


def _holds_cudnn(folder: str) -> bool:
    return any(name.major for name in _files.cudnn_files(folder))


class _Walk:
    """All folders below one that hold a cuDNN, nearest first, within limits.

    Links are not followed, for they may lead anywhere and in circles; but a link that has the name of a
    folder of the usual layouts is looked behind, at the places where a library would be.
    """

    def __init__(self, top: str, root: str, seconds: float) -> None:
        self.top = top
        self.root = root
        self.stopped = ""
        self.closed: list[str] = []
        self._end = time.monotonic() + seconds

    @property
    def complete(self) -> bool:
        """Whether all was seen."""
        return not self.stopped

    def __iter__(self) -> Iterator[str]:
        todo, seen, found = deque([(self.top, 0)]), 0, 0
        while todo:
            folder, depth = todo.popleft()
            seen += 1
            if seen > MAX_FOLDERS or time.monotonic() > self._end or found >= MAX_FOUND:
                self.stopped = f"stopped after {seen:,} folders, {found} of them with a cuDNN"
                return
            below, holding = self._list(folder)
            found += len(holding)
            yield from holding
            if depth < DEEPEST:
                todo.extend((name, depth + 1) for name in below)
            elif below:
                self.stopped = f"stopped {DEEPEST} folders deep, at {folder}"

    def _list(self, folder: str) -> tuple[list[str], list[str]]:
        """The folders below, and those that hold a cuDNN: this one, or where links in it lead."""
        below, links, here = [], [], False
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = _files.library_name(entry.name)
                    here = here or bool(name and name.version)
                    if entry.is_dir(follow_symlinks=False) and not self._of_kernel(entry):
                        below.append(entry.path)
                    elif entry.name in LINKED and entry.is_symlink():
                        links.append(entry.path)
        except PermissionError:
            self.closed.append(folder)
        except OSError:  # it is gone, or was no folder for long
            pass
        return sorted(below), [*([folder] if here else []), *self._behind(links)]

    def _behind(self, links: list[str]) -> Iterator[str]:
        for link in sorted(links):
            target = _files.real(link, self.root)
            yield from filter(_holds_cudnn, (os.path.join(target, name) for name in ("", "lib", "cudnn/lib")))

    def _of_kernel(self, entry: os.DirEntry[str]) -> bool:
        return entry.name in NOT_ON_DISK and os.path.dirname(entry.path) == self.top
