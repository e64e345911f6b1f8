"""The version of cuDNN, whether it can be used, and the flag ``dnn.enabled``."""

from __future__ import annotations

import re
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from cudnn_ct import _lib
from cudnn_ct._config import config
from cudnn_ct.availability import available
from cudnn_ct.cuda import device as devices
from cudnn_ct.errors import CudnnError, LibraryLoadError, VersionMismatchError
from cudnn_doctor.read.installation import header_version
from cudnn_doctor.read.versions import version_number

P = ParamSpec("P")
T = TypeVar("T")

_DISABLED = "the flag dnn.enabled is False"


def version(raises: bool = True) -> int:
    """Return the version of cuDNN as an integer: 92700 is 9.27.0. See :func:`cudnn_ct.version`."""
    raises = checked_flag(raises, "raises")
    try:
        if config.dnn.enabled == "False":
            raise LibraryLoadError(_DISABLED)
        found = _lib.version()
    except LibraryLoadError as error:
        if not raises:
            return -1
        text = f"We can't determine the cudnn version as it is not available: {error}"
        raise RuntimeError(text) from error
    include, base = config.dnn.include_path, config.dnn.base_path  # those next to the library agree with it
    path = Path(include or Path(base or "", "include"), "cudnn_version.h")
    if include and not path.is_file():
        raise CudnnError(f"the flag dnn.include_path has no cudnn_version.h: got {include}")
    header = header_version(path) if (include or base) and path.is_file() else None
    number = header and version_number(header)
    if number not in (None, found):
        raise VersionMismatchError(
            f"Mixed dnn version. The header is version {number} while the library is version {found}. "
            f"({path})"
        )
    return found


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
    """Call an operation if the flag ``dnn.enabled`` allows it; raise RuntimeError if not.

    If the flag is True, cuDNN must be usable.
    """
    enabled = config.dnn.enabled
    if enabled == "False":
        raise RuntimeError(f"cuDNN is not used: {_DISABLED}")
    if enabled == "True":
        dnn_available()
    return operation(*args, **kwargs)


def checked_flag(value: object, name: str) -> bool:
    """Return a flag as a bool.

    Numbers are rejected, 0 and 1 too: in the argument order of the older module, an epsilon or a factor
    stands where the later module has a flag.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{name} is not a bool: got {value!r}, expected True or False; pass parameters that only the "
            "older module has (epsilon, running_average_factor, workmem) by keyword"
        )
    return bool(value)


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
