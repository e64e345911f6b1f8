"""Finds a library's file: ordered steps, each of which answers with a path or with a reason why not.

Nothing is opened here. The steps are functions of what is wanted and of the places to look, so that tests
give them a tree in a temporary folder.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import _elf, _files
from ._config import config

__all__ = [
    "COMPANION_STEPS",
    "CUDNN",
    "CUDNN_STEPS",
    "DRIVER",
    "LibrarySpec",
    "NotFoundError",
    "SearchContext",
    "SearchResult",
    "cublaslt",
    "cudart",
    "find_cudnn",
    "mapped_files",
    "search",
]


@dataclass(frozen=True)
class LibrarySpec:
    """One library to look for.

    Attributes
    ----------
    soname : str
        Its name with the one major version that will do.
    wheels : tuple of str
        Where wheels put it, relative to ``site-packages``.
    pathfinder : str
        Its name for cuda-pathfinder; empty when pathfinder is not to be asked.
    """

    soname: str
    wheels: tuple[str, ...] = ()
    pathfinder: str = ""


EXPLICIT = "CUDNN_CT_LIBRARY"  # the step for `config.library`, by its environment variable

# Environment variables that name the root folder of a CUDA toolkit, into which some install cuDNN too.
TOOLKITS = ("CUDA_PATH", "CUDA_HOME", "CUDA_ROOT")

CUDNN = LibrarySpec("libcudnn.so.9", ("nvidia/cudnn/lib",), "cudnn")
DRIVER = LibrarySpec("libcuda.so.1")


def cublaslt(cuda: int) -> LibrarySpec:
    """Describe the libcublasLt of one CUDA major version."""
    wheels = ("nvidia/cublas/lib", f"nvidia/cu{cuda}/lib")
    return LibrarySpec(f"libcublasLt.so.{cuda}", wheels, "cublasLt")


def cudart(cuda: int) -> LibrarySpec:
    """Describe the libcudart of one CUDA major version."""
    wheels = ("nvidia/cuda_runtime/lib", f"nvidia/cu{cuda}/lib")
    return LibrarySpec(f"libcudart.so.{cuda}", wheels, "cudart")


def mapped_files() -> tuple[str, ...]:
    """List the files that this process has mapped; empty if ``/proc`` is not mounted."""
    try:
        return tuple(_files.mapped("self"))
    except OSError:
        return ()


@dataclass(frozen=True)
class SearchContext:
    """Where the steps look: this process and its environment, or what a test gives instead."""

    setting: str | os.PathLike[str] | None = field(default_factory=lambda: config.explicit_library)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    mapped: Callable[[], Iterable[str]] = mapped_files
    linker_cache: str = "/etc/ld.so.cache"
    linker_folders: tuple[str, ...] = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/cuda/lib64")
    beside: Path | None = None  # the folder of the cuDNN that wants the library


@dataclass(frozen=True)
class SearchResult:
    """What a search gave: a file, or the reason of every step; other major versions seen on the way."""

    path: Path | None
    found_via: str
    steps: tuple[tuple[str, str], ...]
    others: tuple[Path, ...] = ()


class NotFoundError(Exception):
    """A step gave nothing, for this reason."""

    def __init__(self, reason: str, others: Iterable[Path] = ()) -> None:
        super().__init__(reason)
        self.others = tuple(others)


Step = Callable[[LibrarySpec, SearchContext], Path]


def find_cudnn() -> SearchResult:
    """Look for cuDNN on this machine with all steps."""
    unsupported = _unsupported()
    if unsupported:
        return SearchResult(None, "", (("platform", unsupported),))
    return search(CUDNN, CUDNN_STEPS, SearchContext())


def search(wanted: LibrarySpec, steps: Iterable[tuple[str, Step]], places: SearchContext) -> SearchResult:
    """Ask each step in turn until one answers."""
    reasons: list[tuple[str, str]] = []
    others: list[Path] = []
    for name, step in steps:
        try:
            path = step(wanted, places)
        except NotFoundError as miss:
            reasons.append((name, str(miss)))
            others += miss.others
        except OSError as error:  # a folder that may not be entered, say
            reasons.append((name, str(error)))
        else:
            return SearchResult(path, name, (*reasons, (name, str(path))), tuple(others))
    return SearchResult(None, "", tuple(reasons), tuple(others))


def find_explicit(wanted: LibrarySpec, places: SearchContext) -> Path:
    """Take what the setting names, be it right or wrong: an explicit wish is never passed over."""
    if not places.setting:
        raise NotFoundError("not set")
    path = Path(places.setting).expanduser()
    if not os.path.isdir(path):
        return path
    try:
        return _first(wanted, folders_of(path))
    except NotFoundError as miss:
        return miss.others[0] if miss.others else path / wanted.soname


def find_mapped(wanted: LibrarySpec, places: SearchContext) -> Path:
    """Find what this process has already loaded (PyTorch's, say): two copies in one process mix."""
    files = list(places.mapped())
    for file in files:
        if _is(Path(file), wanted):
            return Path(file)
    raise NotFoundError("this process has none", _others(map(Path, files), wanted))


def find_beside(wanted: LibrarySpec, places: SearchContext) -> Path:
    """Find a companion where cuDNN itself looks for it: beside it, or in the wheel next to its wheel."""
    if places.beside is None:
        raise NotFoundError("no cuDNN to look beside")
    site_packages = places.beside.parent.parent.parent  # of <site-packages>/nvidia/cudnn/lib
    return _first(wanted, [places.beside, *(site_packages / wheel for wheel in wanted.wheels)])


def find_wheel(wanted: LibrarySpec, places: SearchContext) -> Path:
    """Find a wheel's library in any site-packages of ``sys.path``."""
    return _first(wanted, [Path(entry, wheel) for entry in _fixed(places.path) for wheel in wanted.wheels])


def find_conda(wanted: LibrarySpec, places: SearchContext) -> Path:
    """Find it in the active conda environment."""
    prefix = places.environ.get("CONDA_PREFIX", "")
    if not os.path.isabs(prefix):
        raise NotFoundError("CONDA_PREFIX is not set" if not prefix else f"CONDA_PREFIX={prefix} is relative")
    return _first(wanted, [Path(prefix, "lib"), *Path(prefix).glob("targets/*/lib")])


def find_cudnn_path(wanted: LibrarySpec, places: SearchContext) -> Path:
    """Find it under CUDNN_PATH: a root folder, or the folder of the libraries."""
    return _below(("CUDNN_PATH",), wanted, places)


def find_toolkit(wanted: LibrarySpec, places: SearchContext) -> Path:
    """Find it in the CUDA toolkit that an environment variable names."""
    return _below(TOOLKITS, wanted, places)


def _below(names: tuple[str, ...], wanted: LibrarySpec, places: SearchContext) -> Path:
    roots = [places.environ[name] for name in names if places.environ.get(name)]
    if not roots:
        raise NotFoundError(f"{', '.join(names)} not set")
    return _first(wanted, [folder for root in roots for folder in folders_of(Path(root))])


def find_linker(wanted: LibrarySpec, places: SearchContext) -> Path:
    """Find what the dynamic linker would, by reading its search path and its cache."""
    named = map(Path, _fixed(places.environ.get("LD_LIBRARY_PATH", "").split(":")))
    folders = [*named, *_cached(wanted, places), *map(Path, places.linker_folders)]
    try:
        return _first(wanted, [folder for folder in folders if not _foreign(folder / wanted.soname)])
    except NotFoundError as miss:
        reason = f"not in LD_LIBRARY_PATH, {places.linker_cache} or the usual folders"
        raise NotFoundError(reason, miss.others) from None


def find_pathfinder(wanted: LibrarySpec, places: SearchContext) -> Path:
    """Ask cuda-pathfinder, in a child process.

    It loads what it finds, with its dependencies and of any major version. In a child that leaves nothing
    behind, and a broken library does not end this process.
    """
    if not wanted.pathfinder:
        raise NotFoundError("not a library that it knows")
    import subprocess  # only when all other steps have failed

    command = [sys.executable or "", "-P", "-c", _ASK_PATHFINDER, wanted.pathfinder, *_fixed(places.path)]
    environ = dict(places.environ)
    # It asks the dynamic linker, for which what is empty is the current folder.
    environ["LD_LIBRARY_PATH"] = ":".join(_fixed(environ.get("LD_LIBRARY_PATH", "").split(":")))
    try:
        child = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFoundError(f"could not be asked: {error}") from None
    if child.returncode:
        died = f"its process died of signal {-child.returncode}"
        raise NotFoundError(died if child.returncode < 0 else child.stderr.strip())
    answer = Path(child.stdout.splitlines()[-1])
    if not _is(answer, wanted):
        raise NotFoundError(f"it found {answer}, which is of another version", [answer])
    return answer


CUDNN_STEPS: tuple[tuple[str, Step], ...] = (
    (EXPLICIT, find_explicit),
    ("already loaded", find_mapped),
    ("wheel", find_wheel),
    ("conda", find_conda),
    ("CUDNN_PATH", find_cudnn_path),
    ("CUDA toolkit", find_toolkit),
    ("system", find_linker),
    ("cuda-pathfinder", find_pathfinder),
)

COMPANION_STEPS: tuple[tuple[str, Step], ...] = (
    ("already loaded", find_mapped),
    ("beside cuDNN", find_beside),
    ("wheel", find_wheel),
    ("conda", find_conda),
    ("CUDA toolkit", find_toolkit),
    ("system", find_linker),
    ("cuda-pathfinder", find_pathfinder),
)


def folders_of(root: Path) -> tuple[Path, ...]:
    """List where a root folder keeps its libraries; the folder may also be that of the libraries itself."""
    return root, root / "lib", root / "lib64"


_ASK_PATHFINDER = """
import sys
sys.path[:] = sys.argv[2:]
try:
    from cuda.pathfinder import load_nvidia_dynamic_lib
    print(load_nvidia_dynamic_lib(sys.argv[1]).abs_path)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
"""


def _first(wanted: LibrarySpec, folders: Iterable[Path]) -> Path:
    present = [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]
    for folder in present:
        for path in (folder / wanted.soname, *_newest_first(folder.glob(f"{wanted.soname}.*"))):
            if os.path.lexists(path):  # a dangling link too: what is wrong with it is said later
                return path
    others = [file for folder in present for file in _others(folder.glob(f"{_stem(wanted)}.so.*"), wanted)]
    where = ", ".join(map(str, present)) or "its folders: none of them exists"
    found = f", only {', '.join(file.name for file in others)}" if others else ""
    raise NotFoundError(f"no {wanted.soname} in {where}{found}", others)


def _fixed(folders: Iterable[str]) -> list[str]:
    """Folders that do not depend on the current one, where anybody may have put a library."""
    return [folder for folder in folders if os.path.isabs(folder)]


def _foreign(file: Path) -> bool:
    """Whether a library is of another machine, as a driver's 32-bit one is: the linker passes over it too."""
    try:
        _elf.check(file)
    except _elf.ElfError as error:
        return error.kind in ("class", "machine")
    return False


def _newest_first(files: Iterable[Path]) -> list[Path]:
    return sorted(
        files, key=lambda file: [int(digits) for digits in re.findall(r"\d+", file.name)], reverse=True
    )


def _is(file: Path, wanted: LibrarySpec) -> bool:
    return re.fullmatch(rf"{re.escape(wanted.soname)}(\.\d+)*", file.name) is not None


def _others(files: Iterable[Path], wanted: LibrarySpec) -> list[Path]:
    """Keep the same library of other major versions."""
    pattern = re.compile(rf"{re.escape(_stem(wanted))}\.so(\.\d+)+")
    return _newest_first(file for file in files if pattern.fullmatch(file.name) and not _is(file, wanted))


def _stem(wanted: LibrarySpec) -> str:
    return wanted.soname.partition(".so")[0]


def _cached(wanted: LibrarySpec, places: SearchContext) -> Iterator[Path]:
    """Yield the folders of the linker's cache that hold the library: its paths stand there as plain text."""
    try:
        cache = Path(places.linker_cache).read_bytes()
    except OSError:
        return
    for path in re.findall(rb"(?<=\0)/[^\0]*/" + re.escape(wanted.soname.encode()) + rb"(?=\0)", cache):
        yield Path(os.fsdecode(path)).parent


def _unsupported() -> str:
    """Return why this machine cannot have a cuDNN; empty if it can."""
    machine = os.uname().machine if hasattr(os, "uname") else "an unknown machine"
    glibc = _elf.glibc_version()
    if glibc and _elf.machine_here():
        return ""
    return (
        "cudnn_ct supports Linux with glibc on x86-64 or aarch64; "
        f"this is {sys.platform} on {machine} with {glibc or 'another C library'}"
    )
