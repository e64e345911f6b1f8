"""The version of cuDNN, whether it can be used, and the flag ``dnn.enabled``."""

from __future__ import annotations

import re
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import ParamSpec, TypeVar

from .. import _lib
from .._config import config
from .._installation import header_version
from .._libraries import version_number
from ..context import available
from ..cuda import device as devices
from ..errors import CudnnError, LibraryLoadError, VersionMismatchError
from .arguments import checked_flag

P = ParamSpec("P")
T = TypeVar("T")

_DISABLED = "the flag dnn.enabled is False"


def version(raises: bool = True) -> int:
    """Return the version of cuDNN as an integer: 92700 is 9.27.0. See :func:`cudnn_ct.version`."""
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
    header = None if path is None else header_version(path)
    number = header and version_number(header)
    if number not in (None, library.version):
        raise VersionMismatchError(
            f"Mixed dnn version. The header is version {number} while the library is version "
            f"{library.version}. ({path}, {library.path})"
        )
    return library.version


class _Present:
    """Return whether cuDNN can be loaded, without a device. See :func:`cudnn_ct.version`."""

    msg: str | None = None

    def __call__(self) -> bool:
        if config.dnn.enabled == "no_check":
            self.msg = "not checked, because the flag dnn.enabled is no_check"
            return True
        try:
            version()
            self.msg = None
        except RuntimeError as error:
            self.msg = str(error)
        return _judged(self.msg)


class _Available:
    """Return whether cuDNN can be used on a device. See :func:`cudnn_ct.available`."""

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
        if self.msg is None and device is not None and device >= devices.device_count():
            self.msg = f"device {device} does not exist: the driver shows {devices.device_count()}"
        return _judged(self.msg)


dnn_present = _Present()
dnn_available = _Available()


def run(operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call an operation if the flag ``dnn.enabled`` allows it.

    Raises
    ------
    RuntimeError
        The flag is False, or it is True and cuDNN cannot be used.
    """
    enabled = config.dnn.enabled
    if enabled == "False":
        raise RuntimeError(f"cuDNN is not used: {_DISABLED}")
    if enabled == "True":
        dnn_available()
    return operation(*args, **kwargs)


def check_context(name: int | str | None) -> int | None:
    """Return the number of the device that a context name contains."""
    if name is None:
        return None
    found = re.fullmatch(r"(?:dev|cuda|gpu)?(\d+)", str(name)) if isinstance(name, Integral | str) else None
    if found is None:
        raise ValueError(f"context_name is not a device: got {name!r}, expected 0, 'dev0' or 'cuda0'")
    return int(found[1])


def _judged(problem: str | None) -> bool:
    if problem is not None and config.dnn.enabled == "True":
        raise RuntimeError(f"You enabled cuDNN, but we aren't able to use it: {problem}")
    return problem is None


def _header(library: _lib.Library) -> Path | None:
    """Return the header to compare with the library."""
    include, base = config.dnn.include_path, config.dnn.base_path
    if include:
        path = Path(include, "cudnn_version.h")
        if not path.is_file():
            raise CudnnError(f"the flag dnn.include_path has no cudnn_version.h: got {include}")
        return path
    if base and Path(base, "include", "cudnn_version.h").is_file():
        return Path(base, "include", "cudnn_version.h")
    header = library.installation.header if library.installation else None
    return None if header is None else Path(header.path)
