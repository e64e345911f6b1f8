"""Find the file of a library: ordered steps, each of which returns a path or the reason why it found none."""

# No library is opened here. The doctor takes the folders to search from here too.

from __future__ import annotations

import contextlib
import glob
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from . import elf as _elf
from . import files as _files
from .libraries import CUDA, WHEEL_FOLDERS, read_library

if TYPE_CHECKING:
    from pathlib import Path


class LibrarySpec(NamedTuple):
    """A library to search for."""

    soname: str  # its name with the one supported major version
    wheels: tuple[str, ...] = ()  # the folders of wheels that contain it, relative to site-packages

    @property
    def stem(self) -> str:
        """Its name without the version, such as ``libcudnn``."""
        return self.soname.partition(".so")[0]


EXPLICIT = "CUDNN_CT_LIBRARY"  # the step for `config.library`, by its environment variable

# Environment variables that name the root folder of a CUDA toolkit, into which some install cuDNN too.
TOOLKITS = ("CUDA_PATH", "CUDA_HOME", "CUDA_ROOT")

# The folders where system packages and installers put libraries.
SYSTEM_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib",
    "/usr/local/lib", "/usr/local/cuda/lib64",
)  # fmt: skip

CUDNN = LibrarySpec("libcudnn.so.9", tuple(f"{folder}/lib" for folder in WHEEL_FOLDERS.values()))
DRIVER = LibrarySpec("libcuda.so.1")


def of_cuda(name: str, cuda: int) -> LibrarySpec:
    """Describe a library of one CUDA major version, such as ``libcublasLt``."""
    row = CUDA[name]
    return LibrarySpec(row.file.format(cuda, cuda - 1), (f"nvidia/{row.folder}/lib", f"nvidia/cu{cuda}/lib"))


def mapped_files() -> tuple[str, ...]:
    """List the files that this process has mapped; empty if ``/proc`` is not mounted."""
    try:
        return tuple(_files.mapped("self"))
    except OSError:
        return ()


@dataclass(frozen=True)
class SearchContext:
    """Everything that a search depends on: by default this process, its environment and its system."""

    setting: str | os.PathLike[str] | None = None  # a file or a folder
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    mapped: Callable[[], Iterable[str]] = mapped_files
    linker_cache: str = "/etc/ld.so.cache"
    linker_folders: tuple[str, ...] = SYSTEM_FOLDERS
    beside: str | None = None  # the folder of the cuDNN that needs the library
    prefix: str = sys.prefix  # of this Python, which may be that of a conda environment
    root: str = "/"  # of `linker_cache` and `linker_folders`: the root of an image, or of this system


@dataclass(frozen=True)
class SearchResult:
    """The file that a search found, or None; each step with its path or reason; files of other versions."""

    path: Path | None
    found_via: str
    steps: tuple[tuple[str, str], ...]
    others: tuple[Path, ...] = ()


class NotFoundError(Exception):
    """A step found no file, for the reason in its message."""

    def __init__(self, reason: str, others: Iterable[Path] = ()) -> None:
        super().__init__(reason)
        self.others = tuple(others)


if TYPE_CHECKING:
    Step = Callable[[LibrarySpec, SearchContext], Path]
    Folders = Callable[[LibrarySpec, SearchContext], Iterable[tuple[str, str]]]


def search(spec: LibrarySpec, steps: Iterable[tuple[str, Step]], context: SearchContext) -> SearchResult:
    """Run the steps in order until one finds the library."""
    reasons: list[tuple[str, str]] = []
    others: list[Path] = []
    for name, step in steps:
        try:
            path = step(spec, context)
        except NotFoundError as miss:
            reasons.append((name, str(miss)))
            others += miss.others
        except OSError as error:  # for example a folder without permission
            reasons.append((name, str(error)))
        else:
            return SearchResult(path, name, (*reasons, (name, str(path))), tuple(others))
    return SearchResult(None, "", tuple(reasons), tuple(others))


def find_explicit(spec: LibrarySpec, context: SearchContext) -> Path:
    """Return the path that the setting names, even if it is wrong: no other library replaces it."""
    if not context.setting:
        raise NotFoundError("not set")
    path = _path(context.setting).expanduser()
    if not os.path.isdir(path):
        return path
    try:
        return _first(spec, folders_of(path))
    except NotFoundError as miss:
        return miss.others[0] if miss.others else path / spec.soname


def find_mapped(spec: LibrarySpec, context: SearchContext) -> Path:
    """Find the library that this process has already loaded, for example PyTorch's: two copies would mix."""
    files = list(map(_path, context.mapped()))
    for file in files:
        if _is(file, spec):
            return file
    raise NotFoundError("not loaded by this process", _others(files, spec))


def find_in(folders: Folders, spec: LibrarySpec, context: SearchContext) -> Path:
    """Find the library in the first of the folders that contains it."""
    return _first(spec, [folder for _, folder in folders(spec, context)])


def find_system(spec: LibrarySpec, context: SearchContext) -> Path:
    """Find the library as the dynamic linker does, which skips libraries for other machines."""
    folders = (folder for _, folder in _system_folders(spec, context))
    return _first(spec, [folder for folder in folders if not _foreign(os.path.join(folder, spec.soname))])


def find_pathfinder(spec: LibrarySpec, context: SearchContext) -> Path:
    """Find the library with cuda-pathfinder, in a child process."""
    # cuda-pathfinder loads the library that it finds, with its dependencies and in any major version. After a
    # child process nothing stays loaded, and a broken library does not end this process.
    import subprocess  # only when all other steps have failed

    name = spec.stem[len("lib") :]
    command = [sys.executable or "", "-P", "-c", _ASK_PATHFINDER, name, *_absolute(context.path)]
    environ = dict(context.environ)
    # It uses the dynamic linker, for which an empty entry is the current folder.
    environ["LD_LIBRARY_PATH"] = ":".join(_absolute(_files.search_path(environ)))
    try:
        child = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFoundError(f"its process did not run: {error}") from None
    if child.returncode < 0:
        raise NotFoundError(f"its process was killed by signal {-child.returncode}")
    if child.returncode:
        reason = child.stderr.strip()
        other = ".so" in reason and spec.stem not in reason
        raise NotFoundError(f"it loads another library first: {reason}" if other else reason)
    answer = _path(child.stdout.splitlines()[-1])
    if not _is(answer, spec):
        raise NotFoundError(f"it found {answer}, which is another version", [answer])
    return answer


def searched(steps: Iterable[str], spec: LibrarySpec, context: SearchContext) -> Iterator[tuple[str, str]]:
    """Yield the source and the path of each folder that some steps search; the doctor reads all of them."""
    for step in steps:
        with contextlib.suppress(NotFoundError):
            yield from FOLDERS[step](spec, context)


def _beside_folders(spec: LibrarySpec, context: SearchContext) -> Iterator[tuple[str, str]]:
    """Yield cuDNN's own folder, and the wheels next to the wheel of cuDNN."""
    if context.beside is None:
        raise NotFoundError("no cuDNN was found")
    site_packages = context.beside  # of <site-packages>/nvidia/cudnn/lib
    for _ in range(3):
        site_packages = os.path.dirname(site_packages)
    yield "cuDNN", context.beside
    yield from (("cuDNN", os.path.join(site_packages, wheel)) for wheel in spec.wheels)


def _wheel_folders(spec: LibrarySpec, context: SearchContext) -> Iterator[tuple[str, str]]:
    for wheel in spec.wheels:  # a full cuDNN in any entry precedes the small set
        yield from (("wheel", os.path.join(entry, wheel)) for entry in _absolute(context.path))


def _root_folders(
    names: tuple[str, ...], _: LibrarySpec, context: SearchContext
) -> Iterator[tuple[str, str]]:
    """Yield the folders below each root that an environment variable names."""
    roots = [(name, context.environ[name]) for name in names if context.environ.get(name)]
    if not roots:
        raise NotFoundError(f"{', '.join(names)} not set")
    for name, root in roots:
        of_platforms = sorted(glob.glob(os.path.join(glob.escape(root), "targets/*/lib")))  # of a toolkit
        yield from ((name, folder) for folder in _absolute((*folders_of(root), *of_platforms)))


def _conda_folders(spec: LibrarySpec, context: SearchContext) -> Iterator[tuple[str, str]]:
    """Yield the folders of the active conda environment, or of that of this Python."""
    own = context.root == "/" and os.path.isdir(os.path.join(context.prefix, "conda-meta"))
    environ = {"CONDA_PREFIX": context.prefix} if own else {}
    context = replace(context, environ={**environ, **context.environ})
    yield from _root_folders(("CONDA_PREFIX",), spec, context)


def _system_folders(spec: LibrarySpec, context: SearchContext) -> Iterator[tuple[str, str]]:
    """Yield the folders that the dynamic linker searches."""
    for folder in _absolute(_files.search_path(context.environ)):
        yield "LD_LIBRARY_PATH", folder
    for folder in _cached_folders(spec.soname, context):
        yield "ld.so.cache", folder
    for folder in context.linker_folders:
        yield "system", os.path.join(context.root, folder.lstrip("/"))


# The folders of each step that searches folders, each with the source that names it.
FOLDERS: dict[str, Folders] = {
    "beside cuDNN": _beside_folders,
    "wheel": _wheel_folders,
    "conda": _conda_folders,
    "CUDNN_PATH": partial(_root_folders, ("CUDNN_PATH",)),
    "CUDA toolkit": partial(_root_folders, TOOLKITS),
    "system": _system_folders,
}

_STEPS: dict[str, Step] = {
    EXPLICIT: find_explicit,
    "already loaded": find_mapped,
    **{name: partial(find_in, folders) for name, folders in FOLDERS.items()},
    "system": find_system,  # instead of `find_in`, at the same place
    "cuda-pathfinder": find_pathfinder,
}

CUDNN_STEPS = tuple((name, step) for name, step in _STEPS.items() if name != "beside cuDNN")
COMPANION_STEPS = tuple((name, step) for name, step in _STEPS.items() if name not in (EXPLICIT, "CUDNN_PATH"))


def folders_of(root: str | os.PathLike[str]) -> list[str]:
    """List the folders where a root keeps libraries; the root may itself be the folder of the libraries."""
    return [os.path.join(root, name) for name in ("", "lib", "lib64")]


_ASK_PATHFINDER = """
import sys
sys.path[:] = sys.argv[2:]
try:
    from cuda.pathfinder import load_nvidia_dynamic_lib
    print(load_nvidia_dynamic_lib(sys.argv[1]).abs_path)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
"""


def _first(spec: LibrarySpec, folders: Iterable[str]) -> Path:
    present = [folder for folder in dict.fromkeys(map(_path, folders)) if os.path.isdir(folder)]
    for folder in present:
        for path in (folder / spec.soname, *_newest_first(folder.glob(f"{spec.soname}.*"))):
            if os.path.lexists(path):  # a dangling link too: `inspect` reports it
                return path
    others = [file for folder in present for file in _others(folder.glob(f"{spec.stem}.so.*"), spec)]
    where = ", ".join(map(str, present)) or "its folders: none of them exists"
    found = f", only {', '.join(file.name for file in others)}" if others else ""
    raise NotFoundError(f"no {spec.soname} in {where}{found}", others)


def _path(name: str | os.PathLike[str]) -> Path:
    from pathlib import Path  # takes 7 ms, and the doctor needs none

    return Path(name)


def _absolute(folders: Iterable[str]) -> list[str]:
    """Drop relative folders: other users may write libraries to the current folder."""
    return [folder for folder in folders if os.path.isabs(folder)]


def _foreign(file: str) -> bool:
    """Return whether a library is for another machine, such as the 32-bit library of a driver."""
    problem = read_library(file).problem
    return problem is not None and problem.kind in ("class", "machine")


def _newest_first(files: Iterable[Path]) -> list[Path]:
    return sorted(files, key=lambda file: [*map(int, re.findall(r"\d+", file.name))], reverse=True)


def _is(file: Path, spec: LibrarySpec) -> bool:
    return re.fullmatch(rf"{re.escape(spec.soname)}(\.\d+)*", file.name) is not None


def _others(files: Iterable[Path], spec: LibrarySpec) -> list[Path]:
    """Keep the same library of other major versions."""
    name = re.compile(rf"{spec.stem}\.so(\.\d+)+")
    return _newest_first(file for file in files if name.fullmatch(file.name) and not _is(file, spec))


def _cached_folders(soname: str, context: SearchContext) -> Iterator[str]:
    """Yield the folders of a library in the linker's cache, which contains paths as plain text."""
    try:
        cache = _files.contents(os.path.join(context.root, context.linker_cache.lstrip("/")))
    except OSError:
        return
    for path in re.findall(rb"(?<=\0)/[^\0]*/" + re.escape(soname.encode()) + rb"(?=\0)", cache):
        yield os.path.join(context.root, os.path.dirname(os.fsdecode(path)).lstrip("/"))


def unsupported() -> str:
    """Return why this machine cannot have a cuDNN; empty if it can."""
    glibc = _elf.glibc_version()
    if glibc and _elf.machine_here():
        return ""
    machine = os.uname().machine if hasattr(os, "uname") else "an unknown machine"
    here = f"{sys.platform} on {machine} with {glibc or 'another C library'}"
    return f"cudnn_ct supports Linux with glibc on x86-64 or aarch64; this is {here}"
