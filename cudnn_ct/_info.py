"""The cuDNN of this process and its companions, without using a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import _elf, _files, _find, _lib
from ._dlopen import driver_version
from ._find import COMPANION_STEPS, LibrarySpec, SearchContext, SearchResult, find_cudnn, search
from ._installation import Installation, LibraryFile, companion_version, header_version, inspect
from .errors import CudnnError, CudnnWarning, format_version

__all__ = ["LibraryInfo", "library_info"]

SCHEMA = 1  # increased when a key is removed or changes its meaning
NOT_LOOKED_FOR = "not searched: its version depends on the cuDNN"


@dataclass(frozen=True)
class LibraryInfo:
    """A cuDNN installation as this process sees it.

    Attributes
    ----------
    path : str or None
        Real path of ``libcudnn.so.9``.
    found_via : str
        The step that found it.
    version : str or None
        The version of the loaded library; that of its files if it cannot be loaded.
    cuda_version : str or None
        The CUDA version it was built for.
    sublibraries : tuple of LibraryFile
        The libraries that it opens, whether this process has mapped them, and if not, why.
    header : LibraryFile or None
        The ``cudnn_version.h`` that belongs to the library.
    other_headers : tuple of LibraryFile
        Headers that cuda-pathfinder finds in other folders, and a compiler may use.
    cublaslt, cudart, driver : LibraryFile
        The companions; ``note`` has the reason if one was not found.
    bindings : str
        The cuDNN version from whose headers the functions and enums of this package are generated.
    steps : tuple of (str, str)
        Each step of the search and its result.
    notes : tuple of str
        Oddities that do not keep it from working.
    problem : str or None
        The problem in one line; None if there is none.
    """

    path: str | None
    found_via: str
    version: str | None
    cuda_version: str | None
    sublibraries: tuple[LibraryFile, ...]
    header: LibraryFile | None
    other_headers: tuple[LibraryFile, ...]
    cublaslt: LibraryFile
    cudart: LibraryFile
    driver: LibraryFile
    bindings: str
    steps: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return all values for JSON."""
        return {"schema": SCHEMA, **asdict(self)}

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the labels and texts of the printed form, in order."""
        built = f" for CUDA {self.cuda_version}" if self.cuda_version else ""
        yield "cuDNN", f"{self.version or 'none'}{built}"
        if self.path:
            yield "path", self.path
            yield "found via", self.found_via
        if self.header or self.path:
            yield "header", _line(self.header) if self.header else "none next to the library"
        for header in self.other_headers:
            yield "other header", _line(header)
        for file in self.sublibraries:
            yield file.name, _line(replace(file, path=file.path and os.path.basename(file.path)))
        for file in (self.cublaslt, self.cudart, self.driver):
            yield file.name, _line(file)
        yield "bindings", f"from the headers of cuDNN {self.bindings}"
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
    cuda = library.cuda_version if library else None
    mapped = _find.mapped_files()
    files = installation.files if installation else ()
    skipped = library.skipped if library else {}
    header = installation.header if installation else None
    cublas = _companion("libcublasLt", _find.cublaslt, cuda, installation)
    return LibraryInfo(
        path=installation.shim if installation else None,
        found_via=found.found_via,
        version=format_version(version) if version else None,
        cuda_version=_cuda(cuda) if cuda else None,
        sublibraries=tuple(
            replace(file, mapped=file.path in mapped, note=skipped.get(file.name, file.note))
            for file in files
        ),
        header=header,
        other_headers=_other_headers(header),
        cublaslt=cublas,
        cudart=_companion("libcudart", _find.cudart, cuda, installation),
        driver=_driver(),
        bindings=format_version(GENERATED_FROM),
        steps=found.steps,
        notes=tuple(_notes(installation, cublas, mapped)),
        problem=problem or (library.header_mismatch() if library else "") or None,
    )


def _loaded() -> tuple[_lib.Library | None, SearchResult, Installation | None, str]:
    """Return the library, its search, its files, and the problem if it cannot be loaded."""
    try:
        library = _lib.load()
    except (CudnnError, CudnnWarning, OSError) as error:  # if warnings are errors
        found = find_cudnn()
        return None, found, inspect(found.path) if found.path else None, str(error).partition("\n")[0]
    return library, library.found, library.installation, ""


def _companion(
    name: str, wanted_of: Callable[[int], LibrarySpec], cuda: int | None, installation: Installation | None
) -> LibraryFile:
    """Search for the library of CUDA that this cuDNN needs; its version is in its file name or its wheel."""
    if cuda is None or installation is None:
        return LibraryFile(name, None, note=NOT_LOOKED_FOR)
    wanted = wanted_of(cuda // 1000)
    found = search(wanted, COMPANION_STEPS, SearchContext(beside=installation.folder))
    if found.path is None:
        return LibraryFile(name, None, note=f"no {wanted.soname} was found")
    real = os.path.realpath(found.path)
    mapped = real in _find.mapped_files()
    return _judged(LibraryFile(name, real, companion_version(real) or None, mapped=mapped))


def _judged(file: LibraryFile) -> LibraryFile:
    try:
        _elf.check(file.path or "")
    except _elf.ElfError as error:
        return replace(file, note=str(error))
    return file


def _other_headers(header: LibraryFile | None) -> tuple[LibraryFile, ...]:
    from cuda.pathfinder import locate_nvidia_header_directory  # takes 30 ms

    try:
        located = locate_nvidia_header_directory("cudnn")
        path = located and os.path.realpath(os.path.join(located.abs_path, "cudnn_version.h"))
        if not path or (header and path == header.path):
            return ()
        number = header_version(path)
    except (OSError, RuntimeError):
        return ()
    return (LibraryFile("other header", path, format_version(number) if number else None),)


def _driver() -> LibraryFile:
    """Read the CUDA version from libcuda, without a GPU, and the driver release from the kernel module."""
    steps = tuple(step for step in COMPANION_STEPS if step[0] in ("already loaded", "system"))
    found = search(_find.DRIVER, steps, SearchContext())
    release = _files.driver_release()
    if found.path is None:
        inside = f", though the kernel module is loaded ({release}): is this a container without --gpus?"
        note = f"no {_find.DRIVER.soname} was found{inside if release else ''}"
        return LibraryFile("driver", None, note=note)
    file = _judged(LibraryFile("driver", os.path.realpath(found.path)))
    if file.note:
        return file
    number = driver_version(file.path or "")
    cuda = f"CUDA {_cuda(number)}" if number else ""
    return replace(file, version=", ".join(filter(None, (release, cuda))) or None, mapped=True)


def _notes(installation: Installation | None, lt: LibraryFile, mapped: tuple[str, ...]) -> Iterator[str]:
    if installation is None:
        return
    yield from installation.notes
    if lt.path is None and lt.note != NOT_LOOKED_FOR:
        yield f"{lt.note}: no operation can run on a GPU without it"
    for path in installation.other_installations(mapped):
        yield f"this process has also loaded {path}"


def _cuda(number: int) -> str:
    """Format a CUDA version: 12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _line(file: LibraryFile) -> str:
    return "  ".join(filter(None, (file.version, file.path, "(loaded)" if file.mapped else "", file.note)))
