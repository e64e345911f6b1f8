"""What cuDNN is here, and with what: everything that can be told without a GPU, in one value."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import _elf, _files, _lib
from ._dlopen import driver_version
from ._find import (
    COMPANION_STEPS,
    DRIVER,
    LibrarySpec,
    SearchContext,
    SearchResult,
    cublaslt,
    cudart,
    find_cudnn,
    mapped_files,
    search,
)
from ._installation import Installation, LibraryFile, companion_version, header_version, inspect
from .errors import CudnnError, CudnnWarning, format_version

__all__ = ["LibraryInfo", "library_info"]

SCHEMA = 1  # raised when a key goes away or changes its meaning
NOT_LOOKED_FOR = "not looked for: which one fits depends on the cuDNN"


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
        What the running library answers; what its files say where it cannot be loaded.
    cuda_version : str or None
        The CUDA version it was built for.
    sublibraries : tuple of LibraryFile
        The libraries that it opens by itself, whether this process has them mapped, and if not, why.
    header : LibraryFile or None
        The ``cudnn_version.h`` that belongs to the library.
    other_headers : tuple of LibraryFile
        Headers that cuda-pathfinder finds elsewhere: a compiler may take these.
    cublaslt, cudart, driver : LibraryFile
        The companions; without a path, ``note`` says why.
    bindings : str
        The cuDNN version whose headers this package's functions and enums come from.
    steps : tuple of (str, str)
        Each place that was looked at, and what it gave.
    notes : tuple of str
        What is odd and does not keep it from working.
    problem : str or None
        What is wrong, in one line; None when all is well.
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
        """Give everything as plain values that JSON takes."""
        return {"schema": SCHEMA, **asdict(self)}

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield what a person reads: a label and a text, in order."""
        built = f" for CUDA {self.cuda_version}" if self.cuda_version else ""
        yield "cuDNN", f"{self.version or 'none'}{built}"
        if self.path:
            yield "path", self.path
            yield "found via", self.found_via
        if self.header or self.path:
            yield "header", _line(self.header) if self.header else "none beside the library"
        for header in self.other_headers:
            yield "other header", _line(header)
        for file in self.sublibraries:
            yield file.name, _line(replace(file, path=file.path and os.path.basename(file.path)))
        for file in (self.cublaslt, self.cudart, self.driver):
            yield file.name, _line(file)
        yield "bindings", f"from the headers of cuDNN {self.bindings}"
        for step, result in self.steps:
            yield "looked at", f"{step}: {result}"
        for note in self.notes:
            yield "note", note

    def __str__(self) -> str:
        rows = [*self.rows(), ("problem", self.problem or "none")]
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:{width}}  {text}" for label, text in rows)


def library_info() -> LibraryInfo:
    """Tell which cuDNN is here and what belongs to it. Loads it when it is sound; raises nothing.

    Returns
    -------
    LibraryInfo
        Print it to read it; ``problem`` is None where all is well.

    Notes
    -----
    ``cudnnGetVersion`` and ``cudnnGetCudartVersion``, and files. Needs no GPU.

    Examples
    --------
    >>> info = ct.library_info()
    >>> found, how = info.path, info.found_via
    """
    library, found, installation, problem = _loaded()
    version = library.version if library else installation and installation.version
    cuda = library.cuda_version if library else None
    mapped = mapped_files()
    files = installation.files if installation else ()
    header = installation.header if installation else None
    companions = {
        name: _companion(name, wanted, cuda, installation)
        for name, wanted in (("libcublasLt", cublaslt), ("libcudart", cudart))
    }
    return LibraryInfo(
        path=installation.shim if installation else None,
        found_via=found.found_via,
        version=format_version(version) if version else None,
        cuda_version=_cuda(cuda) if cuda else None,
        sublibraries=tuple(_state_of(file, library, mapped) for file in files),
        header=header,
        other_headers=_other_headers(header),
        cublaslt=companions["libcublasLt"],
        cudart=companions["libcudart"],
        driver=_driver(),
        bindings=_bindings(),
        steps=found.steps,
        notes=tuple(_notes(installation, companions["libcublasLt"], mapped)),
        problem=problem or (library.header_mismatch() if library else "") or None,
    )


def _loaded() -> tuple[_lib.Library | None, SearchResult, Installation | None, str]:
    """Return what can be had: the library, how it was found, its files, and why there is not more."""
    try:
        library = _lib.load()
    except (CudnnError, CudnnWarning, OSError) as error:  # where warnings are errors
        found = find_cudnn()
        return None, found, inspect(found.path) if found.path else None, str(error).partition("\n")[0]
    return library, library.found, library.installation, ""


def _state_of(file: LibraryFile, library: _lib.Library | None, mapped: tuple[str, ...]) -> LibraryFile:
    note = library.skipped.get(file.name, file.note) if library else file.note
    return replace(file, mapped=file.path in mapped, note=note)


def _companion(
    name: str, wanted_of: Callable[[int], LibrarySpec], cuda: int | None, installation: Installation | None
) -> LibraryFile:
    """Look for a library of CUDA that fits this cuDNN; its file's name or its wheel tells the version."""
    if cuda is None or installation is None:
        return LibraryFile(name, None, note=NOT_LOOKED_FOR)
    wanted = wanted_of(cuda // 1000)
    found = search(wanted, COMPANION_STEPS, SearchContext(beside=installation.folder))
    if found.path is None:
        return LibraryFile(name, None, note=f"no {wanted.soname} was found")
    real = os.path.realpath(found.path)
    return _judged(LibraryFile(name, real, companion_version(real) or None, mapped=real in mapped_files()))


def _judged(file: LibraryFile) -> LibraryFile:
    try:
        _elf.check(file.path or "")
    except _elf.ElfError as error:
        return replace(file, note=str(error))
    return file


def _other_headers(header: LibraryFile | None) -> tuple[LibraryFile, ...]:
    from cuda.pathfinder import locate_nvidia_header_directory  # 30 ms, and for this question alone

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
    """Ask libcuda for its version, which needs no GPU; the kernel module tells the release of the driver."""
    steps = tuple(step for step in COMPANION_STEPS if step[0] in ("already loaded", "system"))
    found = search(DRIVER, steps, SearchContext())
    release = _files.driver_release()
    if found.path is None:
        inside = f", though the kernel module is there ({release}): is this a container without --gpus?"
        return LibraryFile("driver", None, note=f"no {DRIVER.soname} was found{inside if release else ''}")
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
        yield f"{lt.note}: nothing can run on a GPU until it is installed"
    for path in installation.other_installations(mapped):
        yield f"this process has also {path} open"


def _bindings() -> str:
    from ._bindings import GENERATED_FROM

    return format_version(GENERATED_FROM)


def _cuda(number: int) -> str:
    """Write a CUDA version as people do: 12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _line(file: LibraryFile) -> str:
    return "  ".join(filter(None, (file.version, file.path, "(loaded)" if file.mapped else "", file.note)))
