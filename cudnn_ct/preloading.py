"""Opens the libraries of cuDNN and CUDA for other programs of the process, which look for them by name."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudnn_doctor.read.find import CUDNN, CUDNN_STEPS, SearchContext, mapped_files, search
from cudnn_doctor.read.installation import Installation, inspect
from cudnn_doctor.read.libraries import CUDA, JIT

from . import _lib
from ._config import config
from ._dlopen import find_of_cuda, open_library
from .errors import CudnnError, LibraryLoadError, LibraryNotFoundError, warn_caller

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
