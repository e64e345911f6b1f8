"""What one folder of cuDNN holds: every file of it read and judged before any of it is opened."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import _elf
from ._find import EXPLICIT, SearchResult
from .errors import CudnnError, LibraryLoadError, LibraryNotFoundError, VersionMismatchError, format_version

__all__ = [
    "SUBLIBRARIES",
    "Installation",
    "LibraryFile",
    "SubLibrary",
    "header_version",
    "inspect",
    "require",
    "world_writable",
]


@dataclass(frozen=True)
class SubLibrary:
    """One row: a library that cuDNN opens by itself, when it needs it."""

    name: str
    symbol: str = ""  # its version constant, where it exports one
    core: bool = False  # cuDNN ends the process or fails all over without it
    since: int = 0  # the first version that all packages of ship it


# In the order in which they depend on each other: opened in this order, each finds those it needs loaded.
SUBLIBRARIES = (
    SubLibrary("graph", "cudnn_graph_version", core=True),
    SubLibrary("ops", "cudnn_ops_infer_version", core=True),
    SubLibrary("cnn", core=True),
    SubLibrary("adv", "cudnn_adv_infer_version", core=True),
    SubLibrary("ext", since=92400),
    SubLibrary("heuristic"),
    SubLibrary("engines_precompiled"),
    SubLibrary("engines_runtime_compiled"),
    SubLibrary("engines_tensor_ir", since=92400),
)


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
    files : tuple of File
        The sub-libraries beside it, in the order in which to open them.
    header : File or None
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
            if _private(path)
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
        pattern = re.compile(r"libcudnn(_\w+)?\.so\.9\b")
        return [path for path in mapped if pattern.match(os.path.basename(path)) and path not in ours]


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
    files, problems = _read_files(Path(shim))
    version = next((file.version for file in files if file.name == "graph"), None)
    number = _number(version) if version else None
    problems += _incomplete(Path(shim).parent, files, number) + _mixed(files)
    return Installation(shim, number, files, _header_of(Path(shim).parent), tuple(problems))


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


def header_version(path: str | os.PathLike[str]) -> int | None:
    """Read the version that a ``cudnn_version.h`` defines; None when it defines none."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    defined = dict(re.findall(r"^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL)\s+(\d+)", text, re.M))
    if len(defined) < 3:
        return None
    return _packed(*(int(defined[part]) for part in ("MAJOR", "MINOR", "PATCHLEVEL")))


def _not_found(found: SearchResult) -> CudnnError:
    for other in found.others:  # a cuDNN 8 is a better answer than none
        for problem in inspect(other).problems:
            if isinstance(problem, VersionMismatchError):
                return problem
    advice = "pip install nvidia-cudnn-cu12 (or -cu13), or set CUDNN_CT_LIBRARY to its file or folder"
    if found.steps[0][0] == "platform":
        advice = found.steps[0][1]
    return LibraryNotFoundError(f"no cuDNN 9 was found: {advice}", found.steps)


def _judge_shim(shim: str, library: _elf.Elf) -> CudnnError | None:
    name = re.fullmatch(r"libcudnn\.so\.(\d+)", library.soname or "")
    if not name:
        return LibraryLoadError(
            f"{shim} is {library.soname or 'a library without a name'}, not libcudnn.so.9"
        )
    major = int(name.group(1))
    if major == 9:
        return None
    version = _old_version(Path(shim).parent, major)
    return VersionMismatchError(f"{shim} is cuDNN {version}: cudnn_ct needs cuDNN >= 9.0 (and below 10)")


def _old_version(folder: Path, major: int) -> str:
    """Read the version of cuDNN 8, whose oldest part is called ops_infer; of others the major has to do."""
    try:
        constant = _elf.read(folder / f"libcudnn_ops_infer.so.{major}").constant("cudnn_ops_infer_version")
    except _elf.ElfError:
        constant = None
    return _unpacked(constant) if constant else str(major)


def _read_files(shim: Path) -> tuple[tuple[LibraryFile, ...], list[CudnnError]]:
    files, problems = [], []
    for row in SUBLIBRARIES:
        path = _beside(shim, row.name)
        if path is None:
            files.append(LibraryFile(row.name, None, note="not there"))
            continue
        try:
            library = _elf.check(path)
            constant = library.constant(row.symbol) if row.symbol else None
        except _elf.ElfError as error:
            problems.append(_translated(error))
            files.append(LibraryFile(row.name, path, note=error.kind))
        else:
            files.append(LibraryFile(row.name, path, _unpacked(constant) if constant else None))
    return tuple(files), problems


def _beside(shim: Path, name: str) -> str | None:
    """Find a sub-library by the names that cuDNN itself tries, the most exact first."""
    suffix = shim.name.removeprefix("libcudnn")
    for ending in dict.fromkeys((suffix if suffix.startswith(".so.9") else ".so.9", ".so.9", ".so")):
        path = shim.parent / f"libcudnn_{name}{ending}"
        if os.path.lexists(path):
            return os.path.realpath(path)
    return None


def _incomplete(folder: Path, files: tuple[LibraryFile, ...], version: int | None) -> list[CudnnError]:
    since = {row.name: row.since for row in SUBLIBRARIES}
    missing = [file.name for file in files if file.path is None and since[file.name] <= (version or 0)]
    if not missing:
        return []
    names = ", ".join(f"libcudnn_{name}.so.9" for name in missing)
    return [
        LibraryLoadError(
            f"{folder} is not a complete cuDNN: {names} not there; install it again "
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


def _header_of(folder: Path) -> LibraryFile | None:
    """Find the header of a library's folder: in ``../include``, or where Debian puts it."""
    for path in _header_places(folder):
        try:
            version = header_version(path)
        except OSError:
            continue
        return LibraryFile("header", os.path.realpath(path), format_version(version) if version else None)
    return None


def _header_places(folder: Path) -> Iterator[Path]:
    includes = [folder.parent / "include"]
    if folder.parent.name == "lib":  # <prefix>/lib/x86_64-linux-gnu
        prefix = folder.parent.parent
        includes = [prefix / "include" / folder.name, prefix / "include"]
    for include in includes:
        yield include / "cudnn_version.h"
        yield include / "cudnn_version_v9.h"


def _translated(error: _elf.ElfError) -> CudnnError:
    cls = LibraryNotFoundError if error.kind == "missing" else LibraryLoadError
    return cls(str(error))


def _private(path: str) -> bool:
    try:
        return not os.stat(path).st_mode & stat.S_IROTH
    except OSError:
        return False


def _unpacked(constant: int) -> str:
    """Write the constant of a library, which holds a version's parts as bytes: 0x091B00 is 9.27.0."""
    return f"{constant >> 16}.{constant >> 8 & 0xFF}.{constant & 0xFF}"


def _number(version: str) -> int:
    return _packed(*map(int, version.split(".")))


def _packed(major: int, minor: int, patch: int) -> int:
    """Write a version as ``cudnnGetVersion`` does."""
    return major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch
