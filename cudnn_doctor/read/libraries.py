"""The libraries of a cuDNN on disk: the table of sub-libraries, and the headers of the files of a folder."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

from . import elf as _elf
from . import files as _files
from .versions import Version, dotted

# The sets of libraries that are a cuDNN, and the folders of their wheels. All engines of the small set are
# compiled at run time, and it has no legacy calls. The third set is a part of the full one that somebody has
# copied: libcudnn_ext needs no other library of cuDNN, and no handle.
FULL, JIT, EXT = "full", "jit", "ext"
WHEEL_FOLDERS = {FULL: "nvidia/cudnn", JIT: "nvidia/cudnn_jit"}


class SubLibrary(NamedTuple):
    """A library that libcudnn.so opens when it needs it."""

    name: str  # the part of its file name between libcudnn_ and .so
    constant: str = ""  # the exported symbol that holds its version, if it exports one
    core: bool = False  # whether cuDNN ends the process or fails in every call without it
    computes: bool = False  # whether it needs code for every GPU
    jit: bool = False  # whether the small set has it too
    headers: tuple[str, ...] = ()  # the headers that declare its functions
    since: Version = (9, 0, 0)  # the first version that always includes it
    earliest: Version = (9, 0, 0)  # the first version that may include it; its true first is between the two
    windows: Version | None = None  # ``since`` for Windows, if it is another version


# In the order of their dependencies: a library opened in this order finds the ones it needs already loaded.
SUBLIBRARIES = {
    row.name: row
    for row in (
        SubLibrary("graph", "cudnn_graph_version", core=True, jit=True, headers=("cudnn_graph.h",)),
        SubLibrary("ops", "cudnn_ops_infer_version", core=True, computes=True, headers=("cudnn_ops.h",)),
        SubLibrary("cnn", core=True, computes=True, headers=("cudnn_cnn.h",)),
        SubLibrary("adv", "cudnn_adv_infer_version", core=True, computes=True, headers=("cudnn_adv.h",)),
        SubLibrary(
            "ext",
            since=(9, 24, 0),
            earliest=(9, 21, 0),
            windows=(9, 23, 2),
            headers=("cudnn_gnn_ops.h", "cudnn_subquadratic_ops.h"),
        ),
        SubLibrary("heuristic"),
        SubLibrary("engines_precompiled", computes=True),
        SubLibrary("engines_runtime_compiled", computes=True, jit=True),
        SubLibrary("engines_tensor_ir", since=(9, 24, 0), earliest=(9, 21, 0), windows=(9, 23, 2)),
    )
}

# The sub-libraries of each set; a version of the full set may lack those that are newer.
SETS = {
    FULL: frozenset(SUBLIBRARIES),
    JIT: frozenset(row.name for row in SUBLIBRARIES.values() if row.jit),
    EXT: frozenset({"ext"}),
}


class CudaLibrary(NamedTuple):
    """A library of CUDA: a row of cuda_libraries.json."""

    file: str  # its name for a CUDA major version {0}; {1} is one less
    folder: str  # of its wheel before CUDA 13
    file_11: str = ""  # its name for CUDA 11, if it is another one
    preloaded: bool = False  # whether programs that use cuDNN need it
    sets: Sequence[str] = ()  # the sets of cuDNN whose engines open it by its name
    until: Sequence[int] = (10, 0, 0)  # the first version whose engines do without it
    also: Sequence[str] = ()  # the sub-libraries that need it in every version
    package: str = ""  # its wheel from CUDA 13 on, if the doctor looks for it
    extra: str = ""  # that of cuda-toolkit, which requires it
    missing: str = ""  # the code of its finding
    function: str = ""  # that it has; a stub for a linker, or for a test, may lack it
    dll: str = ""  # its name on Windows


# A full cuDNN ends the process if it cannot open libcublasLt. Without libnvrtc, the versions that use it have
# no engines that are compiled at run time, and report no error; newer ones contain a compiler.
CUDA = {
    name: CudaLibrary(**row)
    for name, row in json.loads(_files.resource("cudnn_doctor/read/cuda_libraries.json")).items()
}
COMPANIONS = {name: row for name, row in CUDA.items() if row.sets}  # of which cuDNN needs one


@dataclass(frozen=True)
class Library:
    """A library of cuDNN and the contents of its headers."""

    name: str  # its part of cuDNN; empty for libcudnn.so
    path: str  # the file as named in its folder
    real: str  # the same with all links followed
    error: _elf.ElfError | None = None  # why it could not be read
    elf: _elf.Elf = _elf.UNREAD
    version: Version | None = None  # the version constant that it exports

    @property
    def file(self) -> str:
        """The name of the file."""
        return os.path.basename(self.path)

    @property
    def problem(self) -> _elf.ElfError | None:
        """The reason why this process cannot open it."""
        return self.error or _elf.machine_error(self.elf)


def file_name(name: str = "") -> str:
    """Return the file name of a sub-library, or of libcudnn.so itself for an empty name."""
    return f"libcudnn{'_' if name else ''}{name}.so.9"


def kind_of(folder: str, parts: Container[str]) -> str:
    """Return the set of libraries of a folder: a small one if it is complete or in its wheel's folder."""
    own = os.path.normpath(folder).endswith(f"{WHEEL_FOLDERS[JIT]}/lib")
    exact = all((name in parts) == (name in SETS[JIT]) for name in SUBLIBRARIES)
    if own or exact:
        return JIT
    return EXT if all((name in parts) == (name in SETS[EXT]) for name in SUBLIBRARIES) else FULL


def required(version: Version | None, kind: str = FULL, windows: bool = False) -> list[str]:
    """List the sub-libraries that a cuDNN of a version and a set must have."""
    have = version or (9, 0, 0)
    rows = [row for row in SUBLIBRARIES.values() if ((windows and row.windows) or row.since) <= have]
    return [row.name for row in rows if row.name in SETS[kind]]


def needs(companion: str, kind: str, version: Version | None) -> bool:
    """Return whether engines of a set and a version need a library of CUDA, such as ``libnvrtc``."""
    row = COMPANIONS[companion]
    return kind in row.sets and (version or (9, 0, 0)) < tuple(row.until)


def part_of_header(header: str) -> str:
    """Return the sub-library that has the functions of a header; empty if unknown."""
    return next((row.name for row in SUBLIBRARIES.values() if header in row.headers), "")


def lacking(part: str, kind: str, path: str) -> str:
    """Return that a cuDNN of a set at a path does not have a sub-library, in words that follow a name."""
    owner = {FULL: path, EXT: "a set of libcudnn_ext alone"}.get(kind, "the JIT wheel")
    return f"needs {file_name(part).partition('.')[0]}, which {owner} lacks"


L = TypeVar("L", bound=Library)


def read_folder(
    folder: str, read_one: Callable[[str, str, str], L], root: str = "/"
) -> tuple[dict[str, L], tuple[_files.LibraryName, ...]]:
    """Read the libraries of cuDNN 9 in a folder with ``read_one``, given a path, the root and the part."""
    # Return the files that cuDNN opens by part, in the order in which to open them, and other files of the
    # same parts: other contents, or names that cuDNN does not search for.
    found: dict[str, list[_files.LibraryName]] = {}
    for name in files_of(folder):
        if name.major in (0, 9) and not _files.link_as_text(name.path):
            found.setdefault(name.part, []).append(name)
    read = lru_cache(maxsize=None)(lambda name: read_one(name.path, root, name.part))
    constants = (name for row in SUBLIBRARIES.values() if row.constant for name in found.get(row.name, ()))
    version = most_frequent(map(read, constants))
    own = dotted(version) if version else ""
    order = ["", *SUBLIBRARIES]
    libraries, extra = {}, []
    for part in sorted(found, key=lambda part: order.index(part) if part in order else len(order)):
        names = sorted(found[part], key=lambda name: _preference(name, own))
        # cuDNN searches for these names; others are accepted if its version is unknown.
        searched = not part or not own or names[0].version in (own, "9", "")
        opened = names[0] if searched else None
        if opened:
            libraries[part] = read(opened)
        extra += [name for name in names if not opened or not _same(name.path, opened.path, root)]
    return libraries, tuple(extra)


def read_library(
    path: str, root: str = "/", part: str = "", read: Callable[[str], _elf.Elf] = _elf.read
) -> Library:
    """Read the headers of a library by ``read``; if that fails, the reason is in ``error``."""
    real = _files.real(path, root)
    try:
        headers = read(real)
        return Library(part, path, real, None, headers, version_in(headers, part))
    except _elf.ElfError as error:
        return Library(part, path, real, error)


def version_in(library: _elf.Elf, name: str) -> Version | None:
    """Read the version constant of a sub-library, where 0x091B00 is 9.27.0; None if it exports none."""
    row = SUBLIBRARIES.get(name)
    constant = library.constant(row.constant) if row and row.constant else None
    return (constant >> 16, constant >> 8 & 0xFF, constant & 0xFF) if constant else None


def old_version(folder: str | os.PathLike[str], major: int) -> Version | None:
    """Read the version of cuDNN 8, whose smallest library is ops_infer; None for all other versions."""
    return read_library(os.path.join(folder, f"libcudnn_ops_infer.so.{major}"), part="ops").version


def most_frequent(libraries: Iterator[Library]) -> Version | None:
    """Return the most frequent version constant; the first of equally frequent ones."""
    known = Counter(library.version for library in libraries if library.version)
    return max(known, key=known.__getitem__, default=None)  # most_common would import heapq


def _preference(name: _files.LibraryName, own: str) -> tuple[int, list[int]]:
    """Sort the names of a part as cuDNN tries them: its own version, 9, none; other versions come last."""
    # Programs open libcudnn.so itself, by the name with 9.
    order = ["9", own, ""] if not name.part else [own, "9", ""]
    rank = order.index(name.version) if name.version in order else len(order)
    return rank, [-int(digits) for digits in name.version.split(".") if digits]


def files_of(folder: str) -> Iterator[_files.LibraryName]:
    """Yield the libraries of a folder, also of one that this user may enter and not list."""
    if os.access(folder, os.R_OK):
        yield from _files.cudnn_files(folder)
        return
    for name in ("", *SUBLIBRARIES):
        path = os.path.join(folder, file_name(name))
        if os.path.lexists(path):
            yield _files.LibraryName(name, "9", path)


def _same(one: str, other: str, root: str) -> bool:
    one, other = _files.real(one, root), _files.real(other, root)
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one == other
