"""Finds cuDNN, and opens libraries by absolute path after their headers were read; no other module does.

These are the libraries of cuDNN, and those of CUDA that it needs and requests by name.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from cudnn_doctor.read import elf as _elf
from cudnn_doctor.read import find as _find
from cudnn_doctor.read.find import COMPANION_STEPS, EXPLICIT, SearchContext, SearchResult, of_cuda, search
from cudnn_doctor.read.installation import Installation, inspect, world_writable
from cudnn_doctor.read.libraries import COMPANIONS, SUBLIBRARIES, needs

from ._config import config
from .errors import CudnnError, LibraryLoadError, LibraryNotFoundError, VersionMismatchError, warn_caller

Lookup = Callable[[str], Callable[..., object] | None]
"""Returns the C function of a name, or None if the library lacks it."""


def open_installation(installation: Installation) -> tuple[Lookup, dict[str, str]]:
    """Open all libraries of a cuDNN; return the look-up of its functions, and why libraries were skipped."""
    # cuDNN requests its parts by name, and gets a library of that name that is loaded already. So the parts
    # are opened before cuDNN, and LD_LIBRARY_PATH has no effect. Raises LibraryLoadError if a library cannot
    # be opened that every operation needs.
    skipped: dict[str, str] = {}
    for library in installation.parts:
        try:
            ctypes.CDLL(library.path)  # its folder is real; a link may lead to one without the others
        except OSError as error:
            if SUBLIBRARIES[library.name].core:
                raise _not_loadable(library.real, error) from None
            skipped[library.name] = str(error)
            if "libcuda.so.1" not in str(error):  # missing on every machine without a driver
                warn_caller(
                    f"{library.real} cannot be loaded ({error}): operations that need it are slower or fail"
                )
    try:
        shim = ctypes.CDLL(installation.shim)
    except OSError as error:
        raise _not_loadable(installation.shim, error) from None
    return lambda name: getattr(shim, name, None), skipped


def open_library(path: os.PathLike[str]) -> str:
    """Open one library, and return its real path; raise LibraryLoadError if that fails."""
    real = os.path.realpath(path)
    try:
        _elf.check(real)
        if danger := world_writable(real):
            warn_caller(danger)
        ctypes.CDLL(real)
    except (_elf.ElfError, OSError) as error:
        raise _not_loadable(real, error) from None
    return real


def driver_version(path: str) -> int:
    """Return the CUDA version that a libcuda supports, without initializing it; 0 if it cannot be read."""
    number = ctypes.c_int()
    try:
        status = ctypes.CDLL(path).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return 0 if status else number.value


def _not_loadable(path: str, error: Exception) -> LibraryLoadError:
    return LibraryLoadError(f"{path} cannot be loaded: {error}")


# --- libraries of CUDA -------------------------------------------------------------------------------------


def needed(installation: Installation) -> frozenset[str]:
    """Return the libraries of CUDA that the engines of a cuDNN need."""
    return frozenset(name for name in COMPANIONS if needs(name, installation.kind, installation.version))


def open_needed(installation: Installation, cuda: int, cudnn: str) -> None:
    """Open these libraries of a CUDA major version; ``cudnn`` is the cuDNN in the text of an error."""
    # cuDNN gets a library of a name that is loaded already, and its own search may not reach the wheels.
    wanted = needed(installation)
    if "libnvrtc" in wanted:  # without it, cuDNN has fewer engines
        open_nvrtc(installation, (cuda,))
    if "libcublasLt" not in wanted:
        return
    found = find_of_cuda("libcublasLt", cuda, installation)
    if found.path is None:
        package = "nvidia-cublas" if cuda >= 13 else f"nvidia-cublas-cu{cuda}"
        text = (
            f"{cudnn} needs libcublasLt.so.{cuda}, and would end this process without it: pip install "
            f"{package}, or put its folder on LD_LIBRARY_PATH before Python starts"
        )
        raise LibraryNotFoundError(text, found.steps)
    open_library(found.path)


def open_nvrtc(installation: Installation, majors: Iterable[int]) -> tuple[str, ...]:
    """Open the libnvrtc of CUDA major versions; return the paths of those that were found and loaded."""
    # libcudnn_ext does not search the folders of wheels either, and takes one that is loaded already.
    opened = []
    for compiler in filter(None, (find_nvrtc(installation, cuda) for cuda in majors)):
        with suppress(LibraryLoadError):
            opened.append(open_library(Path(compiler)))
    return tuple(opened)


def loaded_cublaslt(cuda: int) -> Lookup | None:
    """Return the look-up of functions of the libcublasLt that cuDNN uses; None if none is loaded."""
    try:  # by name, as cuDNN does: a second copy would be another library
        library = ctypes.CDLL(f"libcublasLt.so.{cuda}", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    return lambda name: getattr(library, name, None)


def find_nvrtc(installation: Installation, cuda: int) -> str:
    """Return the path of the libnvrtc that compiles kernels; empty if it was not found."""
    return str(find_of_cuda("libnvrtc", cuda, installation).path or "")


def find_of_cuda(name: str, cuda: int, installation: Installation, *, quick: bool = False) -> SearchResult:
    """Search for a library of CUDA for a cuDNN; no child process is started if the search is ``quick``."""
    steps = (step for step in COMPANION_STEPS if not quick or step[0] != "cuda-pathfinder")
    return search(of_cuda(name, cuda), steps, SearchContext(beside=installation.folder))


# --- the cuDNN of this process -----------------------------------------------------------------------------

_ERRORS = {"missing": LibraryNotFoundError, "unloadable": LibraryLoadError, "version": VersionMismatchError}


def find_cudnn() -> SearchResult:
    """Search this machine for cuDNN with all steps."""
    if unsupported := _find.unsupported():
        return SearchResult(None, "", (("platform", unsupported),))
    return _find.search(_find.CUDNN, _find.CUDNN_STEPS, _find.SearchContext(config.library or None))


def require(found: SearchResult) -> Installation:
    """Read what a search found, and raise unless it is a cuDNN that can be opened."""
    if found.path is None:
        raise _not_found(found)
    installation = inspect(found.path)
    if installation.problems:
        problem, *more = installation.problems
        first = _ERRORS[problem.kind](problem.text)
        if isinstance(first, LibraryNotFoundError):
            named = found.found_via == EXPLICIT and not os.path.lexists(found.path)
            wrong = (
                f"{EXPLICIT} or ct.config names {found.path}, which does not exist; correct it, or unset it"
            )
            first = LibraryNotFoundError(wrong if named else problem.text, found.steps)
        for note in (f"found via {found.found_via}", *map(str, more)):
            first.add_note(note)
        raise first
    return installation


def _not_found(found: SearchResult) -> CudnnError:
    for other in found.others:  # report a cuDNN 8 rather than nothing
        for problem in inspect(other).problems:
            if problem.kind == "version":
                return VersionMismatchError(problem.text)
    advice = (
        "pip install nvidia-cudnn-cu12 (or -cu13), or the smaller nvidia-cudnn-jit-cu12 (or -cu13), or set "
        "CUDNN_CT_LIBRARY to its file or folder; `cudnn-ct doctor` finds damaged ones"
    )
    if found.steps[0][0] == "platform":
        advice = found.steps[0][1]
    return LibraryNotFoundError(f"no cuDNN 9 was found: {advice}", found.steps)
