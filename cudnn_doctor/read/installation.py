"""Judge the files of a cuDNN before any of them is opened."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from . import elf as _elf
from . import files as _files
from . import libraries as _libraries
from .libraries import SUBLIBRARIES, Library, file_name
from .versions import Version, dotted, version_number


class Problem(NamedTuple):
    """Why a cuDNN must not be opened."""

    kind: str  # "missing", "unloadable" or "version"
    text: str

    def __str__(self) -> str:
        return self.text


class Header(NamedTuple):
    """A ``cudnn_version.h``."""

    path: str  # the real file
    version: Version | None  # None if it defines none


@dataclass(frozen=True)
class Installation:
    """A cuDNN on disk: the libraries of one folder."""

    folder: str  # the real folder
    libraries: Mapping[str, Library]  # by part: the files that cuDNN opens
    extra: tuple[_files.LibraryName, ...] = ()  # other files of the same parts
    root: str = "/"  # the folder that stands for /: the root of an image, or / itself
    header: Header | None = None  # the cudnn_version.h that belongs to the libraries
    problems: tuple[Problem, ...] = field(default=(), compare=False)

    @property
    def shim(self) -> str:
        """The ``libcudnn.so.9`` that programs link with, next to its other libraries; empty if missing."""
        return self.libraries[""].path if "" in self.libraries else ""

    @cached_property
    def version(self) -> Version | None:
        """The most frequent version constant of the libraries; the graph library decides a tie."""
        return _libraries.most_frequent(iter(self.libraries.values()))

    @property
    def number(self) -> int | None:
        """The version as ``cudnnGetVersion`` returns it."""
        return self.version and version_number(self.version)

    @property
    def kind(self) -> str:
        """The set of libraries that it is: ``full`` or ``jit``."""
        return _libraries.kind_of(self.folder, self.libraries)

    @property
    def windows(self) -> bool:
        """Whether it is a cuDNN for Windows, which only the doctor reads."""
        return False

    @property
    def missing(self) -> list[str]:
        """The parts that a cuDNN of this set, version and system must have and that do not exist."""
        names = ("", *_libraries.required(self.version, self.kind, self.windows))
        return [name for name in names if name not in self.libraries]

    @property
    def parts(self) -> list[Library]:
        """The sub-libraries, in the order in which to open them."""
        return [library for name, library in self.libraries.items() if name in SUBLIBRARIES]

    @property
    def notes(self) -> list[str]:
        """Oddities that do not keep this process from opening it."""
        private = [path for path in self._paths if path in _files.private(path)]
        text = "other users of this machine cannot read {0}, and so cannot load it; run: chmod a+r {0}"
        return [*map(text.format, private), *filter(None, [self.world_writable])]

    @property
    def world_writable(self) -> str:
        """The warning if any user may replace a part of it; empty if not."""
        return next(map(world_writable, self.world_writable_paths), "")

    @property
    def world_writable_paths(self) -> list[str]:
        """The parts of it that any user may replace: its folder, files."""
        return list(filter(world_writable, (self.folder, *self._paths)))

    def other_installations(self, mapped: Iterable[str]) -> list[str]:
        """List the libraries of another cuDNN 9 among the files that a process has mapped."""
        names = filter(None, map(_files.library_name, mapped))
        return [name.path for name in names if name.major == 9 and name.path not in self._paths]

    @property
    def _paths(self) -> list[str]:
        return [library.real for library in self.libraries.values()]


def inspect(path: str | os.PathLike[str]) -> Installation:
    """Read the cuDNN that a path leads to, without opening it. Errors are in ``problems``."""
    # cuDNN searches for its other libraries next to the path by which it was opened: the target of a link,
    # unless the libraries are next to the link.
    path = os.path.abspath(path)
    folder = os.path.realpath(os.path.dirname(path))
    parts = _files.library_name(path) and any(name.part for name in _libraries.files_of(folder))
    path = os.path.join(folder, os.path.basename(path)) if parts else os.path.realpath(path)
    folder, shim = os.path.dirname(path), _libraries.read_library(path)
    if error := shim_error(shim):
        return Installation(folder, {"": shim}, problems=(error,))
    libraries, extra = _libraries.read_folder(folder, _libraries.read_library)
    found = Installation(folder, {**libraries, "": shim}, extra, header=_header_of(folder))
    broken = [_translated(part.problem) for part in found.parts if part.problem]
    return replace(found, problems=(*broken, *_incomplete(found), *_mixed(found.parts)))


def world_writable(path: str) -> str:
    """Return a warning if any user may write a file or replace the files of a folder; empty if not."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    mode = status.st_mode
    # In a folder with the sticky bit, such as /tmp, users cannot replace each other's files.
    if not mode & stat.S_IWOTH or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return ""
    advice = _files.how_to_close(path, status)
    return f"any user can write {path}, and so run code in the processes that load it; {advice}"


def header_version(path: str | os.PathLike[str]) -> Version | None:
    """Read the version that a ``cudnn_version.h`` defines; None if it defines none."""
    text = _files.text_of(path)
    defined = dict(re.findall(r"^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL)[ \t]+(\d{1,6})\b", text, re.M | re.A))
    if len(defined) < 3:
        return None
    return int(defined["MAJOR"]), int(defined["MINOR"]), int(defined["PATCHLEVEL"])


def header_folders(folder: str) -> list[str]:
    """List where the header for a folder of libraries may be: ``../include``, or Debian's folders."""
    prefix = os.path.dirname(folder)
    if os.path.basename(prefix) == "lib":  # <prefix>/lib/x86_64-linux-gnu
        include = os.path.join(os.path.dirname(prefix), "include")
        return [os.path.join(include, os.path.basename(folder)), include]
    return [os.path.join(prefix, "include")]


def companion_version(path: str) -> str:
    """Return the version of libcublasLt or libcudart from its real name or its wheel; empty if unknown."""
    real = os.path.realpath(path)
    if match := re.search(r"\.so\.(\d+\.\d[.\d]*)$", real):
        return match[1]
    package = "nvidia_cublas" if "cublas" in os.path.basename(real) else "nvidia_cuda_runtime"
    major = real.rpartition(".")[2]
    wheel = re.compile(rf"{package}(?:_cu\d+)?-({re.escape(major)}\.[\d.]+)\.dist-info")
    site_packages = os.path.join(os.path.dirname(real), "../../..")  # of nvidia/cublas/lib, nvidia/cu13/lib
    names = map(wheel.fullmatch, _files.names_in(site_packages))
    return next((match[1] for match in names if match), "")


def shim_error(library: Library) -> Problem | None:
    """Return why a file is not the libcudnn.so of a cuDNN 9; None if it is."""
    if library.problem:
        return _translated(library.problem)
    shim, soname = library.real, library.elf.soname or ""
    name = re.fullmatch(r"libcudnn\.so\.(\d+)", soname)
    if not name:
        return Problem("unloadable", f"{shim} is {soname or 'a library without a name'}, not libcudnn.so.9")
    major = int(name[1])
    if major == 9:
        return None
    old = _libraries.old_version(os.path.dirname(shim), major)
    version = dotted(old) if old else major
    return Problem("version", f"{shim} is cuDNN {version}: cudnn_ct needs cuDNN >= 9.0 (and below 10)")


def _incomplete(installation: Installation) -> Iterator[Problem]:
    if missing := installation.missing:
        names = ", ".join(map(file_name, missing))
        unused = [os.path.basename(extra.path) for extra in installation.extra if extra.part in missing]
        searched = f" ({', '.join(unused)}: cuDNN does not search for this name)" if unused else ""
        yield Problem(
            "unloadable",
            f"{installation.folder} is not a complete cuDNN: {names} missing{searched}; install it again "
            "(pip install --force-reinstall for a wheel), or copy all of its libraries",
        )


def _mixed(libraries: list[Library]) -> Iterator[Problem]:
    known = [(library.real, library.version) for library in libraries if library.version]
    if len({version for _, version in known}) > 1:
        parts = ", ".join(f"{path} is {dotted(version)}" for path, version in known)
        text = f"one folder has libraries of different cuDNN versions: {parts}; reinstall one"
        yield Problem("version", text)


def _header_of(folder: str) -> Header | None:
    """Read the first header that exists for a folder of libraries."""
    for include in header_folders(folder):
        for name in ("cudnn_version.h", "cudnn_version_v9.h"):
            path = os.path.join(include, name)
            with suppress(OSError):
                return Header(os.path.realpath(path), header_version(path))
    return None


def _translated(error: _elf.ElfError) -> Problem:
    return Problem("missing" if error.kind == "missing" else "unloadable", str(error))
