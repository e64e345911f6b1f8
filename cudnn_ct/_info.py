"""The cuDNN of this process and its companions: what was found, and opened for other programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from cudnn_doctor.read import files as _files
from cudnn_doctor.read import find as _find
from cudnn_doctor.read.find import (
    COMPANION_STEPS,
    CUDNN,
    CUDNN_STEPS,
    SearchContext,
    SearchResult,
    mapped_files,
    search,
)
from cudnn_doctor.read.installation import Installation, companion_version, inspect
from cudnn_doctor.read.libraries import (
    COMPANIONS,
    CUDA,
    EXT,
    JIT,
    SETS,
    SUBLIBRARIES,
    Library,
    needs,
    read_library,
)
from cudnn_doctor.read.versions import dotted

from . import _lib, facts
from ._config import config
from ._dlopen import driver_version, find_cudnn, find_of_cuda, open_library
from .errors import (
    CudnnError,
    CudnnWarning,
    LibraryLoadError,
    LibraryNotFoundError,
    format_version,
    warn_caller,
)

SCHEMA = 1  # increased when a key is removed or changes its meaning
NOT_LOOKED_FOR = "not searched: its version depends on the cuDNN"
NOT_NEEDED = "not searched: the engines of this cuDNN do not need it"
# What happens without a library of CUDA.
WITHOUT = {
    "libcublasLt": "no operation can run on a GPU",
    "libnvrtc": "cuDNN has no engines that are compiled at run time",
}
NEEDS_DRIVER = "not loaded: it needs the driver"


@dataclass(frozen=True)
class LibraryFile:
    """A library or a header on disk, as a part of a :class:`LibraryInfo`."""

    name: str  # its kind: "graph", "header", "libcublasLt"
    path: str | None  # the real file; None if it does not exist
    version: str | None = None  # if the file contains one
    note: str = ""  # why it is missing, or why it cannot be used
    mapped: bool = False  # whether this process has loaded it


@dataclass(frozen=True)
class LibraryInfo:
    """The cuDNN of this process: the result of :func:`library_info`, not constructed by users."""

    path: str | None  # the real path of libcudnn.so.9
    found_via: str  # the step that found it
    version: str | None  # of the loaded library, or of its files if it cannot be loaded
    kind: str | None  # its set of libraries: "full", or "jit", which has graphs only
    cuda_version: str | None  # the CUDA version that it was built for
    sublibraries: tuple[LibraryFile, ...]  # the libraries that it opens
    header: LibraryFile | None  # the cudnn_version.h that belongs to the library
    cublaslt: LibraryFile  # the companions; ``note`` has the reason if one was not found or is not needed
    nvrtc: LibraryFile
    cudart: LibraryFile
    driver: LibraryFile
    bindings: str  # the cuDNN version from whose headers functions and enums of this package are generated
    steps: tuple[tuple[str, str], ...]  # each step of the search and its result
    facts: str  # the number of facts about cuDNN and their hash, and the file of a user
    notes: tuple[str, ...]  # oddities that do not keep it from working
    problem: str | None  # in one line; None if there is none

    def as_dict(self) -> dict[str, object]:
        """Return all values for JSON."""
        return {"schema": SCHEMA, **asdict(self)}

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the labels and texts of the printed form, in order."""
        built = {JIT: " JIT", EXT: " (libcudnn_ext alone)"}.get(self.kind or "", "")
        built += f" for CUDA {self.cuda_version}" if self.cuda_version else ""
        yield "cuDNN", f"{self.version or ('of unknown version,' if self.path else 'none')}{built}"
        if self.path:
            yield "path", self.path
            yield "found via", self.found_via
        if self.header or self.path:
            yield "header", _line(self.header) if self.header else "none next to the library"
        for file in self.sublibraries:
            yield file.name, _line(replace(file, path=file.path and os.path.basename(file.path)))
        for file in (self.cublaslt, self.nvrtc, self.cudart, self.driver):
            yield file.name, _line(file)
        yield "bindings", f"from the headers of cuDNN {self.bindings}"
        yield "facts", self.facts
        for step, result in self.steps:
            yield "searched", f"{step}: {result}"
        for note in self.notes:
            yield "note", note

    def __str__(self) -> str:
        rows = [*self.rows(), ("problem", self.problem or "none")]
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:{width}}  {text}" for label, text in rows)


def library_info() -> LibraryInfo:
    """Describe the cuDNN that this process uses. Loads it if it is sound; raises no error.

    Returns
    -------
    LibraryInfo
        Print it; ``problem`` is None if there is none.

    Notes
    -----
    ``cudnnGetVersion`` and ``cudnnGetCudartVersion``, and files. Needs no GPU.

    Examples
    --------
    >>> info = ct.library_info()
    >>> found, how = info.path, info.found_via
    """
    from ._bindings import GENERATED_FROM

    library, found, installation, problem = _loaded()
    version = library.version if library else installation and installation.number
    cuda = (library.cuda_version if library else 0) or None
    mapped = _find.mapped_files()
    parts = {part.name: part for part in installation.parts} if installation else {}
    skipped = library.skipped if library else {}
    expected = SETS[installation.kind] if installation else ()
    header = installation.header if installation else None
    wrong_facts = _wrong_facts()
    cublas = _companion("libcublasLt", cuda, installation)
    nvrtc = _companion("libnvrtc", cuda, installation)
    return LibraryInfo(
        path=installation.shim if installation else None,
        found_via=found.found_via,
        version=format_version(version) if version else None,
        kind=installation.kind if installation else None,
        cuda_version=_cuda(cuda) if cuda else None,
        sublibraries=tuple(
            _part(name, parts.get(name), mapped, skipped.get(name, ""))
            for name in SUBLIBRARIES
            if parts and (name in parts or name in expected)
        ),
        header=header and LibraryFile("header", header.path, header.version and dotted(header.version)),
        cublaslt=cublas,
        nvrtc=nvrtc,
        cudart=_companion("libcudart", cuda, installation),
        driver=_driver(),
        bindings=format_version(GENERATED_FROM),
        steps=found.steps,
        facts=f"unusable: {wrong_facts}" if wrong_facts else facts.summary(),
        notes=tuple(_notes(installation, (cublas, nvrtc), mapped)),
        problem=problem or (library.header_mismatch() if library else "") or wrong_facts or None,
    )


def _loaded() -> tuple[_lib.Library | None, SearchResult, Installation | None, str]:
    """Return the library, its search, its files, and the problem if it cannot be loaded."""
    try:
        library = _lib.load()
    except (CudnnError, CudnnWarning, OSError) as error:  # if warnings are errors
        found = find_cudnn()
        return None, found, inspect(found.path) if found.path else None, str(error).partition("\n")[0]
    return library, library.found, library.installation, ""


def _wrong_facts() -> str:
    """Return what is wrong with the facts of the user, which no operation runs with; empty for nothing."""
    try:
        if facts.user_facts():
            from .legal.conditions import check_user_facts  # with the problems of all operations

            check_user_facts()
    except (facts.FactsError, OSError) as error:
        return str(error)
    return ""


def _part(name: str, library: Library | None, mapped: tuple[str, ...], skipped: str) -> LibraryFile:
    if library is None:
        return LibraryFile(name, None, note="does not exist")
    version = dotted(library.version) if library.version else None
    needs_driver = skipped.startswith(f"{_find.DRIVER.soname}:")  # the linker's error message
    note = NEEDS_DRIVER if needs_driver else skipped or (library.problem.kind if library.problem else "")
    return LibraryFile(name, library.real, version, note, library.real in mapped)


def _companion(name: str, cuda: int | None, installation: Installation | None) -> LibraryFile:
    """Search for the library of CUDA that this cuDNN needs; its version is in its file name or its wheel."""
    if cuda is None or installation is None:
        return LibraryFile(name, None, note=NOT_LOOKED_FOR)
    if name in COMPANIONS and not needs(name, installation.kind, installation.version):
        return LibraryFile(name, None, note=NOT_NEEDED)
    found = find_of_cuda(name, cuda // 1000, installation)
    if found.path is None:
        unused = "" if name in COMPANIONS else "; cuDNN does not need it"
        return LibraryFile(name, None, note=f"no {name}.so.{cuda // 1000} was found{unused}")
    file = _on_disk(name, found.path)
    version = companion_version(file.path or "") or None
    return replace(file, version=version, mapped=file.path in _find.mapped_files())


def _on_disk(name: str, path: os.PathLike[str]) -> LibraryFile:
    library = read_library(os.fspath(path))
    return LibraryFile(name, library.real, note=str(library.problem or ""))


def _driver() -> LibraryFile:
    """Read the CUDA version from libcuda, without a GPU, and the driver release from the kernel module."""
    steps = tuple(step for step in COMPANION_STEPS if step[0] in ("already loaded", "system"))
    found = search(_find.DRIVER, steps, SearchContext())
    release = _files.driver_release()
    if found.path is None:
        inside = f", though the kernel module is loaded ({release}): is this a container without --gpus?"
        note = f"no {_find.DRIVER.soname} was found{inside if release else ': operations need one and a GPU'}"
        return LibraryFile("driver", None, note=note)
    file = _on_disk("driver", found.path)
    if file.note:
        return file
    number = driver_version(file.path or "")
    cuda = f"CUDA {_cuda(number)}" if number else ""
    return replace(file, version=", ".join(filter(None, (release, cuda))) or None, mapped=True)


def _notes(
    installation: Installation | None, companions: Iterable[LibraryFile], mapped: tuple[str, ...]
) -> Iterator[str]:
    if installation is None:
        return
    yield from installation.notes
    for file in companions:
        if file.path is None and file.note not in (NOT_LOOKED_FOR, NOT_NEEDED):
            yield f"{file.note}: {WITHOUT[file.name]} without it"
    for path in installation.other_installations(mapped):
        yield f"this process has also loaded {path}"
    for _, folder in _find.searched(["wheel"], _find.CUDNN, SearchContext()):
        other = "cudnn_jit" in folder and os.path.exists(os.path.join(folder, _find.CUDNN.soname))
        if other and installation.kind != JIT:
            yield f"the JIT wheel in {folder} is not used, because a full cuDNN precedes it"


def _cuda(number: int) -> str:
    """Format a CUDA version: 12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _line(file: LibraryFile) -> str:
    return "  ".join(filter(None, (file.version, file.path, "(loaded)" if file.mapped else "", file.note)))


# --- libraries for other programs --------------------------------------------------------------------------

# Set while libraries are searched. A search may start a Python, which must not preload when it starts.
_RUNNING = "_CUDNN_CT_PRELOADING"


def preload(raises: bool = True) -> tuple[str, ...]:
    """Open all libraries of cuDNN, cuBLAS and others of CUDA for other programs of the process.

    A program that opens ``libcudnn_ops.so.9`` by its name afterwards gets the library that is open, wherever
    it is installed. Call it before the program is imported. The files are checked as by every call.

    Parameters
    ----------
    raises : bool
        Whether to raise if the set is incomplete or cannot be loaded; else a CudnnWarning has the reason.

    Returns
    -------
    tuple of str
        The real paths of the libraries; empty if ``raises`` is False and it failed.

    Raises
    ------
    LibraryLoadError
        No complete cuDNN or no cuBLAS was found, or the process has already loaded another cuDNN, which the
        message names. Also RuntimeError.

    Notes
    -----
    Needs no GPU. NVRTC, the CUDA runtime, cuRAND and cuFFT are left out if they are not installed, and so is
    a library of cuDNN that needs the driver, on a machine without one.

    Examples
    --------
    >>> paths = ct.preload(raises=False)
    """
    if os.environ.get(_RUNNING):
        return ()
    os.environ[_RUNNING] = "1"
    try:
        return _preloaded()
    except CudnnError as error:
        if raises:
            raise
        warn_caller(f"preload: {error}")
        return ()
    finally:
        del os.environ[_RUNNING]


def _preloaded() -> tuple[str, ...]:
    refuse_other_cudnn()
    library = _lib.load()
    if (installation := library.installation) is None:  # a library of tests
        return ()
    if installation.kind == JIT:
        raise LibraryLoadError(
            f"{installation.shim} is of the JIT wheel, which lacks libcudnn_ops and others that programs "
            f"open: pip install nvidia-cudnn-cu{library.cuda_version // 1000}"
        )
    parts = [part.real for part in installation.parts if part.name not in library.skipped]
    companions = _companions_of(installation, library.cuda_version // 1000)
    return (*parts, installation.shim, *companions)


def refuse_other_cudnn() -> None:
    """Raise LibraryLoadError if the process has loaded another cuDNN than the one that is installed."""
    if _lib._state.library is not None:
        return
    steps = [step for step in CUDNN_STEPS if step[0] != "already loaded"]
    found = search(CUDNN, steps, SearchContext(config.library or None)).path
    strangers = inspect(found).other_installations(mapped_files()) if found else []
    if strangers:
        raise LibraryLoadError(
            f"this process has already loaded {strangers[0]}, and {found} would mix with it: call "
            "ct.preload() before the program that loads it, or set CUDNN_CT_LIBRARY to its folder"
        )


def _companions_of(installation: Installation, cuda: int) -> Iterator[str]:
    """Open libraries of CUDA, and yield their paths; an optional one is searched without a child process."""
    for name, row in CUDA.items():  # each after the ones that it needs
        found = find_of_cuda(name, cuda, installation, quick=not row.preloaded)
        if found.path is not None:
            yield open_library(found.path)
        elif row.preloaded:
            text = f"{name}.so.{cuda} was not found; programs that use cuDNN need it"
            raise LibraryNotFoundError(text, found.steps)
