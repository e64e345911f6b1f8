"""Opens the files of libraries by absolute path, after their headers were read; no other module does."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from . import _elf
from ._installation import Installation, world_writable
from ._libraries import SUBLIBRARIES
from .errors import LibraryLoadError, warn_caller

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
