"""Find and open the libraries of CUDA that a cuDNN needs and requests by name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ._dlopen import open_library
from ._find import COMPANION_STEPS, SearchContext, cublaslt, nvrtc, search
from ._installation import Installation
from ._libraries import COMPANIONS, needs
from .errors import LibraryLoadError, LibraryNotFoundError


def needed(installation: Installation) -> frozenset[str]:
    """Return the libraries of CUDA that the engines of a cuDNN need."""
    return frozenset(name for name in COMPANIONS if needs(name, installation.kind, installation.version))


def open_needed(installation: Installation, cuda: int, cudnn: str) -> None:
    """Open these libraries of a CUDA major version; ``cudnn`` is the cuDNN in the text of an error.

    cuDNN gets a library of a name that is loaded already, and its own search may not reach the wheels.
    """
    wanted = needed(installation)
    if "libnvrtc" in wanted:  # without it, cuDNN has fewer engines
        open_nvrtc(installation, (cuda,))
    if "libcublasLt" in wanted:
        _open_cublaslt(installation, cuda, cudnn)


def open_nvrtc(installation: Installation, majors: Iterable[int]) -> tuple[str, ...]:
    """Open the libnvrtc of CUDA major versions; return the paths of those that were found and loaded.

    libcudnn_ext does not search the folders of wheels either, and takes one that is loaded already.
    """
    opened = []
    for compiler in filter(None, (find_nvrtc(installation, cuda) for cuda in majors)):
        with suppress(LibraryLoadError):
            opened.append(open_library(Path(compiler)))
    return tuple(opened)


def find_nvrtc(installation: Installation, cuda: int) -> str:
    """Return the path of the libnvrtc that compiles kernels; empty if it was not found."""
    context = SearchContext(beside=installation.folder)
    return str(search(nvrtc(cuda), COMPANION_STEPS, context).path or "")


def _open_cublaslt(installation: Installation, cuda: int, cudnn: str) -> None:
    wanted = cublaslt(cuda)
    found = search(wanted, COMPANION_STEPS, SearchContext(beside=installation.folder))
    if found.path is None:
        package = "nvidia-cublas" if cuda >= 13 else f"nvidia-cublas-cu{cuda}"
        text = (
            f"{cudnn} needs {wanted.soname}, and would end this process without it: pip install {package}, "
            "or put its folder on LD_LIBRARY_PATH before Python starts"
        )
        raise LibraryNotFoundError(text, found.steps)
    open_library(found.path)
