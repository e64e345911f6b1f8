"""Read a cuDNN on disk and judge its files before any of them is opened; the doctor uses the same tables."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import _elf, _files
from ._find import EXPLICIT, SearchResult
from .errors import CudnnError, LibraryLoadError, LibraryNotFoundError, VersionMismatchError, format_version

__all__ = [
    "SUBLIBRARIES",
    "Installation",
    "LibraryFile",
    "SubLibrary",
    "Version",
    "companion_version",
    "file_name",
    "header_folders",
    "header_version",
    "inspect",
    "old_version",
    "parse_header",
    "require",
    "required",
    "version_in",
    "version_number",
    "world_writable",
]

Version = tuple[int, int, int]


@dataclass(frozen=True)
class SubLibrary:
    """A library that libcudnn.so opens when it needs it.

    Attributes
    ----------
    name : str
        The part of its file name between ``libcudnn_`` and ``.so``.
    constant : str
        The exported symbol that holds its version; empty if it exports none.
    core : bool
        Whether cuDNN ends the process or fails in every call without it.
    computes : bool
        Whether it needs code for every GPU.
    since : tuple of int
        The first version that always includes it.
    earliest : tuple of int
        The first version that may include it; its true first version is between the two and not known.
    """

    name: str
    constant: str = ""
    core: bool = False
    computes: bool = False
    since: Version = (9, 0, 0)
    earliest: Version = (9, 0, 0)


# In the order of their dependencies: a library opened in this order finds the ones it needs already loaded.
SUBLIBRARIES = {
    row.name: row
    for row in (
        SubLibrary("graph", "cudnn_graph_version", core=True),
        SubLibrary("ops", "cudnn_ops_infer_version", core=True, computes=True),
        SubLibrary("cnn", core=True, computes=True),
        SubLibrary("adv", "cudnn_adv_infer_version", core=True, computes=True),
        SubLibrary("ext", since=(9, 24, 0), earliest=(9, 21, 0)),
        SubLibrary("heuristic"),
        SubLibrary("engines_precompiled", computes=True),
        SubLibrary("engines_runtime_compiled", computes=True),
        SubLibrary("engines_tensor_ir", since=(9, 24, 0), earliest=(9, 21, 0)),
    )
}


@dataclass(frozen=True)
class LibraryFile:
    """A library or a header on disk.

    Attributes
    ----------
    name : str
        What it is: ``"graph"``, ``"header"``, ``"libcublasLt"``.
    path : str or None
        The real file; None when there is none.
    version : str or None
        Its version, where the file tells.
    note : str
        What a person should know about it: why it is missing, or what is odd.
    mapped : bool
        Whether this process has it open.
    """

    name: str
    path: str | None
    version: str | None = None
    note: str = ""
    mapped: bool = False


@dataclass(frozen=True)
class Installation:
    """A cuDNN on disk.

    Attributes
    ----------
    shim : str
        The real path of ``libcudnn.so.9``, the library that programs link with.
    version : int or None
        The version constant of its graph library, which is what ``cudnnGetVersion`` will answer.
    files : tuple of LibraryFile
        The sub-libraries beside it, in the order in which to open them.
    header : LibraryFile or None
        The ``cudnn_version.h`` that belongs to it.
    problems : tuple of CudnnError
        Why it must not be opened; empty for a sound one.
    """

    shim: str
    version: int | None = None
    files: tuple[LibraryFile, ...] = ()
    header: LibraryFile | None = None
    problems: tuple[CudnnError, ...] = field(default=(), compare=False)

    @property
    def folder(self) -> Path:
        """The folder of the real files."""
        return Path(self.shim).parent

    @property
    def notes(self) -> tuple[str, ...]:
        """What is odd and does not keep it from being opened here."""
        files = (self.shim, *(file.path for file in self.files if file.path))
        private = [
            f"not everybody may read {path}: other users of this machine cannot load it; chmod a+r {path}"
            for path in files
            if _files.private(path) == path
        ]
        return (*private, *([self.world_writable] if self.world_writable else []))

    @property
    def world_writable(self) -> str:
        """What of it everybody may replace, and so run code in this process; empty where nothing is."""
        files = (self.shim, *(file.path for file in self.files if file.path))
        return world_writable(str(self.folder)) or next(filter(None, map(world_writable, files)), "")

    def other_installations(self, mapped: Iterable[str]) -> list[str]:
        """List the libraries of another cuDNN 9 among the files that a process has mapped."""
        ours = {self.shim, *(file.path for file in self.files)}
        names = filter(None, map(_files.library_name, mapped))
        return [name.path for name in names if name.major == 9 and name.path not in ours]


def inspect(path: str | os.PathLike[str]) -> Installation:
    """Read all of the cuDNN that a path leads to. Opens nothing and raises nothing: see ``problems``."""
    shim = os.path.realpath(path)
    # The real path, because cuDNN looks for its other libraries beside the path by which it was opened.
    try:
        problem = _judge_shim(shim, _elf.check(shim))
    except _elf.ElfError as error:
        problem = _translated(error)
    if problem:
        return Installation(shim, problems=(problem,))
    files, versions, problems = _read_files(Path(shim))
    folder, version = os.path.dirname(shim), versions.get("graph")
    problems += _incomplete(folder, files, version) + _mixed(files)
    return Installation(shim, version and version_number(version), files, _header_of(folder), tuple(problems))


def require(found: SearchResult) -> Installation:
    """Read what a search found, and raise unless it is a cuDNN that can be opened."""
    if found.path is None:
        raise _not_found(found)
    installation = inspect(found.path)
    if installation.problems:
        first, *more = installation.problems
        if isinstance(first, LibraryNotFoundError):
            first = LibraryNotFoundError(_named(found) or str(first), found.steps)
        for note in (f"found via {found.found_via}", *map(str, more)):
            first.add_note(note)
        raise first
    return installation


def _named(found: SearchResult) -> str:
    """What to say where a setting names a file that is not there; empty where that is not so."""
    if found.found_via != EXPLICIT or found.path is None or os.path.lexists(found.path):
        return ""
    return f"{EXPLICIT} or ct.config names {found.path}, which does not exist; correct it, or unset it"


def world_writable(path: str) -> str:
    """Say that everybody may write a file, or put others in place of those in a folder; empty where not."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return ""
    # In a folder with the sticky bit, such as /tmp, nobody replaces another's files.
    if not mode & stat.S_IWOTH or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return ""
    return f"everybody may write {path}, and so run code in the processes that load it; chmod o-w {path}"


def file_name(name: str = "") -> str:
    """Return the file name of a sub-library, or of libcudnn.so itself for an empty name."""
    return f"libcudnn{'_' if name else ''}{name}.so.9"


def required(version: Version | None) -> list[str]:
    """List the sub-libraries that a cuDNN of a version must have."""
    return [row.name for row in SUBLIBRARIES.values() if row.since <= (version or (9, 0, 0))]


def version_in(library: _elf.Elf, name: str) -> Version | None:
    """Read the version constant of a sub-library, where 0x091B00 is 9.27.0; None if it exports none.

    Raises
    ------
    ElfError
        The library is damaged.
    """
    row = SUBLIBRARIES.get(name)
    constant = library.constant(row.constant) if row and row.constant else None
    return (constant >> 16, constant >> 8 & 0xFF, constant & 0xFF) if constant else None


def old_version(folder: str | os.PathLike[str], major: int) -> Version | None:
    """Read the version of cuDNN 8, whose smallest library is ops_infer; None for all other versions."""
    try:
        return version_in(_elf.read(os.path.join(folder, f"libcudnn_ops_infer.so.{major}")), "ops")
    except _elf.ElfError:
        return None


def version_number(version: Version) -> int:
    """Write a version as ``cudnnGetVersion`` does: 9.27.0 is 92700, 8.9.7 is 8907."""
    major, minor, patch = version
    return major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch


def parse_header(text: str) -> Version | None:
    """Parse the version that a ``cudnn_version.h`` defines; None if it defines none."""
    defined = dict(re.findall(r"^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL)[ \t]+(\d{1,6})\b", text, re.M | re.A))
    if len(defined) < 3:
        return None
    return int(defined["MAJOR"]), int(defined["MINOR"]), int(defined["PATCHLEVEL"])


def header_version(path: str | os.PathLike[str]) -> int | None:
    """Read the version number that a ``cudnn_version.h`` defines; None if it defines none."""
    version = parse_header(_files.text_of(path))
    return version and version_number(version)


def header_folders(folder: str) -> list[str]:
    """List where the header for a folder of libraries may be: ``../include``, or Debian's folders."""
    prefix = os.path.dirname(folder)
    if os.path.basename(prefix) == "lib":  # <prefix>/lib/x86_64-linux-gnu
        include = os.path.join(os.path.dirname(prefix), "include")
        return [os.path.join(include, os.path.basename(folder)), include]
    return [os.path.join(prefix, "include")]


def _not_found(found: SearchResult) -> CudnnError:
    for other in found.others:  # a cuDNN 8 is a better answer than none
        for problem in inspect(other).problems:
            if isinstance(problem, VersionMismatchError):
                return problem
    advice = "pip install nvidia-cudnn-cu12 (or -cu13), or set CUDNN_CT_LIBRARY to its file or folder"
    if found.steps[0][0] == "platform":
        advice = found.steps[0][1]
    return LibraryNotFoundError(f"no cuDNN 9 was found: {advice}", found.steps)


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


def _judge_shim(shim: str, library: _elf.Elf) -> CudnnError | None:
    name = re.fullmatch(r"libcudnn\.so\.(\d+)", library.soname or "")
    if not name:
        return LibraryLoadError(
            f"{shim} is {library.soname or 'a library without a name'}, not libcudnn.so.9"
        )
    major = int(name.group(1))
    if major == 9:
        return None
    version = _dotted(old_version(os.path.dirname(shim), major)) or major
    return VersionMismatchError(f"{shim} is cuDNN {version}: cudnn_ct needs cuDNN >= 9.0 (and below 10)")


def _read_files(shim: Path) -> tuple[tuple[LibraryFile, ...], dict[str, Version], list[CudnnError]]:
    files, versions, problems = [], {}, []
    for name in SUBLIBRARIES:
        path = _beside(shim, name)
        if path is None:
            files.append(LibraryFile(name, None, note="not there"))
            continue
        try:
            version = version_in(_elf.check(path), name)
        except _elf.ElfError as error:
            problems.append(_translated(error))
            files.append(LibraryFile(name, path, note=error.kind))
        else:
            files.append(LibraryFile(name, path, _dotted(version)))
            if version:
                versions[name] = version
    return tuple(files), versions, problems


def _beside(shim: Path, name: str) -> str | None:
    """Find a sub-library by the names that cuDNN itself tries, the most exact first."""
    suffix = shim.name.removeprefix("libcudnn")
    for ending in dict.fromkeys((suffix if suffix.startswith(".so.9") else ".so.9", ".so.9", ".so")):
        path = shim.parent / f"libcudnn_{name}{ending}"
        if os.path.lexists(path):
            return os.path.realpath(path)
    return None


def _incomplete(folder: str, files: tuple[LibraryFile, ...], version: Version | None) -> list[CudnnError]:
    missing = [file_name(file.name) for file in files if not file.path and file.name in required(version)]
    if not missing:
        return []
    return [
        LibraryLoadError(
            f"{folder} is not a complete cuDNN: {', '.join(missing)} not there; install it again "
            "(pip install --force-reinstall for a wheel), or copy all of its libraries"
        )
    ]


def _mixed(files: tuple[LibraryFile, ...]) -> list[CudnnError]:
    known = [file for file in files if file.version]
    if len({file.version for file in known}) < 2:
        return []
    parts = ", ".join(f"{file.path} is {file.version}" for file in known)
    return [
        VersionMismatchError(f"libraries of different cuDNN versions lie together: {parts}; install one anew")
    ]


def _header_of(folder: str) -> LibraryFile | None:
    """Read the first header that exists for a folder of libraries."""
    for include in header_folders(folder):
        for name in ("cudnn_version.h", "cudnn_version_v9.h"):
            path = os.path.join(include, name)
            try:
                version = header_version(path)
            except OSError:
                continue
            return LibraryFile("header", os.path.realpath(path), format_version(version) if version else None)
    return None


def _translated(error: _elf.ElfError) -> CudnnError:
    cls = LibraryNotFoundError if error.kind == "missing" else LibraryLoadError
    return cls(str(error))


def _dotted(version: Version | None) -> str | None:
    return version and ".".join(map(str, version))
