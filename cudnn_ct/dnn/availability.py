"""Whether there is a cuDNN, which one, and whether the flag ``dnn.enabled`` lets it be used."""

from __future__ import annotations

import re
from numbers import Integral
from pathlib import Path
from typing import Any

from .. import _lib
from .._config import config
from .._installation import header_version
from ..context import available
from ..cuda import stream as streams
from ..errors import CudnnError, LibraryLoadError, VersionMismatchError
from .arguments import checked_flag

__all__ = ["check_context", "dnn_available", "dnn_present", "ops", "version"]

_DISABLED = "the flag dnn.enabled is False"


def version(raises: bool = True) -> int:
    """Tell the version of cuDNN as its header writes it: 92700 is 9.27.0.

    Parameters
    ----------
    raises : bool
        Whether to raise where there is no cuDNN; the answer is -1 otherwise.

    Returns
    -------
    int

    Raises
    ------
    TypeError
        ``raises`` is not a bool.
    RuntimeError
        There is no cuDNN. Always: the header and the library, or parts of the library, are of different
        versions.

    Notes
    -----
    ``cudnnGetVersion``. The header is the one below ``dnn.include_path`` or ``dnn.base_path``, or else the
    one that was installed with the library, if there is one.

    Examples
    --------
    >>> ct.dnn.version() // 10000
    9
    """
    raises = checked_flag(raises, "raises")
    try:
        if config.dnn.enabled == "False":
            raise LibraryLoadError(_DISABLED)
        library = _lib.load()
    except LibraryLoadError as error:
        if not raises:
            return -1
        text = f"We can't determine the cudnn version as it is not available: {error}"
        raise RuntimeError(text) from error
    path = _header(library)
    number = None if path is None else header_version(path)
    if number not in (None, library.version):
        raise VersionMismatchError(
            f"Mixed dnn version. The header is version {number} while the library is version "
            f"{library.version}. ({path}, {library.path})"
        )
    return library.version


class _Present:
    """Say whether there is a cuDNN that can be loaded and whose parts and header fit, without raising.

    Returns
    -------
    bool
        ``dnn_present.msg`` says why not; None where all is well.

    Raises
    ------
    RuntimeError
        There is none, and the flag ``dnn.enabled`` is True.

    Notes
    -----
    With ``dnn.enabled`` at ``"no_check"`` the answer is True, and nothing is loaded.

    Examples
    --------
    >>> ct.dnn.dnn_present()
    True
    """

    msg: str | None = None

    def __call__(self) -> bool:
        if config.dnn.enabled == "no_check":
            self.msg = "not checked, since the flag dnn.enabled is no_check"
            return True
        try:
            version()
            self.msg = None
        except RuntimeError as error:
            self.msg = str(error)
        return _judged(self.msg)


class _Available:
    """Say whether operations can run: there is a cuDNN, and a GPU with a driver for it.

    Parameters
    ----------
    context_name : int or str, optional
        The device, as a number or as ``"dev0"`` or ``"cuda0"``; any by default.

    Returns
    -------
    bool
        ``dnn_available.msg`` says why not; None where all is well.

    Raises
    ------
    RuntimeError
        They cannot, and the flag ``dnn.enabled`` is True.
    ValueError
        ``context_name`` names no device.

    Notes
    -----
    ``cudnnGetVersion`` and the driver are asked, cuDNN computes nothing.

    Examples
    --------
    >>> ct.dnn.dnn_available(0), ct.dnn.dnn_available.msg
    (True, None)
    """

    msg: str | None = None

    def __call__(self, context_name: int | str | None = None) -> bool:
        device = check_context(context_name)
        try:
            present = dnn_present()
        finally:
            self.msg = dnn_present.msg
        if not present or config.dnn.enabled == "no_check":
            return present
        self.msg = available().reason or None
        if self.msg is None and device is not None and device >= streams.device_count():
            self.msg = f"there is no device {device}; the driver shows {streams.device_count()}"
        return _judged(self.msg)


dnn_present = _Present()
dnn_available = _Available()


def ops() -> Any:
    """The operations of the package, where the flag ``dnn.enabled`` lets them be used.

    Raises
    ------
    RuntimeError
        The flag is False, or True where they cannot run.
    """
    enabled = config.dnn.enabled
    if enabled == "False":
        raise RuntimeError(f"cuDNN is not used: {_DISABLED}")
    if enabled == "True":
        dnn_available()
    import cudnn_ct

    return cudnn_ct


def check_context(name: int | str | None) -> int | None:
    """Return the number of the device that a context's name ends in."""
    if name is None:
        return None
    found = re.fullmatch(r"(?:dev|cuda|gpu)?(\d+)", str(name)) if isinstance(name, Integral | str) else None
    if found is None:
        raise ValueError(f"context_name must be a device such as 0, 'dev0' or 'cuda0', not {name!r}")
    return int(found[1])


def _judged(problem: str | None) -> bool:
    if problem is not None and config.dnn.enabled == "True":
        raise RuntimeError(f"You enabled cuDNN, but we aren't able to use it: {problem}")
    return problem is None


def _header(library: _lib.Library) -> Path | None:
    """The header to hold against the library."""
    include, base = config.dnn.include_path, config.dnn.base_path
    if include:
        path = Path(include, "cudnn_version.h")
        if not path.is_file():
            raise CudnnError(f"the flag dnn.include_path is {include}, which has no cudnn_version.h")
        return path
    if base and Path(base, "include", "cudnn_version.h").is_file():
        return Path(base, "include", "cudnn_version.h")
    header = library.installation.header if library.installation else None
    return None if header is None or header.path is None else Path(header.path)
